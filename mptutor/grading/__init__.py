"""Grading a class: safely, quickly, fairly.

Four parties take part, and each knows only what it needs.

- The **controller** (`run`, `grade`, `examine`) has the tasks, the expected answers and everybody's
  submissions. It never runs a line of a student's code.
- The **warm parent** (`warm`) is a process that has imported torch, and nothing that holds an
  answer. Importing torch takes a second; a copy of a process that has done so takes milliseconds.
- The **supervisor** (`supervise`), a copy of the warm parent, one a submission, stands outside of
  the sandbox, watches the memory and ends the student's process when it is told to, or when the
  controller is gone.
- The **student's process** (`child`), a copy of that, locks itself into the sandbox
  (`sandbox_linux`) and then does what it is asked over a socket: run this cell, try this function
  on these inputs. It answers in plain data (`mptutor.checks.plain`).

So there is nothing to forge. The student's process may send what it likes, and all it can send is
answers; whether they are right is decided elsewhere. Hidden questions are asked only after the
answers that the student will read about have come in.
"""
