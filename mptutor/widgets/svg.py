"""Just enough SVG to draw a widget's picture for readers without scripts.

`drawing` gives the picture its own light background, so that it can be read on any page.
"""

from __future__ import annotations

from html import escape

from mptutor.palette import colour

_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
_CODE_FONT = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"


def drawing(width: float, height: float, title: str, parts: list[str]) -> str:
    """Return an SVG document of ``width`` by ``height`` pixels."""
    background = rectangle(0.5, 0.5, width - 1, height - 1, "surface", stroke="line", radius=6)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" font-family="{_FONT}">'
        f"<title>{escape(title)}</title>{background}{''.join(parts)}</svg>"
    )


def rectangle(
    x: float,
    y: float,
    width: float,
    height: float,
    fill: str,
    stroke: str | None = None,
    radius: float = 0,
    opacity: float = 1,
) -> str:
    """Return a rectangle; ``fill`` and ``stroke`` are names of the palette."""
    edge = f' stroke="{colour(stroke)}"' if stroke else ""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
        f'fill="{colour(fill)}" fill-opacity="{opacity:g}"{edge}/>'
    )


def text(
    x: float,
    y: float,
    content: str,
    fill: str = "ink",
    size: float = 13,
    anchor: str = "start",
    code: bool = False,
    bold: bool = False,
) -> str:
    """Return text with its baseline at ``y``; ``fill`` is a name of the palette or a hex colour."""
    ink = fill if fill.startswith("#") else colour(fill)
    font = f' font-family="{_CODE_FONT}"' if code else ""
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{ink}" font-size="{size:g}" '
        f'text-anchor="{anchor}"{font}{weight}>{escape(content)}</text>'
    )
