"""Errors of dtype: precision that is not what the loop's author thinks it is."""

# ruff: noqa: D401  (the docstring of a rule is the "why" of its findings)

from __future__ import annotations

from collections.abc import Iterator

from mptutor.audit.events import (
    AutocastOff,
    Backward,
    EnterAutocast,
    GradOf,
    Scale,
    ScalerMade,
    Unscale,
)
from mptutor.audit.events_forward import Call, Forward
from mptutor.audit.rules import (
    CONSEQUENCE,
    NOTE,
    REMARK,
    SUSPECT,
    WRONG,
    Evidence,
    Sighting,
    rule,
    seen_at,
)

Sightings = Iterator[Sighting]
HALF = {"float16", "bfloat16"}


@rule(
    WRONG,
    lesson=4,
    cause="The parameters themselves are FP16, and so are their gradients: GradScaler needs FP32 "
    "parameters.",
    repair="model.float()   # not model.half()\nwith torch.autocast(device_type, torch.float16):\n"
    "    loss = ...",
)
def half_parameters_with_scaler(evidence: Evidence) -> Sightings:
    """FP16 gradients cannot be divided by the scale without losing what the scale had saved."""
    for unscale in evidence.of(Unscale):
        if "float16" in unscale.grad_dtypes:
            raised = f"; it raised: {unscale.error}" if unscale.error else ""
            dtypes = "/".join(unscale.grad_dtypes)
            yield seen_at(unscale, f"gradients of {unscale.optimizer} are {dtypes}{raised}")


@rule(
    SUSPECT,
    lesson=7,
    cause="A GradScaler is used with BF16, which needs none: its exponents are FP32's.",
    repair="scaler = torch.amp.GradScaler(device, enabled=dtype is torch.float16)",
)
def scaler_with_bf16(evidence: Evidence) -> Sightings:
    """It costs time, may skip steps, and hides that nothing here can underflow."""
    ran: set[str] = set()
    for event in evidence.of(Forward, Call, Backward):
        match event:
            case Forward() if event.learns:
                ran |= {v.dtype for v in event.outputs} & HALF
            case Call() if event.learns and event.output is not None:
                ran |= {event.output.dtype} & HALF
            case Backward():
                dtypes, ran = ran, set()
                if event.scaler and dtypes == {"bfloat16"} and event.scale != 1:
                    yield seen_at(event, "the forward pass ran in bfloat16 and in no other 16 bits")


@rule(
    WRONG,
    lesson=7,
    cause="AMP is silently off: it was asked for on a device that the tensors are not on.",
    repair="device_type = next(model.parameters()).device.type\n"
    "torch.autocast(device_type, dtype)\ntorch.amp.GradScaler(device_type)",
)
def amp_off(evidence: Evidence) -> Sightings:
    """No error, a warning at most: everything runs in FP32."""
    for off in evidence.of(AutocastOff):
        yield seen_at(off, f'autocast("{off.device}") turned itself off')
    for made in evidence.of(ScalerMade):
        if made.asked and not made.enabled:
            yield seen_at(made, f'GradScaler("{made.device}") turned itself off')
    yield from _autocast_for_another_device(evidence)


def _autocast_for_another_device(evidence: Evidence) -> Sightings:
    on = {e.device for e in evidence.of(EnterAutocast) if e.enabled}
    inside = [e for e in evidence.of(Forward, Call) if e.depth and not e.error]
    if on and inside and not any(e.autocast for e in evidence.of(Forward, Call)):
        elsewhere = [e for e in inside if e.device not in on and not _makes_tensors(e)]
        for event in elsewhere[:1]:
            where = f"autocast is on for {'/'.join(sorted(on))}, the tensors are on {event.device}"
            yield seen_at(event, where)


def _makes_tensors(event: Forward | Call) -> bool:
    return not event.inputs


@rule(
    SUSPECT,
    lesson=7,
    cause="A GradScaler is used, but nothing runs in 16 bits: autocast was never entered.",
    repair="with torch.autocast(device_type, dtype=torch.float16):\n    loss = ...",
)
def scaler_without_autocast(evidence: Evidence) -> Sightings:
    """It is FP32 training with a scaler: right, and no faster."""
    scale = next(evidence.of(Scale), None)
    outputs = [v.dtype for f in evidence.of(Forward) if f.learns for v in f.outputs]
    all_fp32 = set(outputs) == {"float32"}
    asked_for = any(e.enabled for e in evidence.of(EnterAutocast)) or any(evidence.of(AutocastOff))
    if scale is not None and scale.scale != 1 and all_fp32 and not asked_for:
        yield seen_at(scale, f"{len(outputs)} outputs of modules, all of them float32")


@rule(
    WRONG,
    lesson=7,
    cause="A forward pass runs in another thread, where autocast is off: it is on only in the "
    "thread that entered it.",
    repair="def work(x):\n    with torch.autocast(device_type, dtype):   # inside the thread\n"
    "        return model(x)",
)
def autocast_in_another_thread(evidence: Evidence) -> Sightings:
    """Autocast's state belongs to a thread."""
    for forward in evidence.of(Forward):
        if forward.main_in_autocast and not forward.autocast:
            dtypes = "/".join(v.dtype for v in forward.outputs) or "nothing"
            yield seen_at(forward, f"{forward.layer} gave {dtypes} there")


