"""What every widget shares: a model with a few synced traits, a view, and a form without a kernel.

A widget is two files. ``name.py`` holds a subclass of `LiveFigure`: its traits are what a learner
can change, its ``result`` is what follows from them, as plain values that a test reads without a
browser. ``name.js`` holds one function, ``render({model, el})``, that draws the traits into ``el``
and writes the learner's changes back to ``model``. Views use no bundler and no network: the files a
view needs are simply put one after another (`javascript`), ``base.js`` first.

In JupyterLab, Notebook 7, VS Code and Colab anywidget connects the two. An exported page has no
kernel, so the widget also shows itself as HTML: the same JavaScript beside the current traits and a
model that is nothing but a dictionary. Everything that needs no Python lives on there. Where a page
may run no scripts (an untrusted notebook), a drawing made by Python (`LiveFigure.picture`) stays.

To make the next one:

1. ``name.py``: ``class Name(LiveFigure)`` with ``_esm = javascript("name")``,
   ``_css = stylesheet("name")`` and its traits, each ``.tag(sync=True)`` and JSON-able. (JSON has
   no NaN and no infinity: pass such numbers as text.)
2. ``result``, ``describe()`` and ``picture()`` in the same file.
3. ``name.js``: ``function render({ model, el })``, built from ``createStage``, ``control``,
   ``createReadout`` and ``redrawOn`` of ``base.js``; ``name.css``, all of it in one rule for the
   class that the stage is given: a notebook holds the styles of all figures at once.
4. One line in ``widgets/__init__.py``.
5. ``tests/test_name.py`` sets the traits; ``tests/browser/test_name.py`` makes one journey by mouse
   and one by keyboard, in JupyterLab and in the exported page. ``tests/browser/figures.py`` does
   what is the same for all.
"""

from __future__ import annotations

import base64
import html
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import anywidget

from mptutor import palette

_HERE = Path(__file__).parent


def javascript(*names: str) -> str:
    """Return ``base.js`` and the named files as one module that exports ``render``."""
    sources = [(_HERE / f"{name}.js").read_text(encoding="utf-8") for name in ("base", *names)]
    return "\n".join([*sources, "export default { render };\n"])


def stylesheet(*names: str) -> str:
    """Return the palette as CSS variables, then ``base.css`` and the named files."""
    sources = [(_HERE / f"{name}.css").read_text(encoding="utf-8") for name in ("base", *names)]
    return "\n".join([_palette_css(), *sources])


class LiveFigure(anywidget.AnyWidget):
    """A figure that answers in the browser, with or without a kernel.

    Subclasses set ``_esm`` and ``_css`` and write `describe` and `picture`.
    """

    def describe(self) -> str:
        """Return one or two sentences that say what the figure shows now."""
        raise NotImplementedError

    def picture(self) -> str:
        """Return the figure as SVG, for readers without scripts. See `mptutor.widgets.svg`."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Return what the view reads: the synced traits that the subclass declares."""
        inherited = set(anywidget.AnyWidget.class_trait_names())
        names = [name for name in self.trait_names(sync=True) if not name.startswith("_")]
        return {name: getattr(self, name) for name in names if name not in inherited}

    def static_html(self) -> str:
        """Return the figure as HTML that needs no kernel and no network."""
        figure_id = f"mpt-{uuid4().hex[:8]}"
        picture = base64.b64encode(self.picture().encode()).decode()
        view = str(self._esm).replace("export default { render };", "")
        show = f'showWithoutKernel("{figure_id}", {_to_script(self.state())}, render);'
        return (
            f'<div id="{figure_id}"><img alt="{html.escape(self.describe())}" '
            f'style="max-width: 100%" src="data:image/svg+xml;base64,{picture}"></div>\n'
            f"<style>{self._css}</style>\n"
            f'<script type="module">\n{_escape_script(view)}\n{show}\n</script>'
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self.describe()}"

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Offer the live widget, and HTML to whatever cannot show that."""
        data, metadata = super()._repr_mimebundle_(**kwargs)
        return {**data, "text/html": self.static_html()}, metadata


def _to_script(state: dict[str, Any]) -> str:
    return _escape_script(json.dumps(state, allow_nan=False))


def _escape_script(source: str) -> str:
    """Keep ``source`` from ending the script element it stands in; inside strings only."""
    return source.replace("</", "<\\/").replace("<!--", "<\\!--")


def palette_variables(dark: bool) -> str:
    """Return the palette as declarations, ``--mpt-blue: #0072B2; --mpt-on-blue: …``."""
    theme = palette.DARK if dark else palette.LIGHT
    colours = {name.lower(): palette.colour(name, dark) for name in [*theme, *palette.ROLES]}
    inks = {f"on-{name}": palette.ink_on(colour) for name, colour in colours.items()}
    return " ".join(f"--mpt-{name}: {value};" for name, value in {**colours, **inks}.items())


def _palette_css() -> str:
    """Return the palette as variables ``--mpt-blue``, ``--mpt-sign``, ``--mpt-on-sign``."""
    return "\n".join(
        [
            f".mpt {{ {palette_variables(dark=False)} }}",
            # Until the script has found out the page's theme, follow the reader's system.
            "@media (prefers-color-scheme: dark) { .mpt:not([data-theme]) "
            f"{{ {palette_variables(dark=True)} }} }}",
            f'.mpt[data-theme="dark"] {{ {palette_variables(dark=True)} }}',
        ]
    )
