"""Why mixed precision gains nothing: notes on speed and memory.

What a layer gains can be read off its matrix product, rows x outputs x inputs. Products with a
short side are bound by memory traffic and launches, which 16 bits do not help; sides that are no
multiple of 8 keep Tensor Cores from being used well; and what runs in FP32 gains nothing at all.
"""

# ruff: noqa: D401  (the docstring of a rule is the "why" of its findings)

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from mptutor.audit.events import Backward, EnterAutocast, OptimizerStep, StepEnded
from mptutor.audit.events_forward import Call, Forward, Sync
from mptutor.audit.rules import MACHINE, NOTE, REMARK, SUSPECT, Evidence, Sighting, rule, seen_at

Sightings = Iterator[Sighting]
HALF = ("float16", "bfloat16")

#: Below this side a matrix product spends its time on everything but arithmetic.
SMALL_SIDE = 32
#: So many steps in a row must show growth before it is called so.
GROWING_STEPS = 8


@rule(
    NOTE,
    lesson=9,
    cause="Half of the layers or more are too small to gain from 16 bits: casts and launches cost "
    "more than the arithmetic.",
    repair="loader = DataLoader(dataset, batch_size=4 * batch_size)   # or wider layers, or FP32",
    order=REMARK,
)
def layers_too_small(evidence: Evidence) -> Sightings:
    """Measure before and after: autocast can make such a model slower."""
    products = _half_products(evidence)
    small = [f for f in products if min(f.product) < SMALL_SIDE]
    if small and len(small) >= len(products) / 2:
        example = " x ".join(map(str, small[0].product))
        yield seen_at(
            small[0],
            f"{len(small)} of {len(products)} products have a side below {SMALL_SIDE}, "
            f"as {example} in '{small[0].name}'",
        )


@rule(
    NOTE,
    lesson=9,
    cause="A large layer has a side that is no multiple of 8: Tensor Cores are used badly.",
    repair="vocabulary = 8 * math.ceil(vocabulary / 8)   # pad the width, vocabulary or batch",
    order=REMARK,
)
def sides_not_multiple_of_8(evidence: Evidence) -> Sightings:
    """Only layers with a fifth or more of the arithmetic count, and none that is small anyway."""
    products = [f for f in _half_products(evidence) if min(f.product) >= SMALL_SIDE]
    by_name: dict[str, Forward] = {f.name: f for f in products}
    total = sum(map(_work, by_name.values()))
    for forward in by_name.values():
        if any(side % 8 for side in forward.product) and _work(forward) > total / 5:
            yield seen_at(forward, f"'{forward.name}': {' x '.join(map(str, forward.product))}")
            return


@rule(
    NOTE,
    lesson=9,
    cause="A value is read back from the device in every step, and the CPU waits for it.",
    repair="running += loss.detach()   # on the device\n"
    "if step % 50 == 0:\n    print(running.item())",
    order=REMARK,
)
def sync_every_step(evidence: Evidence) -> Sightings:
    """While it waits, no further work is handed to the device."""
    steps = max(1, len({e.step for e in evidence.of(Call, Sync)}))
    times = Counter((s.site.file, s.site.line, s.how) for s in evidence.of(Sync))
    for sync in evidence.of(Sync):
        n = times.pop((sync.site.file, sync.site.line, sync.how), 0)
        if n >= max(3, 0.8 * steps):
            yield seen_at(sync, f".{sync.how}() {n} times in {steps} steps")


@rule(
    SUSPECT,
    lesson=9,
    cause="Much of the matrix arithmetic still runs in FP32, outside autocast.",
    repair="with torch.autocast(device_type, dtype):\n    output = model(x)   # the whole model",
    order=REMARK,
)
def fp32_dominates(evidence: Evidence) -> Sightings:
    """Unless this part was kept in FP32 for its range, the block can be widened."""
    ended = {e.step for e in evidence.of(OptimizerStep)}
    trained = [f for f in _products(evidence) if f.step in ended and not f.main_in_autocast]
    mixed = {f.step for f in trained if _is_half(f)}
    inside = [f for f in trained if f.step in mixed]
    slow = [f for f in inside if not _is_half(f) and not f.autocast and f.learns]
    total = sum(map(_work, inside))
    if slow and sum(map(_work, slow)) > 0.3 * total:
        most = max(slow, key=_work)
        share = sum(map(_work, slow)) / total
        yield seen_at(most, f"{share:.0%} of it, most in '{most.name}'; range would clear it")