@rule(
    WRONG,
    lesson=7,
    cause="A layer or product gets tensors of two dtypes.",
    repair="with torch.autocast(device_type, dtype):   # as in training\n    output = model(x)",
)
def dtype_mismatch(evidence: Evidence) -> Sightings:
    """Often autocast had hidden it, and this call is outside: evaluation, export, a helper."""
    for event in evidence.of(Forward, Call):
        if event.error and not _unsafe(event.error) and not _in_backward(event):
            dtypes = {v.dtype for v in event.inputs} & {"float32", *HALF}
            weight = event.weight if isinstance(event, Forward) else None
            dtypes |= {weight.dtype} if weight is not None else set()
            if len(dtypes) > 1:
                what = event.layer if isinstance(event, Forward) else f"{event.name}()"
                outside = "" if event.autocast else ", outside autocast"
                both = " and ".join(sorted(dtypes))
                yield seen_at(event, f"{what} got {both}{outside}: {event.error}")


def _in_backward(event: Forward | Call) -> bool:
    return isinstance(event, Call) and event.in_backward


@rule(
    WRONG,
    lesson=7,
    cause="A custom autograd.Function meets two dtypes in its backward, which runs outside "
    "autocast.",
    repair="@staticmethod\n@torch.amp.custom_fwd(device_type=device_type)\n"
    "def forward(ctx, *inputs): ...\n\n@staticmethod\n"
    "@torch.amp.custom_bwd(device_type=device_type)\ndef backward(ctx, grad): ...",
)
def custom_function_dtype(evidence: Evidence) -> Sightings:
    """It saved FP32 tensors in forward and is handed a 16-bit gradient."""
    for backward in evidence.of(Backward, GradOf):
        error = backward.error or ""
        if "dtype" in error or "scalar type" in error:
            yield seen_at(backward, f"it raised: {error}", site=backward.error_site)


@rule(
    SUSPECT,
    lesson=7,
    cause="binary_cross_entropy under autocast: CUDA refuses it, the CPU runs it in FP32.",
    repair="loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, target)",
)
def unsafe_loss(evidence: Evidence) -> Sightings:
    """Its gradient leaves FP16's range near 0 and 1; the form on logits does not."""
    for call in evidence.of(Call):
        if call.name == "binary_cross_entropy" and (call.autocast or _unsafe(call.error)):
            refused = f"it raised: {call.error}" if call.error else "it ran here, on the CPU"
            yield seen_at(call, refused, level=WRONG if call.error else None)


def _unsafe(error: str | None) -> bool:
    return error is not None and "unsafe to autocast" in error


@rule(
    NOTE,
    lesson=7,
    cause="The loss itself is in 16 bits.",
    repair="loss = loss_function(output.float(), target)",
    order=CONSEQUENCE,
)
def half_loss(evidence: Evidence) -> Sightings:
    """It has three digits at most, and in FP16 backward begins with the scale as an FP16 number."""
    for scale in evidence.of(Scale):
        if "float16" in scale.dtypes:
            s = scale.scale or scale.init_scale
            seen = f"backward begins with {s:g} in FP16"
            if s >= 65520:
                seen += ", which is inf: this step is skipped whatever the gradients are"
            yield seen_at(scale, seen)
    for backward in evidence.of(Backward):
        half = HALF & set(backward.dtypes)
        if half and not backward.scaler:
            yield seen_at(backward, f"backward begins in {half.pop()}")


@rule(
    NOTE,
    lesson=7,
    cause="Evaluation runs without autocast.",
    repair="with torch.no_grad(), torch.autocast(device_type, dtype):   # as in training\n"
    "    output = model(x)",
)
def eval_without_autocast(evidence: Evidence) -> Sightings:
    """It's slower and gives other numbers than training saw; with 16-bit weights it raises."""
    roots = [e for e in evidence.of(Forward) if e.root and not e.error]
    trained = {e.name: e.autocast for e in roots if e.training and e.autocast}
    for forward in roots:
        plain = not forward.training and not forward.autocast
        if plain and forward.name in trained and any(v.dtype == "float32" for v in forward.outputs):
            yield seen_at(forward, f"trained under autocast({trained[forward.name]}), here FP32")


@rule(
    NOTE,
    lesson=7,
    cause="Some operations ran in 16 bits here that CUDA's autocast runs in FP32.",
    repair="mptutor.policy.observe('cuda')   # the list for CUDA, of the torch installed",
    order=REMARK,
)
def cpu_policy_differs(evidence: Evidence) -> Sightings:
    """An overflow seen on the CPU need not happen on a GPU, and the reverse."""
    fp32_on_cuda = set(evidence.trace.machine.get("fp32_on_cuda", ()))
    differing: dict[str, Call] = {}
    for call in evidence.of(Call):
        half = call.output is not None and call.output.dtype in HALF
        if half and call.device == "cpu" and call.autocast and call.name in fp32_on_cuda:
            differing.setdefault(call.name, call)
    if differing:
        yield seen_at(next(iter(differing.values())), ", ".join(sorted(differing)))


@rule(
    NOTE,
    lesson=7,
    cause="rms_norm gives FP32 under CUDA's autocast in this torch, and what follows is FP32 too.",
    repair="y = torch.nn.functional.rms_norm(x, shape, weight).to(x.dtype)",
    order=REMARK,
)
def policy_depends_on_version(evidence: Evidence) -> Sightings:
    """It joined the FP32 list in torch 2.12 (pytorch#188955); before, it kept its input's dtype."""
    for call in evidence.of(Call):
        if call.name == "rms_norm" and call.autocast and call.inputs and call.output is not None:
            dtype_in, dtype_out = call.inputs[0].dtype, call.output.dtype
            if dtype_in in HALF and dtype_out == "float32":
                yield seen_at(call, f"{dtype_in} went in, float32 came out")
