"""The frame of the pages that grading writes: one file each, no script, nothing from outside."""

from __future__ import annotations

from mptutor.grading.text import for_html
from mptutor.palette import DARK, LIGHT

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_LAYOUT = """
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--surface); }
h1 { font-size: 1.4rem; }
h2 { font-size: 1.1rem; margin-top: 2rem; }
section { border-top: 1px solid var(--line); }
pre, code { font-family: ui-monospace, monospace; font-size: 0.92em; }
pre { background: var(--raised); padding: 0.6rem 0.8rem; white-space: pre-wrap;
  overflow-wrap: anywhere; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: 0.2rem 1rem 0.2rem 0; text-align: left; font-weight: normal; }
th { color: var(--muted); }
.right { color: var(--blue); }
.lost { color: var(--vermillion); }
svg { max-width: 100%; height: auto; }
svg text { fill: var(--ink); font: 13px system-ui, sans-serif; }
svg rect { fill: var(--blue); }
"""


def page(title: str, body: str) -> str:
    """Return a whole page. ``body`` is HTML, ``title`` is text."""
    return (
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{for_html(title)}</title>\n<style>{_style()}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _style() -> str:
    light, dark = (
        " ".join(f"--{name}: {value};" for name, value in colours.items())
        for colours in (LIGHT, DARK)
    )
    return (
        f"\n:root {{ color-scheme: light dark; {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}{_LAYOUT}"
    )
