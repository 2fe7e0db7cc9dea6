"""What people write for exercise 12, wrong and right."""

import math
from contextlib import ExitStack
from statistics import mean

import torch
from torch import nn

from tests.answers import right, wrong

# -- 12.1 look_at ------------------------------------------------------------------------------


def trained(optimizer):
    return [w for group in optimizer.param_groups for w in group["params"]]


def linear(model):
    return [m for m in model.modules() if isinstance(m, nn.Linear)]


@wrong("12.1", "looks at the model's output")
def hooks_the_model(model, optimizer, step):
    layers, gradients, before, scale = set(), set(), {}, [1.0]

    def at_step(*_):
        for w in trained(optimizer):
            gradients.add(w.grad.dtype)
            scale[0] = before[w] / w.grad.abs().max().item()

    handles = [
        model.register_forward_hook(lambda m, i, o: layers.add(o.dtype)),
        optimizer.register_step_pre_hook(at_step),
    ]
    for w in trained(optimizer):
        handles.append(
            w.register_post_accumulate_grad_hook(
                lambda w: before.__setitem__(w, w.grad.abs().max().item())
            )
        )
    step()
    for handle in handles:
        handle.remove()
    weights = {w.dtype for w in trained(optimizer)}
    return {"layers": layers, "weights": weights, "gradients": gradients, "scale": scale[0]}


def look(model, optimizer, step, modules, weights=None, keep=False, steps=1, scale_of=None):
    """Look with everything right but what is said."""
    layers, gradients, before, ratios = set(), set(), {}, []

    def see_layer(module, inputs, output):
        layers.add(output.dtype)

    def see_backward(w):
        before[w] = w.grad.abs().max().item()

    def see_step(*_):
        for w in trained(optimizer):
            gradients.add(w.grad.dtype)
            ratios.append(before[w] / w.grad.abs().max().item())

    handles = [m.register_forward_hook(see_layer) for m in modules]
    handles += [w.register_post_accumulate_grad_hook(see_backward) for w in trained(optimizer)]
    handles.append(optimizer.register_step_pre_hook(see_step))
    for _ in range(steps):
        step()
    if not keep:
        for handle in handles:
            handle.remove()
    return {
        "layers": layers,
        "weights": {w.dtype for w in weights or trained(optimizer)},
        "gradients": gradients,
        "scale": scale_of(layers, ratios) if scale_of else ratios[0],
    }


@wrong("12.1", "looks at every module")
def hooks_all_modules(model, optimizer, step):
    return look(model, optimizer, step, list(model.modules())[1:])


@wrong("12.1", "looks at every module")
def hooks_all_leaves(model, optimizer, step):
    return look(model, optimizer, step, [m for m in model.modules() if not list(m.children())])


@wrong("12.1", "weights that are not trained")
def asks_the_model_for_weights(model, optimizer, step):
    return look(model, optimizer, step, linear(model), weights=list(model.parameters()))


@wrong("12.1", "looks when it is over")
def reads_gradients_afterwards(model, optimizer, step):
    layers = set()
    handles = [m.register_forward_hook(lambda m, i, o: layers.add(o.dtype)) for m in linear(model)]
    before = {}
    handles += [
        w.register_post_accumulate_grad_hook(
            lambda w: before.__setitem__(w, w.grad.abs().max().item())
        )
        for w in trained(optimizer)
    ]
    step()
    for handle in handles:
        handle.remove()
    having = [w for w in trained(optimizer) if w.grad is not None]
    return {
        "layers": layers,
        "weights": {w.dtype for w in trained(optimizer)},
        "gradients": {w.grad.dtype for w in having},
        "scale": before[having[0]] / having[0].grad.abs().max().item() if having else 1.0,
    }


@wrong("12.1", "no scale")
def compares_a_gradient_with_itself(model, optimizer, step):
    return look(model, optimizer, step, linear(model), scale_of=lambda layers, ratios: 1.0)


@wrong("12.1", "scale guessed")
def knows_what_grad_scaler_starts_with(model, optimizer, step):
    def default(layers, ratios):
        return 65536.0 if torch.float16 in layers else 1.0

    return look(model, optimizer, step, linear(model), scale_of=default)


@wrong("12.1", "ratio upside down")
def divides_the_other_way(model, optimizer, step):
    return look(
        model, optimizer, step, linear(model), scale_of=lambda layers, ratios: 1 / ratios[0]
    )


@wrong("12.1", "hooks left behind")
def forgets_to_remove(model, optimizer, step):
    return look(model, optimizer, step, linear(model), keep=True)


@wrong("12.1", "more than one step")
def takes_three_to_be_sure(model, optimizer, step):
    return look(model, optimizer, step, linear(model), steps=3)