@rule(
    NOTE,
    lesson=9,
    cause="16 bits cost memory here: the casts of the weights outweigh what activations save.",
    repair="loader = DataLoader(dataset, batch_size=8 * batch_size)   # or accept it for the speed",
)
def casts_outweigh_savings(evidence: Evidence) -> Sightings:
    """Parameters, gradients and optimizer state stay FP32; only activations shrink."""
    layers: dict[str, Forward] = {}
    for forward in evidence.of(Forward):
        weight = forward.weight
        if weight is not None and weight.dtype == "float32" and forward.leaf and _is_half(forward):
            layers[forward.name] = forward
        if forward.root and layers:
            casts = sum(2 * math.prod(f.weight.shape) for f in layers.values())
            saved = sum(2 * math.prod(f.outputs[0].shape) for f in layers.values())
            if casts > max(saved, 1 << 18):
                sizes = f"{casts / 2**20:.2f} MiB of casts, {saved / 2**20:.2f} MiB saved"
                yield seen_at(forward, sizes)
                return
            layers = {}


@rule(
    NOTE,
    lesson=9,
    cause="This device has no arithmetic for that dtype: it is emulated, and slower than FP32.",
    repair="dtype = torch.bfloat16   # or measure on the device it is meant for",
    order=MACHINE,
)
def no_fast_units(evidence: Evidence) -> Sightings:
    """The numbers are right all the same."""
    slow = evidence.trace.machine.get("slow", {})
    for entered in evidence.of(EnterAutocast):
        reason = slow.get(f"{entered.device} {entered.dtype}")
        if entered.enabled and reason:
            yield seen_at(entered, reason)
            return


@rule(
    SUSPECT,
    lesson=9,
    cause="Memory grows from step to step.",
    repair="total += loss.item()   # or loss.detach(): not the loss with its graph",
    order=REMARK,
)
def memory_grows(evidence: Evidence) -> Sightings:
    """Most often a loss is kept together with the graph that made it."""
    yield from _graphs_kept(evidence)
    sizes = [e for e in evidence.of(StepEnded) if e.memory_bytes is not None]
    recent = sizes[-2 * GROWING_STEPS :]
    grown = [b for a, b in pairwise(recent) if b.memory_bytes > a.memory_bytes]
    if len(recent) == 2 * GROWING_STEPS and len(grown) == len(recent) - 1:
        mib = (recent[-1].memory_bytes - recent[0].memory_bytes) / 2**20
        yield seen_at(recent[-1], f"by {mib:.1f} MiB in {len(grown)} steps")


def _graphs_kept(evidence: Evidence) -> Sightings:
    """See whether more graphs are alive at the end of each step, of losses or of outputs."""
    losses = list(evidence.of(Backward))
    outputs = [f for f in evidence.of(Forward) if f.root and f.learns]
    for what, events in (("losses", losses), ("outputs of the model", outputs)):
        fewest = _fewest_graphs(events)
        growth = [now.graphs_alive > before.graphs_alive for before, now in pairwise(fewest)]
        if len(growth) >= GROWING_STEPS and all(growth[-GROWING_STEPS:]):
            alive = fewest[-1].graphs_alive
            yield seen_at(fewest[-1], f"the graphs of {alive} earlier {what} are kept")
            return


def _fewest_graphs(events: list[Backward] | list[Forward]) -> list[Backward | Forward]:
    """Return, of each step, the event at which the fewest graphs were alive."""
    fewest: dict[int, Backward | Forward] = {}
    for event in events:
        known = fewest.get(event.step)
        if known is None or event.graphs_alive < known.graphs_alive:
            fewest[event.step] = event
    return list(fewest.values())


# -- words the rules are made of -----------------------------------------------------------------


def _products(evidence: Evidence) -> list[Forward]:
    forwards = evidence.of(Forward)
    return [f for f in forwards if f.product and f.leaf and f.training and not f.error]


def _half_products(evidence: Evidence) -> list[Forward]:
    return [f for f in _products(evidence) if _is_half(f)]


def _is_half(forward: Forward) -> bool:
    return bool(forward.outputs) and forward.outputs[0].dtype in HALF


def _work(forward: Forward) -> int:
    """Floating point operations of the matrix product."""
    return 2 * math.prod(forward.product)
