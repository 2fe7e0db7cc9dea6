"""``python -m mptutor`` is ``mptutor``, also where scripts are not on the path."""

import sys

from mptutor.cli import main

sys.exit(main())
