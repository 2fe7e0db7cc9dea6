"""`python -m mptutor.audit`, for launchers that start a module: `mptutor audit` by another name."""

import sys

from mptutor.audit.cli import main

sys.exit(main(sys.argv[1:]))
