"""What holds for every widget, and for the two helpers all of them share."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptutor import widgets
from mptutor.widgets import base, svg
from mptutor.widgets.typed_numbers import is_readable, print_number, read_number
from tests.javascript import evaluate

FOLDER = Path(widgets.__file__).parent

#: Those with a view of their own; the training race is made of plain ipywidgets.
WIDGETS = [n for n in widgets.__all__ if issubclass(getattr(widgets, n), base.LiveFigure)]


@pytest.fixture(params=WIDGETS)
def figure(request):
    return getattr(widgets, request.param)()


# -- every widget ----------------------------------------------------------------------------------


def test_a_widget_offers_the_live_form_and_html(figure):
    data, _ = figure._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert data["text/plain"] == f"{type(figure).__name__}: {figure.describe()}"
    assert "<img alt=" in data["text/html"] and '<script type="module">' in data["text/html"]


def test_a_widget_stays_small(figure):
    assert len(json.dumps(figure.state(), allow_nan=False)) < 200_000
    assert len(figure.static_html()) < 300_000


def test_the_state_holds_the_widgets_own_traits_only(figure):
    assert figure.state()
    assert not {"layout", "tabbable", "tooltip", "_esm", "_css"} & figure.state().keys()


def test_nothing_ends_the_script_early(figure):
    assert figure.static_html().count("</script") == 1
    assert base._escape_script('"</script><!--"') == r'"<\/script><\!--"'


def test_the_picture_is_an_svg_with_a_title(figure):
    picture = figure.picture()
    assert (
        picture.startswith("<svg xmlns=") and f"<title>{svg.escape(figure.describe())}" in picture
    )


def test_importing_the_package_loads_no_widget_library():
    code = "import mptutor.widgets, sys; sys.exit('ipywidgets' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_widget_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = widgets.Nothing


# -- every view ------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.js")), ids=lambda file: file.name)
def test_a_view_touches_no_network(file):
    source = file.read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|\bimport\b|\bfetch\(|XMLHttpRequest|WebSocket", source)


SHARED_STYLES = ("base.css", "controls.css")


@pytest.mark.parametrize("name", SHARED_STYLES)
def test_a_shared_style_stays_within_the_widgets(name):
    for selector in outer_selectors((FOLDER / name).read_text()):
        assert selector.startswith(".mpt"), selector


OWN_STYLES = sorted(file for file in FOLDER.glob("*.css") if file.name not in SHARED_STYLES)


@pytest.mark.parametrize("file", OWN_STYLES, ids=lambda file: file.name)
def test_a_style_stays_within_its_own_widget(file):
    """All of them stand in the class that the view's stage has, or they would style others too."""
    (selector,) = outer_selectors(file.read_text())
    assert re.fullmatch(r"\.mpt-[a-z0-9]+", selector)
    script = file.with_suffix(".js").read_text()
    (classes,) = re.findall(r'createStage\(el, "[^"]+", "([^"]+)"\)', script)
    assert selector[1:] in classes.split()


def outer_selectors(source: str) -> list[str]:
    """Return the selectors of a stylesheet that stand in no other rule, at-rules looked into."""
    source = re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)
    found, rules = [], []
    for text, brace in re.findall(r"([^{}]*)([{}])", source):
        if brace == "}":
            rules.pop()
            continue
        is_at_rule = text.strip().startswith("@")
        if not is_at_rule and all(rule.startswith("@") for rule in rules):
            found += [selector.strip() for selector in text.split(",")]
        rules.append(text.strip())
    return found


# -- numbers as people type them -------------------------------------------------------------------

READABLE = {
    "0.1": 0.1,
    " 65519 ": 65519.0,
    "2048+1": 2049.0,
    "2^-25": 2.0**-25,
    "2**-24": 2.0**-24,
    "-2^2": -4.0,
    "2^2^3": 256.0,
    "1/3": 1 / 3,
    "1 - 2 - 3": -4.0,
    "8/2/2*3": 6.0,
    "65504+16-1e-3": 65520 - 1e-3,
    ".5": 0.5,
    "3.": 3.0,
    "−1.5×2": -3.0,
    "-0": -0.0,
    "1e999": math.inf,
    "-Infinity": -math.inf,
    "1E-8": 1e-8,
    "10^-8": 1e-8,
    "--1": 1.0,
    "nan": math.nan,
    "inf-inf": math.nan,
}
UNREADABLE = [
    "",
    "  ",
    "abc",
    "1/0",
    "2^-1e9",
    "1e",
    "2^0.5",
    "1+",
    "0x10",
    "1,5",
    "1 2",
    "*2",
    "9" * 90,
]
UNREADABLE += ["0^-1", "2^nan", "٣", "e", "."]


def same(a, b):
    return (math.isnan(a) and math.isnan(b)) or (a, math.copysign(1, a)) == (b, math.copysign(1, b))


@pytest.mark.parametrize("text", READABLE)
def test_a_typed_number_is_read(text):
    assert same(read_number(text), READABLE[text])


@pytest.mark.parametrize("text", UNREADABLE)
def test_anything_else_gets_a_sentence(text):
    assert not is_readable(text)
    with pytest.raises(ValueError, match=r"Type a number such as 0\.1, 2048\+1 or 2\^-25\.$"):
        read_number(text)


@given(st.floats())
def test_a_printed_number_is_read_back(x):
    assert same(read_number(print_number(x)), x)


def test_the_view_reads_numbers_as_python_does():
    texts = [*READABLE, *UNREADABLE, "1/3+1/7", "0.1^7", "3^-5", "5^2^-1", "inf*0", "7^400"]
    source = (FOLDER / "numbers.js").read_text(encoding="utf-8")
    read = "texts.map((t) => { try { return readNumber(t); } catch (e) { return e.message; } })"
    for text, seen in zip(texts, evaluate(source, read, texts=texts), strict=True):
        if is_readable(text):
            assert same(float(seen), read_number(text)), text
        else:
            with pytest.raises(ValueError, match=re.escape(seen)):
                read_number(text)