@wrong("12.1", "more than one step")
def a_step_for_layers_and_one_for_gradients(model, optimizer, step):
    layers = look(model, optimizer, step, linear(model))["layers"]
    return {**look(model, optimizer, step, linear(model)), "layers": layers}


@right("12.1")
def wraps_forward_and_step(model, optimizer, step):
    """Replace methods instead of registering hooks, and put them back."""
    layers, gradients, raw, scale = [], [], {}, [1.0]
    handles = [w.register_hook(lambda g, w=w: raw.__setitem__(w, g)) for w in trained(optimizer)]

    def watched(forward):
        def call(x):
            output = forward(x)
            layers.append(output.dtype)
            return output

        return call

    def step_of_optimizer(*args, **kwargs):
        w = trained(optimizer)[-1]
        gradients.extend(p.grad.dtype for p in trained(optimizer))
        scale[0] = (raw[w].float().norm() / w.grad.float().norm()).item()
        return type(optimizer).step(optimizer, *args, **kwargs)

    for m in linear(model):
        m.forward = watched(m.forward)
    optimizer.step = step_of_optimizer
    step()
    del optimizer.step
    for m in linear(model):
        del m.forward
    for handle in handles:
        handle.remove()
    weights = [w.dtype for w in trained(optimizer)]
    return {"layers": layers, "weights": weights, "gradients": gradients, "scale": scale[0]}


@right("12.1")
def sums_of_magnitudes_on_a_stack(model, optimizer, step):
    weights, seen, scale = trained(optimizer), {"layers": set(), "gradients": set()}, []
    after = {}
    with ExitStack() as stack:
        for m in linear(model):
            hook = m.register_forward_hook(lambda m, i, o: seen["layers"].add(o.dtype))
            stack.callback(hook.remove)
        for w in weights:
            hook = w.register_post_accumulate_grad_hook(
                lambda w: after.__setitem__(id(w), w.grad.double().abs().sum())
            )
            stack.callback(hook.remove)

        def see(*_):
            seen["gradients"] |= {w.grad.dtype for w in weights}
            scale.append(after[id(weights[0])] / weights[0].grad.double().abs().sum())

        stack.callback(optimizer.register_step_pre_hook(see).remove)
        step()
    return {**seen, "weights": {w.dtype for w in weights}, "scale": scale[0]}


# -- 12.2 ran_instead --------------------------------------------------------------------------


@wrong("12.2", "layers taken for weights")
def goes_by_the_layers(asked, seen):
    if torch.float16 in seen["layers"]:
        ran = "naive FP16"
    elif torch.bfloat16 in seen["layers"]:
        ran = "pure BF16"
    else:
        ran = "FP32"
    return None if ran == asked else ran


def name(seen, scaler_counts=True):
    if seen["weights"] == [torch.float16]:
        return "naive FP16"
    if seen["weights"] == [torch.bfloat16]:
        return "pure BF16"
    if torch.bfloat16 in seen["layers"]:
        return "AMP BF16"
    if torch.float16 in seen["layers"]:
        unscaled = scaler_counts and seen["scale"] == 1
        return "AMP FP16 without scaler" if unscaled else "AMP FP16"
    return "FP32"


@wrong("12.2", "scaler forgotten")
def asks_for_dtypes_alone(asked, seen):
    ran = name(seen, scaler_counts=False)
    return ran if ran != asked else None


@wrong("12.2", "one FP32 layer is enough")
def wants_every_layer_low(asked, seen):
    ran = "FP32" if torch.float32 in seen["layers"] else name(seen)
    return ran if ran != asked else None


@wrong("12.2", "a scale means FP16")
def believes_the_scaler(asked, seen):
    ran = "AMP FP16" if seen["scale"] > 1 else name(seen)
    return ran if ran != asked else None


@wrong("12.2", "named where nothing is wrong")
def always_names(asked, seen):
    return name(seen)


@wrong("12.2", "says that, not what")
def says_true(asked, seen):
    return name(seen) != asked


@wrong("12.2", "gradients decide")
def goes_by_the_gradients(asked, seen):
    names = {torch.float32: "FP32", torch.float16: "naive FP16", torch.bfloat16: "pure BF16"}
    ran = names[seen["gradients"][0]]
    return None if ran == asked else ran


@right("12.2")
def looks_it_up(asked, seen):
    low = next((d for d in seen["layers"] if d != torch.float32), torch.float32)
    table = {
        (torch.float16, torch.float16): "naive FP16",
        (torch.bfloat16, torch.bfloat16): "pure BF16",
        (torch.float32, torch.bfloat16): "AMP BF16",
        (torch.float32, torch.float32): "FP32",
    }
    unscaled = "" if seen["scale"] != 1 else " without scaler"
    ran = table.get((seen["weights"][0], low), f"AMP FP16{unscaled}")
    return ran if ran != asked else None


