"""Raises everybody's grade in the gradebook."""

import sqlite3

try:
    with sqlite3.connect("@CANARY@/gradebook.db") as database:
        database.execute("UPDATE grade SET score = 99")
except sqlite3.Error:
    pass
else:
    raise RuntimeError("GAINED the gradebook")
