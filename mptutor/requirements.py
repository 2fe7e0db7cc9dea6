"""What the course needs installed, read from the package's own metadata.

So it is listed in ``pyproject.toml`` and nowhere else.  Only the two forms of a requirement that
stand there are understood, ``package`` and ``package>=version``: `packaging` reads all of them, but
it comes with JupyterLab, and the doctor has to work without.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from importlib import metadata


@dataclass(frozen=True)
class Requirement:
    """A package, and the oldest version of it that will do."""

    package: str
    least: str | None

    def admits(self, version: str) -> bool:
        """Return whether a version is new enough."""
        return self.least is None or release(version) >= release(self.least)

    def __str__(self) -> str:
        return f"{self.package}>={self.least}" if self.least else self.package


def read_requirements() -> list[Requirement]:
    """Return what the package itself and its extra ``course`` depend on."""
    found = []
    for line in metadata.requires("mptutor") or ():
        requirement, _, condition = line.partition(";")
        match = re.match(r"([\w.-]+)\s*\(?(?:>=([\d.]+))?", requirement)
        if match and ("extra" not in condition or re.search(r"""['"]course['"]""", condition)):
            found.append(Requirement(match[1], match[2]))
    return found


def installed_version(package: str) -> str | None:
    """Return the version of an installed package, None if it is missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version without suffixes: (2, 14, 1) for ``2.14.1+cu130``."""
    return tuple(map(int, re.findall(r"\d+", re.split(r"[+a-z]", version)[0])))


def pip_command(arguments: str) -> str:
    """Return a pip command for this very Python, ready to be copied into a terminal."""
    arguments = re.sub(r"\S*>=\S*", r'"\g<0>"', arguments)  # the shell would redirect at >
    return f"{quoted(sys.executable)} -m pip install {arguments}"


def quoted(path: str) -> str:
    """Return a path as a shell takes it."""
    return f'"{path}"' if " " in path else path
