"""The policy explorer against torch: every chain is also run; its view against the model."""

import json

import pytest
import torch
import torch.nn.functional as F

from mptutor.policy import cuda_policy, observe
from mptutor.policy.observe import OpPolicy, Outcome, PolicyTable
from mptutor.widgets import PolicyExplorer
from mptutor.widgets.policy_explorer import CHOICES, LONGEST, PRESETS
from tests.javascript import evaluate

pytestmark = pytest.mark.lesson07

SOURCE = PolicyExplorer._esm
FP16, FP32 = torch.float16, torch.float32


def steps(figure):
    return [(step.op, step.cuda, step.cpu) for step in figure.result.steps]


# -- a chain gives the dtypes that running it gives ------------------------------------------------

W = torch.randn(8, 8)

#: How the ops of a chain are called on a tensor of 8x8; the second operand is `y`.
CALLS = {
    "linear": lambda x, y: F.linear(x, W),
    "matmul": lambda x, y: torch.matmul(x, y),
    "softmax": lambda x, y: x.softmax(-1),
    "layer_norm": lambda x, y: F.layer_norm(x, (8,)),
    "gelu": lambda x, y: F.gelu(x),
    "add": lambda x, y: torch.add(x, y),
    "exp": lambda x, y: x.exp(),
    "mse_loss": lambda x, y: F.mse_loss(x, y, reduction="none"),
}


@pytest.mark.parametrize("start", CHOICES["start"])
@pytest.mark.parametrize("other", CHOICES["other"])
@pytest.mark.parametrize(
    "chain",
    [
        ("linear", "softmax", "matmul"),
        ("layer_norm", "linear", "gelu", "linear", "add"),
        ("gelu", "exp", "add", "mse_loss"),
        ("add", "add", "linear", "add", "gelu"),
    ],
)
def test_a_chain_is_what_torch_does(chain, start, other):
    figure = PolicyExplorer(chain=chain, start=start, other=other)
    assert [step.cpu for step in figure.result.steps] == run(chain, start, other)
    with cuda_policy():
        assert [step.cuda for step in figure.result.steps] == run(chain, start, other)


def run(chain, start, other):
    x, seen = torch.rand(8, 8, dtype=FP32 if start == "float32" else FP16), []
    with torch.autocast("cpu", FP16):
        for op in chain:
            x = CALLS[op](x, torch.rand_like(x) if other == "same" else torch.rand(8, 8))
            seen.append(str(x.dtype).removeprefix("torch."))
    return seen


def test_the_tables_are_the_observed_ones():
    figure = PolicyExplorer()
    cuda, cpu = observe("cuda"), observe("cpu")
    rows = {row["op"]: row for row in figure.tables["ops"]}
    assert list(rows) == [entry.op for entry in cuda]
    for entry in cuda:
        row = rows[entry.op]
        assert row["rules"] == {"cuda": entry.rule, "cpu": cpu[entry.op].rule}
        assert tuple(row["cuda"]) == entry.outcomes()
        assert tuple(row["cpu"]) == cpu[entry.op].outcomes()
    assert figure.tables["torch"] == torch.__version__


def test_the_goal_of_the_lesson_can_be_reached():
    figure = PolicyExplorer(op="linear", chain=["linear"])
    figure.chain = ["linear", "softmax", "matmul"]
    assert [cuda == cpu for _, cuda, cpu in steps(figure)] == [True, False, True]


# -- setting the traits ----------------------------------------------------------------------------


def test_a_chain_breaks_off_at_an_op_that_raises():
    figure = PolicyExplorer(chain=["linear", "binary_cross_entropy", "relu"])
    assert steps(figure)[1:] == [
        ("binary_cross_entropy", "raises", "float32"),
        ("relu", "", "float32"),
    ]
    assert figure.describe().endswith(
        "the chain breaks off at binary_cross_entropy on CUDA and comes out float32 on the CPU."
    )


def test_searching():
    figure = PolicyExplorer(search="norm")
    assert {"layer_norm", "batch_norm", "linalg.vector_norm"} <= set(figure.result.matches)
    figure.search = "  NORM layer "
    assert set(figure.result.matches) == {"layer_norm", "native_layer_norm"}
    figure.search = "losses"
    assert "binary_cross_entropy" in figure.result.matches
    figure.search = ""
    assert len(figure.result.matches) == len(figure.tables["ops"])


def test_every_op_has_a_sentence_and_can_be_chained():
    figure = PolicyExplorer()
    for row in figure.tables["ops"]:
        figure.op = row["op"]
        figure.chain = [row["op"]]
        for figure.start in CHOICES["start"]:
            for figure.other in CHOICES["other"]:
                assert figure.result.problem == ""
                assert figure.describe().startswith(f"{row['op']} ")
                assert "→" in figure.picture()


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_in_the_table(name):
    assert PolicyExplorer(chain=PRESETS[name]).result.problem == ""


