"""The picture of dtypes: a cell for everything, and words that say what the cells do."""

import pytest

from mptutor.experiments.dtype_trace import DtypeTraceResult, LayerDtypes
from mptutor.plots import plot_dtype_trace

pytestmark = pytest.mark.lesson07

RESULT = DtypeTraceResult(
    "net",
    "cuda",
    "float16",
    "cpu",
    "float32",
    (
        LayerDtypes("embed", "Embedding", "int64", "float32", "float32", "float32", "float32"),
        LayerDtypes("head", "Linear", "float32", "float32", "float16", "float16", "float32"),
        LayerDtypes("relu", "ReLU", "float16", None, "float16", None, None),
    ),
)


@pytest.fixture(scope="module")
def picture():
    return plot_dtype_trace(RESULT)


def test_every_dtype_has_its_cell(picture):
    axes = picture.axes[0]
    cells = {
        (int(y), int(x)): text.get_text() for text in axes.texts for x, y in [text.get_position()]
    }
    assert [cells[0, x] for x in range(5)] == ["int64", *["float32"] * 4]
    assert [cells[1, x] for x in range(5)] == [
        "float32",
        "float32",
        "float16",
        "float16",
        "float32",
    ]
    assert [cells[2, x] for x in range(5)] == ["float16", "–", "float16", "–", "–"]
    assert [cells[3, x] for x in range(5)] == ["–", "–", "float32", "–", "–"]
    assert len(cells) == 20


def test_every_row_and_column_is_named(picture):
    axes = picture.axes[0]
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows == ["embed  Embedding", "head  Linear", "relu  ReLU", "loss"]
    assert len(axes.get_xticklabels()) == 5


def test_the_words_say_what_the_cells_do(picture):
    assert picture.get_suptitle() == "The weights are float32; 2 of 3 layers put out float16"
    assert "embed float32; head float16; relu float16; loss float32" in picture.alt
