"""What the audit writes down of a loop: one small record for each thing that happened, in order.

A record holds numbers, strings, shapes and names, never a tensor. So nothing the loop made is kept
alive, a trace can be written to a file and read back, and the rules that judge it are pure
functions, tried in the tests on traces written by hand.

Optimizers and scalers appear by name: ``AdamW1``, ``GradScaler1``. A number that was still on the
device when the record was made is None until the step ends, when all of them are read at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from mptutor.audit.site import NOWHERE, Site


@dataclass(kw_only=True)
class Event:
    """What every record has: optimizer steps finished before it, the user's line, the thread."""

    step: int = 0
    site: Site = NOWHERE
    thread: int = 0


# -- GradScaler ----------------------------------------------------------------------------------


@dataclass(kw_only=True)
class ScalerMade(Event):
    """A GradScaler was built. It may have switched itself off although it was asked for."""

    scaler: str
    device: str
    asked: bool
    enabled: bool


@dataclass(kw_only=True)
class Scale(Event):
    """`scaler.scale(loss)`."""

    scaler: str
    dtypes: list[str]
    init_scale: float
    scale: float | None = None


@dataclass(kw_only=True)
class Unscale(Event):
    """`scaler.unscale_(optimizer)`, by the user or from within `scaler.step`."""

    scaler: str
    optimizer: str
    within_step: bool
    grad_dtypes: list[str]
    error: str | None = None


@dataclass(kw_only=True)
class ScalerStep(Event):
    """`scaler.step(optimizer)`. `stepped` is False if the optimizer was not called."""

    scaler: str
    optimizer: str
    grads: int
    stepped: bool = False
    found_inf: float | None = None
    error: str | None = None

    @property
    def took_place(self) -> bool:
        """Whether weights were updated: fused optimizers are called, then skip by themselves."""
        return self.stepped and not self.found_inf


@dataclass(kw_only=True)
class Update(Event):
    """`scaler.update()`; `given` if the user handed it a new scale."""

    scaler: str
    given: bool
    before: float | None = None
    after: float | None = None
    error: str | None = None


# -- autocast ------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class AutocastOff(Event):
    """An autocast that was asked for switched itself off, with no more than a warning."""

    device: str


@dataclass(kw_only=True)
class EnterAutocast(Event):
    """`with autocast(...)` was entered; `region` numbers the outermost blocks of a thread."""

    device: str
    dtype: str
    enabled: bool
    depth: int
    region: int


# -- gradients -----------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Backward(Event):
    """A backward pass that put gradients into parameters.

    `scaler` is the one whose `scale()` made the root, `factor` a multiplication by hand found
    there. `fed` says for each optimizer whether its gradients are "fresh" or were "added" to older
    ones, and `before` how large those were. `graphs_alive` counts roots of earlier passes that
    something still keeps.
    """

    dtypes: list[str]
    scaler: str | None = None
    factor: float | None = None
    scale: float | None = None
    autocast: str | None = None
    region: int = 0
    lo: float | None = None
    hi: float | None = None
    fed: dict[str, str] = field(default_factory=dict)
    before: dict[str, float | None] = field(default_factory=dict)
    graphs_alive: int = 0
    error: str | None = None
    error_site: Site | None = None

    @property
    def loss_is_finite(self) -> bool:
        """False if the root was seen to be inf or NaN."""
        return self.lo is None or (math.isfinite(self.lo) and math.isfinite(self.hi))


@dataclass(kw_only=True)
class GradOf(Event):
    """`torch.autograd.grad`: gradients handed back, none put into parameters."""

    scaler: str | None = None
    create_graph: bool = False
    error: str | None = None
    error_site: Site | None = None


@dataclass(kw_only=True)
class ZeroGrad(Event):
    """Gradients of these optimizers were cleared, perhaps by the optimizer's own step."""

    optimizers: list[str]
    within_step: bool = False


@dataclass(kw_only=True)
class Clip(Event):
    """Gradients were clipped, by torch.nn.utils or by hand (`limit` is None then).

    `shared` names for an optimizer the others that hold all its clipped gradients as well.
    """

    how: str
    optimizers: list[str]
    shared: dict[str, list[str]] = field(default_factory=dict)
    limit: float | None = None
    norm: float | None = None


@dataclass(kw_only=True)
class GradientEdit(Event):
    """The user's code changed gradients in place: by a factor, or with `adds` by another term."""

    how: str
    optimizers: list[str]
    adds: bool = False


# -- steps ---------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class OptimizerStep(Event):
    """An optimizer updated its weights; `through` names the scaler that called it, if one did.

    Of a sample of 16-bit weights, `asked` counts those with a gradient and `still` those that kept
    every bit all the same; `state_asked` and `state_still` say that of 16-bit optimizer state, by
    the name of the state.
    `edited` means that the gradients are not as backward left them.
    """

    optimizer: str
    algorithm: str
    through: str | None
    dtypes: list[str]
    lr: float
    eps: float | None
    depth: int
    region: int
    cache: bool
    edited: bool
    calls_seen: bool
    asked: int | None = None
    still: int | None = None
    state_asked: dict[str, int] = field(default_factory=dict)
    state_still: dict[str, int] = field(default_factory=dict)
    weights_finite: bool | None = None


@dataclass(kw_only=True)
class SchedulerStep(Event):
    """A learning rate scheduler moved on."""

    optimizer: str


@dataclass(kw_only=True)
class StepEnded(Event):
    """An optimizer step, or a skipped one, is over. `memory_bytes` is the accelerator's."""

    memory_bytes: int | None = None


# -- checkpoints, compilation --------------------------------------------------------------------


@dataclass(kw_only=True)
class StateTaken(Event):
    """`scaler.state_dict()`."""

    scaler: str


@dataclass(kw_only=True)
class StateLoaded(Event):
    """`load_state_dict` of a scaler or an optimizer; `what` is "scaler" or "optimizer"."""

    what: str
    name: str


@dataclass(kw_only=True)
class Saved(Event):
    """`torch.save`; `found` lists "optimizer", "scaler" for the states in what was saved."""

    found: list[str]


@dataclass(kw_only=True)
class CompileAsked(Event):
    """`torch.compile` was called: what it compiles is seen from outside only."""