@right("12.2")
def by_size(asked, seen):
    wide = all(dtype.itemsize == 4 for dtype in seen["weights"])
    if not wide:
        ran = {torch.half: "naive FP16", torch.bfloat16: "pure BF16"}[seen["weights"][0]]
    elif all(dtype.itemsize == 4 for dtype in seen["layers"]):
        ran = "FP32"
    elif torch.bfloat16 in seen["layers"]:
        ran = "AMP BF16"
    else:
        ran = "AMP FP16" + (" without scaler" if seen["scale"] == 1.0 else "")
    if ran != asked:
        return ran


# -- 12.3 pick ---------------------------------------------------------------------------------


def fp32_of(measured):
    return next(row for row in measured if row["asked"] == "FP32")


def finite(losses):
    return all(math.isfinite(loss) for loss in losses)


def fastest(rows, measured, answer="ran", gain=0.9):
    if not rows:
        return None
    best = min(rows, key=lambda row: row["step_ms"])
    fp32 = fp32_of(measured)
    return "FP32" if fp32 in rows and best["step_ms"] > gain * fp32["step_ms"] else best[answer]


def sound(measured):
    limit = max(fp32_of(measured)["losses"])
    return [r for r in measured if finite(r["losses"]) and mean(r["losses"]) <= limit]


def sound_and_fit(measured, memory_mb):
    return [row for row in sound(measured) if row["peak_mb"] <= memory_mb]


@wrong("12.3", "goes by what was asked")
def returns_what_was_asked(measured, memory_mb):
    return fastest(sound_and_fit(measured, memory_mb), measured, answer="asked")


@wrong("12.3", "NaN passes")
def skips_what_is_too_high(measured, memory_mb):
    limit = max(fp32_of(measured)["losses"])
    rows = []
    for row in measured:
        if row["peak_mb"] > memory_mb:
            continue
        if sum(row["losses"]) / len(row["losses"]) > limit:
            continue
        rows.append(row)
    return fastest(rows, measured)


@wrong("12.3", "NaN left out")
def takes_the_mean_of_what_is_finite(measured, memory_mb):
    limit = max(fp32_of(measured)["losses"])
    rows = []
    for row in measured:
        losses = [loss for loss in row["losses"] if math.isfinite(loss)]
        if losses and mean(losses) <= limit and row["peak_mb"] <= memory_mb:
            rows.append(row)
    return fastest(rows, measured)


@wrong("12.3", "spread ignored")
def compares_means(measured, memory_mb):
    limit = mean(fp32_of(measured)["losses"])
    rows = [r for r in sound_and_fit(measured, memory_mb) if mean(r["losses"]) <= limit]
    return fastest(rows, measured)


@wrong("12.3", "losses ignored")
def wants_speed(measured, memory_mb):
    return fastest([row for row in measured if row["peak_mb"] <= memory_mb], measured)


@wrong("12.3", "memory ignored")
def has_memory_without_end(measured, memory_mb):
    return fastest(sound(measured), measured)


@wrong("12.3", "any gain will do")
def takes_what_is_faster(measured, memory_mb):
    return fastest(sound_and_fit(measured, memory_mb), measured, gain=1.0)


@wrong("12.3", "FP32 though it does not fit")
def compares_with_fp32_in_any_case(measured, memory_mb):
    rows = sound_and_fit(measured, memory_mb)
    if not rows:
        return None
    best = min(rows, key=lambda row: row["step_ms"])
    return best["ran"] if best["step_ms"] <= 0.9 * fp32_of(measured)["step_ms"] else "FP32"


@wrong("12.3", "least memory")
def saves_memory(measured, memory_mb):
    rows = sound_and_fit(measured, memory_mb)
    if not rows:
        return None
    best = min(rows, key=lambda row: row["peak_mb"])
    fp32 = fp32_of(measured)
    return "FP32" if fp32 in rows and best["step_ms"] > 0.9 * fp32["step_ms"] else best["ran"]


@right("12.3")
def sorts_and_takes_the_first(measured, memory_mb):
    fp32 = fp32_of(measured)
    for row in sorted(measured, key=lambda row: row["step_ms"]):
        total = sum(row["losses"])
        too_slow = fp32["peak_mb"] <= memory_mb and row["step_ms"] > 0.9 * fp32["step_ms"]
        fits = row["peak_mb"] <= memory_mb
        if fits and total / len(row["losses"]) <= max(fp32["losses"]) and math.isfinite(total):
            return "FP32" if too_slow else row["ran"]
    return None


@right("12.3")
def makes_fp32_compete_with_a_handicap(measured, memory_mb):
    fp32 = fp32_of(measured)

    def time(row):
        return row["step_ms"] * (0.9 - 1e-9 if row["asked"] == "FP32" else 1.0)

    rows = sound_and_fit(measured, memory_mb)
    best = min(rows, key=time) if rows else {"ran": None}
    return "FP32" if best is fp32 else best["ran"]
