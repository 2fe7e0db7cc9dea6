"""Figures on one page: in JupyterLab the styles of all that were opened are there at once."""

import pytest

from mptutor.widgets import (
    AccumulationExplorer,
    BitExplorer,
    ForecastExplorer,
    Fp8Explorer,
    PolicyExplorer,
    ScaleExplorer,
    ScalerSimulator,
    StepDebugger,
    UpdateGrid,
)
from mptutor.widgets import training_race as race
from tests.browser.figures import show_alone

pytestmark = pytest.mark.browser

FIGURES = {
    AccumulationExplorer: {"accumulator": "FP16"},
    BitExplorer: {},
    ForecastExplorer: {},
    Fp8Explorer: {"tensor": "activations with outlier"},
    PolicyExplorer: {"chain": ["linear", "softmax"]},
    ScaleExplorer: {},
    ScalerSimulator: {"spikes": [60]},
    StepDebugger: {"stop": 5},
    UpdateGrid: {},
}

#: What every element of the figure looks like: {number and name: {property: value}}.
LOOKS = """() => Object.fromEntries(
  [...document.querySelectorAll(".mpt, .mpt *")].map((node, i) => {
    const style = getComputedStyle(node);
    const looks = [...style].map((name) => [name, style.getPropertyValue(name)]);
    return [`${i} ${node.getAttribute("class")}`, Object.fromEntries(looks)];
  }))"""


def others_styles(figure) -> str:
    return "\n".join([*(str(other._css) for other in FIGURES if other is not figure), race._css()])


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.__name__)
def test_a_figure_looks_the_same_beside_all_others(open_page, figure):
    page = open_page(offline=True)
    show_alone(page, figure(**FIGURES[figure]))
    alone = page.evaluate(LOOKS)
    page.add_style_tag(content=others_styles(figure))
    together = page.evaluate(LOOKS)
    changed = {
        (name, style, value, together[name][style])
        for name, looks in alone.items()
        for style, value in looks.items()
        if value != together[name][style]
    }
    assert len(alone) > 30 and not changed


def test_a_race_looks_the_same_beside_all_figures(open_page):
    page = open_page(offline=True)
    one = race.TrainingRace()
    page.set_content(
        f'<!doctype html><html lang="en"><title>Race</title><style>{race._css()}</style>'
        f'<main class="mpt-race">{one._figure.value}</main>'
    )
    looks = LOOKS.replace(".mpt, .mpt *", ".mpt-race *")
    alone = page.evaluate(looks)
    page.add_style_tag(content=others_styles(None))
    assert len(alone) > 5 and page.evaluate(looks) == alone
