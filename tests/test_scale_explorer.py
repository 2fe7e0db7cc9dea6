"""The scale explorer's model against casts and the census; its view against the model."""

import json

import pytest
import torch

from mptutor.census import take_census
from mptutor.experiments.gradient_census import GradientCensusResult, LayerCensus
from mptutor.formats import FP16
from mptutor.widgets.scale_explorer import FORMATS, HIGHEST, LOWEST, ScaleExplorer, percent
from tests.javascript import evaluate

pytestmark = [pytest.mark.lesson03, pytest.mark.lesson05]

KINDS = ("all", "outputs", "weights")
NAMES = [fmt.name for fmt in FORMATS]


def made_up(seed, layers=3):
    """Return gradients with ties, zeros and numbers at every threshold among them."""
    generator = torch.Generator().manual_seed(seed)

    def drawn():
        x = torch.randn(3000, generator=generator) * torch.exp2(
            6 * torch.randn(3000, generator=generator) - 18
        )
        x[::50] = 0
        x[1::50] = 2.0 ** torch.randint(-45, 0, (60,), generator=generator).float()
        x[2::50] = 65520 * 2.0 ** torch.randint(-45, -16, (60,), generator=generator).float()
        return x

    return {f"layer{i}": (drawn(), drawn()) for i in range(1, layers + 1)}


def counted(gradients, network="made up", epochs=0):
    layers = tuple(
        LayerCensus(name, take_census(outputs), take_census(weights))
        for name, (outputs, weights) in gradients.items()
    )
    return GradientCensusResult(network, "noise", "cpu", epochs, 0, 1, layers)


GRADIENTS = made_up(0)


@pytest.fixture
def explorer():
    return ScaleExplorer(counted(GRADIENTS), counted(made_up(1, 2), "another", 2))


def values(kind, layer):
    rows = [pair for name, pair in GRADIENTS.items() if layer in ("all", name)]
    parts = {"all": (0, 1), "outputs": (0,), "weights": (1,)}[kind]
    return torch.cat([pair[i] for pair in rows for i in parts])


# -- what is shown ---------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", ["all", "layer2"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_scale_counts_what_a_cast_to_fp16_does(explorer, kind, layer):
    explorer.kind, explorer.layer = kind, layer
    x = values(kind, layer)
    for power in range(LOWEST, HIGHEST + 1):
        explorer.power = power
        cast = (x.double() * 2.0**power).half()
        result = explorer.result
        subnormal = (cast != 0) & (cast.abs() < torch.finfo(torch.float16).smallest_normal)
        assert result.zeros == (x == 0).sum()
        assert result.flushed == ((cast == 0) & (x != 0)).sum()
        assert result.subnormal == subnormal.sum()
        assert result.overflowed == cast.isinf().sum()
        zones = (result.flushed, result.subnormal, result.normal, result.overflowed)
        assert sum(zones) == result.nonzero == (x != 0).sum()


def test_the_window_is_safe_and_its_neighbours_are_not(explorer):
    window = explorer.result.window
    for fmt in (FP16,):
        x = values("all", "all").double()
        lost = {s: (((x * s).half() == 0) & (x != 0)).sum() for s in (window.smallest,)}
        lost[window.smallest / 2] = (((x * window.smallest / 2).half() == 0) & (x != 0)).sum()
        allowed = 0.001 * explorer.result.nonzero
        assert lost[window.smallest] <= allowed < lost[window.smallest / 2], fmt
        assert not (x * window.largest).half().isinf().any()
        assert (x * window.largest * 2).half().isinf().any()


def test_gradscaler_looks_at_the_whole_network(explorer):
    for power in range(LOWEST, HIGHEST + 1):
        explorer.power, explorer.layer = power, "layer1"
        overflows = (values("all", "all").double() * 2.0**power).half().isinf().any()
        assert explorer.result.skips == overflows
    explorer.fmt = "FP8_E4M3"
    assert not explorer.result.skips, "E4M3 has no infinity that a scaler could find"


def test_shares_are_never_rounded_to_nothing_or_all():
    assert [percent(*p) for p in ((0, 9), (9, 9), (1, 9), (0, 0))] == ["0", "100", "11.11", "0"]
    assert percent(1, 10**6) == "less than 0.001"
    assert percent(10**6 - 1, 10**6) == "more than 99.99"


