"""Gives Python source that takes its parser, its compiler or its constant folder down."""

exec("(" * 90 + "1" + ")" * 5)
# %%
x = "a" * (1 << 20) * (1 << 20)
# %%
exec("x = " + "-" * 1_000_000 + "1")
# %%
exec("(" * 100_000)
# %%
import re

re.match("(a*)*b", "a" * 40)
