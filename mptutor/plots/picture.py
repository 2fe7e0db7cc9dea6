"""The one style that all pictures of the course share.

A picture has a title that says what to see, labelled axes, and an alternative text for those who
cannot see it. It is a plain `matplotlib.figure.Figure` that never enters pyplot's list of open
figures, so nothing is drawn twice, nothing has to be closed, and importing it is quick.

It keeps a light ground of its own, so that it reads the same on a light page and on a dark one.
"""

from __future__ import annotations

import base64
import html
import io

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mptutor.palette import colour

#: Pixels per inch on the page; the image holds twice as many, for sharp screens.
_PAGE_DPI = 96


class Picture(Figure):
    """A figure with an alternative text.

    Parameters
    ----------
    title : str
        What to see, as a sentence.
    alt : str
        What the picture shows, for readers who cannot see it.
    width, height : float
        In inches.
    """

    def __init__(self, title: str, alt: str, width: float = 7.5, height: float = 3.6) -> None:
        super().__init__(figsize=(width, height), dpi=2 * _PAGE_DPI, layout="constrained")
        FigureCanvasAgg(self)
        self.alt = alt
        self.set_facecolor(colour("surface"))
        self.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=colour("ink"))

    def axes_for(self, xlabel: str, ylabel: str, **kwargs: object) -> Axes:
        """Add the only axes of the picture, styled and labelled."""
        return style(self.add_subplot(**kwargs), xlabel, ylabel)

    def _repr_html_(self) -> str:
        png = io.BytesIO()
        self.savefig(png, format="png")
        data = base64.b64encode(png.getvalue()).decode()
        width = round(self.get_figwidth() * _PAGE_DPI)
        return (
            f'<img src="data:image/png;base64,{data}" alt="{html.escape(self.alt)}" '
            f'style="width:{width}px;max-width:100%">'
        )


def style(axes: Axes, xlabel: str, ylabel: str) -> Axes:
    """Give axes the course's look and their labels."""
    axes.set_xlabel(xlabel, color=colour("ink"), fontsize=9.5)
    axes.set_ylabel(ylabel, color=colour("ink"), fontsize=9.5)
    axes.tick_params(colors=colour("muted"), labelsize=8.5, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(colour("line"))
    axes.grid(color=colour("line"), linewidth=0.5, alpha=0.6)
    axes.set_axisbelow(True)
    return axes
