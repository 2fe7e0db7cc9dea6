"""Which recipe to try on which hardware: three questions, asked in order.

The questions are about hardware, so a `mptutor.hardware.report` answers them for the machine at
hand, and a data sheet (`mptutor.forecast.gpus`) for a GPU that isn't there.

*Does it fit?* In mixed precision the weights, their gradients and the optimizer's state stay FP32:
16 bytes a parameter with Adam, before any activation. What doesn't fit must be sharded.
*Does it multiply BF16?* Then BF16: as fast as FP16, with FP32's range, and without a scaler.
*Does it multiply FP16?* Then FP16, with one. Otherwise 16 bits save memory here and no time, and
FP32 is the recipe to beat.

What comes out is a candidate. Whether it is faster *for your model*, and whether it reaches the
same loss, no data sheet knows: measure it, and see that what ran is what you asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mptutor.experiments.result import Cell, Result
from mptutor.hardware import HardwareReport

if TYPE_CHECKING:  # the data sheets come with the whole forecast
    from mptutor.forecast.gpus import Gpu

Ask = Callable[["HardwareReport | Gpu", int], tuple[bool, str]]

#: Where no question leads out.
_OTHERWISE = "FP32"

#: FP32 weight and gradient, 4 bytes each, and Adam's two averages.
BYTES_A_PARAMETER = 16


@dataclass(frozen=True)
class Question:
    """A question of the chart.

    Attributes
    ----------
    text
        To be answered with yes or no.
    leaves_on
        The answer that leads out of the chart: True for yes.
    recipe
        Where it leads.
    answer, because
        What the hardware says; None and ``""`` if the question was not reached.
    """

    text: str
    leaves_on: bool
    recipe: str
    answer: bool | None = None
    because: str = ""


@dataclass(frozen=True)
class Choice(Result):
    """The chart with a machine's answers.

    Attributes
    ----------
    machine
        Whose.
    questions
        In the order in which they are asked.
    recipe
        Where the answers lead.
    otherwise
        Where they lead if no question leads out.
    """

    machine: str
    questions: tuple[Question, ...]
    recipe: str
    otherwise: str

    @property
    def headline(self) -> str:
        """The machine and its candidate."""
        return f"{self.machine}: try {self.recipe}, and measure"

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for every question that was asked."""
        return [
            {"question": q.text, "answer": "yes" if q.answer else "no", "because": q.because}
            for q in self.questions
            if q.answer is not None
        ]


def choose(machine: HardwareReport | Gpu, parameters: int) -> Choice:
    """Put the questions to a machine, for a model of so many parameters trained by Adam.

    Parameters
    ----------
    machine
        What `mptutor.hardware.report` returns, or an entry of `mptutor.forecast.gpus.GPUS`.
    parameters
        How many the model has, 1 or more.

    Raises
    ------
    ValueError
        If `parameters` is below 1.
    """
    if parameters < 1:
        raise ValueError(f"parameters: got {parameters}, allowed are positive integers")
    asked = (
        (Question("Do FP32 weights, gradients and Adam's state fit?", False, "FSDP"), _fits),
        (Question("Does the hardware multiply BF16?", True, "AMP BF16"), _multiplies("BF16")),
        (Question("Does the hardware multiply FP16?", True, "AMP FP16"), _multiplies("FP16")),
    )
    recipe = _OTHERWISE
    questions: list[Question] = []
    for i, (question, ask) in enumerate(asked):
        answer, because = ask(machine, parameters)
        questions.append(replace(question, answer=answer, because=because))
        if answer == question.leaves_on:
            recipe = question.recipe
            questions += [later for later, _ in asked[i + 1 :]]
            break
    return Choice(_name_of(machine), tuple(questions), recipe, _OTHERWISE)


def _name_of(machine: HardwareReport | Gpu) -> str:
    return machine.device_name if isinstance(machine, HardwareReport) else machine.name


def _fits(machine: HardwareReport | Gpu, parameters: int) -> tuple[bool, str]:
    needed = BYTES_A_PARAMETER * parameters
    if machine.memory_bytes is None:
        return True, f"{_amount(needed)} needed; see whether this CPU has them"
    fits = needed < machine.memory_bytes
    memory = _amount(machine.memory_bytes)
    return fits, f"{_amount(needed)} needed, {memory} there; activations not counted"


def _multiplies(fmt: str) -> Ask:
    def ask(machine: HardwareReport | Gpu, parameters: int) -> tuple[bool, str]:
        if isinstance(machine, HardwareReport):
            support = machine.support(fmt)
            return support.status == "native", f"{support.status}: {support.sentence}"
        flops = machine.bf16_flops if fmt == "BF16" else machine.fp16_flops
        rate = f"{flops / 1e12:g} TFLOP/s" if flops else "no units for it"
        return bool(flops), f"{rate} ({machine.source})"

    return ask


def _amount(nbytes: float) -> str:
    return f"{nbytes / 2**30:.3g} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.3g} MiB"
