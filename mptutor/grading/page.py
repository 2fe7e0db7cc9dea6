"""The frame of the pages that grading writes: one file each, no script, nothing from outside."""

from __future__ import annotations

from mptutor.grading.text import for_html

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8881; --good: #0072b2; --bad: #d55e00; }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
section { border-top: 1px solid var(--line); }
pre, code { font-family: ui-monospace, monospace; font-size: 0.92em; }
pre { background: var(--soft); padding: 0.6rem 0.8rem; overflow-x: auto; white-space: pre-wrap; }
table { border-collapse: collapse; } td, th { padding: 0.2rem 0.8rem 0.2rem 0; text-align: left; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.right { color: var(--good); } .lost { color: var(--bad); }
svg text { fill: currentColor; font: 13px system-ui, sans-serif; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, body: str) -> str:
    """Return a whole page. ``body`` is HTML, ``title`` is text."""
    return (
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{for_html(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )
