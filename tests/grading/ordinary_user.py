"""Run a command as a user without any rights, when the tests run as root.

Root's Python often lies in root's own folder, where no other user may look. So the command gets a
mount namespace in which that folder is an empty one with nothing but Python in it.
"""

import shutil
import sys
from pathlib import Path

USER = 23456

_SCRIPT = """
set -e
kept=$1; closed=$2; python=$3; user=$4; shift 4
if [ -n "$closed" ]; then
    mount --bind "$python" "$kept"
    mount -t tmpfs -o mode=755 tmpfs "$closed"
    mkdir -p "$python"
    mount --bind "$kept" "$python"
fi
exec setpriv --reuid "$user" --regid "$user" --clear-groups --inh-caps=-all "$@"
"""


def available():
    return shutil.which("setpriv") is not None and shutil.which("unshare") is not None


def as_ordinary_user(command, scratch):
    """Return the command that runs ``command`` as `USER`; ``scratch`` is an empty folder."""
    python = Path(sys.base_prefix).resolve()
    script = [str(scratch), _closed(python), str(python), str(USER), *command]
    return ["unshare", "--mount", "--propagation=private", "sh", "-c", _SCRIPT, "sh", *script]


def _closed(python):
    """Return the outermost folder on the way to Python that others may not enter, or ``""``."""
    for folder in reversed(python.parents):
        if not folder.stat().st_mode & 0o001:
            return str(folder)
    return ""
