"""The decision chart: who is sent where, by whose answers, and that the picture says so."""

from dataclasses import replace

import pytest

from mptutor.choice import Choice, choose
from mptutor.forecast.gpus import GPUS
from mptutor.hardware import report
from mptutor.native import FormatSupport
from mptutor.plots import plot_choice

pytestmark = pytest.mark.lesson12

MILLION = 10**6


def a_machine(bf16, fp16, memory_bytes=None):
    formats = tuple(
        FormatSupport(name, status, "It says so.")
        for name, status in (("FP16", fp16), ("BF16", bf16))
    )
    here = report("cpu")
    return replace(here, device_name="a chip", memory_bytes=memory_bytes, formats=formats)


@pytest.mark.parametrize(
    ("bf16", "fp16", "recipe"),
    [
        ("native", "native", "AMP BF16"),
        ("emulated", "native", "AMP FP16"),
        ("unknown", "native", "AMP FP16"),
        ("absent", "emulated", "FP32"),
    ],
)
def test_a_report_is_sent_to_the_format_that_it_multiplies(bf16, fp16, recipe):
    assert choose(a_machine(bf16, fp16), 70 * MILLION).recipe == recipe


@pytest.mark.parametrize(
    ("gpu", "parameters", "recipe"),
    [
        ("T4", 70 * MILLION, "AMP FP16"),
        ("V100", 70 * MILLION, "AMP FP16"),
        ("A100", 70 * MILLION, "AMP BF16"),
        ("H100", 7000 * MILLION, "FSDP"),
    ],
)
def test_a_data_sheet_answers_too_and_is_named(gpu, parameters, recipe):
    choice = choose(GPUS[gpu], parameters)
    assert choice.recipe == recipe
    assert recipe == "FSDP" or GPUS[gpu].source in choice.questions[1].because


def test_a_model_fits_up_to_sixteen_bytes_a_parameter():
    machine = a_machine("native", "native", memory_bytes=16 * MILLION)
    assert choose(machine, MILLION - 1).recipe == "AMP BF16"
    too_large = choose(machine, MILLION)
    assert too_large.recipe == "FSDP"
    assert [q.answer for q in too_large.questions] == [False, None, None]
    assert len(too_large.table()) == 1


def test_it_survives_json_and_draws_itself():
    choice = choose(a_machine("absent", "emulated"), MILLION)
    assert Choice.from_json(choice.to_json()) == choice
    picture = plot_choice(choice)
    assert picture.get_suptitle() == "a chip: try FP32, and measure"
    assert "No: emulated: It says so." in picture.alt
    boxes = {text.get_text(): text.get_fontweight() for text in picture.axes[0].texts}
    assert boxes["FP32"] == "bold" and boxes["AMP FP16"] == "normal"
    unreached = plot_choice(choose(GPUS["H100"], 10**10))
    assert "Not reached" in unreached.alt


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="parameters: got 0, allowed are positive integers"):
        choose(GPUS["T4"], 0)