# -- setting the traits ----------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_position_has_a_sentence_and_a_picture(explorer, kind, fmt):
    explorer.kind, explorer.fmt = kind, fmt
    for network in explorer.networks:
        explorer.network = network
        for layer in ("all", *(row["name"] for row in explorer.networks[network])):
            explorer.layer = layer
            for power in (LOWEST, 0, HIGHEST):
                explorer.power = power
                assert explorer.result.problem == ""
                assert explorer.describe().endswith(".")
        assert explorer.picture().startswith("<svg")


def test_positions_that_make_no_sense_get_a_sentence(explorer):
    explorer.power = 99
    assert explorer.result.problem == "power is 99; allowed are -20 to 40. Shown is 2⁴⁰."
    assert explorer.result.scale == 2.0**HIGHEST
    explorer.power, explorer.layer = 0, "layer3"
    explorer.network = "another, after 2 epochs"
    assert explorer.describe().endswith("has no layer layer3; shown are all its layers.")
    assert explorer.picture().startswith("<svg")


def test_choices_that_do_not_exist_are_refused(explorer):
    with pytest.raises(ValueError, match="fmt is 'FP32'; allowed are FP16, BF16"):
        explorer.fmt = "FP32"
    with pytest.raises(ValueError, match="kind is 'inputs'; allowed are all, outputs, weights"):
        ScaleExplorer(counted(GRADIENTS), kind="inputs")
    with pytest.raises(ValueError, match="network is 'mine'; allowed are made up, before training"):
        explorer.network = "mine"


def test_a_network_without_nonzero_gradients_is_shown_too():
    nothing = counted({"layer1": (torch.zeros(3), torch.zeros(2))})
    explorer = ScaleExplorer(nothing)
    assert explorer.result.zeros == 5 and explorer.describe() and explorer.picture()


def test_the_default_networks_fit_into_the_state():
    explorer = ScaleExplorer()
    assert list(explorer.networks) == [
        "8 sigmoid layers, before training",
        "small CNN, after 1 epoch",
    ]
    assert len(json.dumps(explorer.state(), allow_nan=False)) < 200_000


# -- the view computes what the model computes -----------------------------------------------------


def test_the_view_shows_what_the_model_shows(explorer):
    state = explorer.state()
    asked = [
        {"network": n, "kind": k, "layer": layer, "fmt": fmt, "power": power}
        for n in explorer.networks
        for k in KINDS
        for layer in ("all", "layer2", "layer3")
        for fmt in NAMES
        for power in (-99, LOWEST, -3, 0, 1, 7, 16, HIGHEST)
    ]
    shown = evaluate(
        ScaleExplorer._esm,
        "asked.map((position) => { const v = explore({ ...shared, ...position });"
        " return [v.power, v.counts, v.zeros, v.skips, v.window, sentence(v)]; })",
        asked=asked,
        shared={"networks": state["networks"], "choices": state["choices"]},
    )
    for position, (power, counts, zeros, skips, window, said) in zip(asked, shown, strict=True):
        for name, value in position.items():
            setattr(explorer, name, value)
        result = explorer.result
        assert 2.0**power == result.scale and zeros == result.zeros and skips == result.skips
        zones = (result.flushed, result.subnormal, result.normal, result.overflowed)
        assert tuple(counts.values()) == zones, position
        edges = [2.0 ** float(edge) for edge in window.values()]
        assert edges == [result.window.smallest, result.window.largest], position
        if not result.problem:
            assert said == explorer.describe()


def test_the_view_says_what_gradscaler_would_do(explorer):
    state = explorer.state()
    powers = (0, HIGHEST)
    shared = {name: state[name] for name in state if name not in ("power", "fmt")}
    said = evaluate(
        ScaleExplorer._esm,
        "asked.map((position) => nextSentence(explore({ ...shared, ...position })))",
        asked=[{"power": p, "fmt": fmt} for fmt in ("FP16", "FP8_E4M3") for p in powers],
        shared=shared,
    )
    assert said == [
        "GradScaler would take this step; after 2,000 such steps in a row it would double the "
        "scale to 2¹.",
        "GradScaler would skip this step and halve the scale to 2³⁹.",
        *["FP8_E4M3 has no infinity, so GradScaler would notice nothing."] * 2,
    ]