@pytest.mark.parametrize(
    ("position", "starts"),
    [
        ({"op": "sofmax"}, "There is no op “sofmax” in the table of "),
        ({"chain": ["linear", "nothing"]}, "There is no op “nothing” in the table of "),
        ({"chain": ["relu"] * 13}, "The chain has 13 ops; shown are the first 12."),
        ({"search": "xyz"}, "No op or family of the table has “xyz” in its name."),
    ],
)
def test_what_makes_no_sense_gets_a_sentence(position, starts):
    figure = PolicyExplorer(**position)
    assert figure.result.problem.startswith(starts) and figure.describe() == figure.result.problem
    assert len(figure.result.steps) <= LONGEST and figure.picture()


def test_choices_and_tables_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"start is 'float64'; allowed are float32, 16-bit"):
        PolicyExplorer(start="float64")
    with pytest.raises(ValueError, match=r"other is ''; allowed are same, float32"):
        PolicyExplorer(other="")
    low, wide = Outcome(torch.bfloat16), Outcome(FP32)
    table = PolicyTable("cpu", torch.bfloat16, "x", (OpPolicy("linear", "f", low, wide, low),))
    with pytest.raises(ValueError, match=r"cpu: is a table of torch.bfloat16"):
        PolicyExplorer(cpu=table)
    with pytest.raises(ValueError, match=r"cuda: got a table of 'cpu'"):
        PolicyExplorer(cuda=table)


def test_the_state_is_small():
    figure = PolicyExplorer(chain=["binary_cross_entropy"] * LONGEST)
    assert len(json.dumps(figure.state(), allow_nan=False)) < 200_000


# -- the view computes what the model computes -----------------------------------------------------

POSITIONS = [
    {},
    {"op": "softmax", "chain": ["linear", "softmax", "matmul"]},
    {"start": "16-bit", "other": "float32", "chain": PRESETS["transformer MLP"]},
    {"other": "float32", "chain": [*PRESETS["probabilities"], "mm", "add"]},
    {"search": "NORM  layer ", "op": "layer_norm", "chain": ["fft.rfft", "exp"]},
    {"start": "16-bit", "chain": ["nn.GRU", "relu"], "op": "nn.GRU"},
    {"other": "float32", "chain": ["mm", "linalg.cross", "relu"]},
    {"search": "xyz"},
    {"op": "nothing"},
    {"chain": ["relu", "nothing", "exp"]},
    {"chain": ["relu"] * 14, "search": "loss"},
]


def test_the_view_shows_and_says_what_the_model_does():
    figures = [PolicyExplorer(**position) for position in POSITIONS]
    tables = figures[0].tables
    states = [{k: v for k, v in f.state().items() if k != "tables"} for f in figures]
    script = """asked.map((state) => {
      const { selected, ...view } = explore({ ...state, tables });
      return { ...view, op: selected.op, said: sentence({ ...view, selected }, tables.does) };
    })"""
    for figure, view in zip(
        figures, evaluate(SOURCE, script, asked=states, tables=tables), strict=True
    ):
        result = figure.result
        assert view["problem"] == result.problem
        assert tuple(view["matches"]) == result.matches
        assert view["op"] == result.op
        assert [tuple(step.values()) for step in view["steps"]] == steps(figure)
        assert view["said"] == figure.describe()


def test_keys_go_through_what_is_found():
    tables = PolicyExplorer().tables
    script = """[["ArrowDown", "linear"], ["ArrowUp", "mm"], ["PageDown", "mm"], ["Enter", "mm"],
      ["Escape", "mm"], ["x", "mm"]].map(([key, op]) =>
        changeByKey(key, { search: "", op, chain: [], start: "float32", other: "same", tables }))"""
    ops = [row["op"] for row in tables["ops"]]
    after = ops[ops.index("linear") + 1]
    assert evaluate(SOURCE, script, tables=tables) == [
        {"op": after},
        {"op": "mm"},
        {"op": ops[8]},
        {"add": "mm"},
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("search", "before", "after"),
    [
        ("mm", "addmm", "mm"),
        ("NORM", "layer_norm", "norm"),
        ("layer", "layer_norm", "layer_norm"),
        ("sof", "mm", "soft_margin_loss"),
        ("targets", "mm", "cross_entropy, soft targets"),
        ("xyz", "mm", None),
    ],
)
def test_typing_leads_to_an_op(search, before, after):
    state = PolicyExplorer(op=before).state()
    change = evaluate(SOURCE, "searched(state, search)", state=state, search=search)
    assert change == ({"search": search, "op": after} if after else {"search": search})
