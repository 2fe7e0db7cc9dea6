"""What people really make of the loops of exercise 08, and how they compare accuracies."""

import statistics

import torch
import torch.nn.functional as F
from torch import nn

from tests.answers import right, wrong


def fp16():
    return torch.autocast("cpu", dtype=torch.float16)


def norm(p):
    return torch.stack([w.grad.norm() for w in p.model.parameters()]).norm().item()


def forward(p, x, y):
    p.optimizer.zero_grad()
    with fp16():
        return F.cross_entropy(p.model(x), y)


# -- 08.1 mixed ----------------------------------------------------------------------------------


@wrong("08.1", "norms of scaled gradients")
def logs_before_unscaling(p):
    norms = []
    for x, y in p.batches:
        p.scaler.scale(forward(p, x, y)).backward()
        norms.append(norm(p))
        p.scaler.step(p.optimizer)
        p.scaler.update()
    return norms


@wrong("08.1", "norms of scaled gradients")
def unscales_after_logging(p):
    norms = []
    for x, y in p.batches:
        p.scaler.scale(forward(p, x, y)).backward()
        norms.append(nn.utils.clip_grad_norm_(p.model.parameters(), float("inf")).item())
        p.scaler.unscale_(p.optimizer)
        p.scaler.step(p.optimizer)
        p.scaler.update()
    return norms


@wrong("08.1", "divided by the next scale")
def divides_after_update(p):
    norms = []
    for x, y in p.batches:
        p.scaler.scale(forward(p, x, y)).backward()
        scaled = norm(p)
        p.scaler.step(p.optimizer)
        p.scaler.update()
        norms.append(scaled / p.scaler.get_scale())
    return norms


@wrong("08.1", "divided twice")
def divides_what_the_step_has_divided(p):
    norms = []
    for x, y in p.batches:
        scale = p.scaler.get_scale()
        p.scaler.scale(forward(p, x, y)).backward()
        p.scaler.step(p.optimizer)
        p.scaler.update()
        norms.append(nn.utils.clip_grad_norm_(p.model.parameters(), float("inf")).item() / scale)
    return norms


@wrong("08.1", "no scaler")
def autocast_alone(p):
    norms = []
    for x, y in p.batches:
        forward(p, x, y).backward()
        norms.append(norm(p))
        p.optimizer.step()
    return norms


@wrong("08.1", "the scaler in part")
def forgets_to_scale_the_loss(p):
    norms = []
    for x, y in p.batches:
        forward(p, x, y).backward()
        norms.append(norm(p))
        p.scaler.step(p.optimizer)
        p.scaler.update()
    return norms


@wrong("08.1", "the scaler in part")
def steps_on_scaled_gradients(p):
    norms = []
    for x, y in p.batches:
        p.scaler.scale(forward(p, x, y)).backward()
        norms.append(norm(p) / p.scaler.get_scale())
        p.optimizer.step()
        p.scaler.update()
    return norms


@wrong("08.1", "the check is passed by")
def unscales_and_steps_by_hand(p):
    norms = []
    for x, y in p.batches:
        p.scaler.scale(forward(p, x, y)).backward()
        p.scaler.unscale_(p.optimizer)
        norms.append(norm(p))
        p.optimizer.step()
        p.scaler.update()
    return norms


@wrong("08.1", "the scale never moves")
def forgets_update(p):
    norms = []
    for x, y in p.batches:
        p.scaler.scale(forward(p, x, y)).backward()
        p.scaler.unscale_(p.optimizer)
        norms.append(norm(p))
        p.scaler.step(p.optimizer)
    return norms


@wrong("08.1", "a scaler without autocast")
def scales_an_fp32_loss(p):
    norms = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        loss = F.cross_entropy(p.model(x), y)
        p.scaler.scale(loss).backward()
        p.scaler.unscale_(p.optimizer)
        norms.append(norm(p))
        p.scaler.step(p.optimizer)
        p.scaler.update()
    return norms


@wrong("08.1", "autocast's own dtype")
def leaves_the_dtype_to_autocast(p):
    norms = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cpu"):
            loss = F.cross_entropy(p.model(x), y)
        p.scaler.scale(loss).backward()
        p.scaler.unscale_(p.optimizer)
        norms.append(norm(p))
        p.scaler.step(p.optimizer)
        p.scaler.update()
    return norms


@wrong("08.1", "FP16 weights")
def halves_the_model(p):
    p.model.half()
    norms = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        loss = F.cross_entropy(p.model(x.half()).float(), y)
        p.scaler.scale(loss).backward()
        p.scaler.unscale_(p.optimizer)
        norms.append(norm(p))
        p.scaler.step(p.optimizer)
        p.scaler.update()
    return norms


@wrong("08.1", "another scaler")
def makes_a_scaler(p):
    scaler = torch.amp.GradScaler("cpu")
    norms = []
    for x, y in p.batches:
        scaler.scale(forward(p, x, y)).backward()
        scaler.unscale_(p.optimizer)
        norms.append(norm(p))
        scaler.step(p.optimizer)
        scaler.update()
    return norms


@right("08.1")
def divides_the_norm(p):
    norms = []
    for x, y in p.batches:
        loss = forward(p, x, y)
        p.scaler.scale(loss).backward()
        norms.append(norm(p) / p.scaler.get_scale())
        p.scaler.step(p.optimizer)
        p.scaler.update()
    return norms


@right("08.1")
def loss_outside_of_autocast(p):
    norms = torch.zeros(len(p.batches))
    for i, (x, y) in enumerate(p.batches):
        with fp16():
            logits = p.model(x)
        p.scaler.scale(F.cross_entropy(logits.float(), y)).backward()
        p.scaler.unscale_(p.optimizer)
        norms[i] = nn.utils.get_total_norm([w.grad for w in p.model.parameters()])
        p.scaler.step(p.optimizer)
        p.scaler.update()
        p.optimizer.zero_grad()
    return norms


# -- 08.2 train ----------------------------------------------------------------------------------


def trained(p, autocast, scaler):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with autocast():
            loss = F.cross_entropy(p.model(x), y)
        scaler.scale(loss).backward()
        scaler.step(p.optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def off():
    return torch.amp.GradScaler("cpu", enabled=False)


def cast_to(dtype):
    return lambda: torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32)


@wrong("08.2", "scales in every precision")
def always_scales(p, dtype):
    return trained(p, cast_to(dtype), p.scaler)


@wrong("08.2", "scales BF16")
def scales_whatever_is_low(p, dtype):
    return trained(p, cast_to(dtype), off() if dtype is torch.float32 else p.scaler)


@wrong("08.2", "scales in no precision")
def never_scales(p, dtype):
    return trained(p, cast_to(dtype), off())


@wrong("08.2", "always FP16")
def ignores_the_dtype(p, dtype):
    return trained(p, fp16, p.scaler if dtype is torch.float16 else off())


@wrong("08.2", "autocast's own dtype")
def only_switches_autocast(p, dtype):
    low = dtype is not torch.float32
    scaler = p.scaler if dtype is torch.float16 else off()
    return trained(p, lambda: torch.autocast("cpu", enabled=low), scaler)


@wrong("08.2", "never autocast")
def changes_the_scaler_only(p, dtype):
    return trained(p, cast_to(torch.float32), p.scaler if dtype is torch.float16 else off())


@wrong("08.2", "cast weights")
def turns_the_model(p, dtype):
    p.model.to(dtype)
    p.batches = [(x.to(dtype), y) for x, y in p.batches]
    return trained(p, cast_to(torch.float32), off())


@wrong("08.2", "the scaler in part")
def steps_directly(p, dtype):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with cast_to(dtype)():
            loss = F.cross_entropy(p.model(x), y)
        if dtype is torch.float16:
            p.scaler.scale(loss).backward()
        else:
            loss.backward()
        p.optimizer.step()
        if dtype is torch.float16:
            p.scaler.update()
        losses.append(loss.item())
    return losses


@wrong("08.2", "scaled losses")
def returns_what_it_scaled(p, dtype):
    scaler = p.scaler if dtype is torch.float16 else off()
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with cast_to(dtype)():
            loss = F.cross_entropy(p.model(x), y)
        loss = scaler.scale(loss)
        loss.backward()
        scaler.step(p.optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


@wrong("08.2", "another scaler")
def enables_its_own(p, dtype):
    own = torch.amp.GradScaler("cpu", enabled=dtype is torch.float16)
    return trained(p, cast_to(dtype), own)


@right("08.2")
def scaler_passes_through(p, dtype):
    return trained(p, cast_to(dtype), p.scaler if dtype == torch.float16 else off())


@right("08.2")
def three_branches(p, dtype):
    losses = []
    for x, y in p.batches:
        if dtype is torch.float32:
            loss = F.cross_entropy(p.model(x), y)
        else:
            with torch.autocast("cpu", dtype):
                logits = p.model(x)
            loss = F.cross_entropy(logits.float(), y)
        if dtype is torch.float16:
            p.scaler.scale(loss).backward()
            p.scaler.step(p.optimizer)
            p.scaler.update()
        else:
            loss.backward()
            p.optimizer.step()
        p.optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


# -- 08.3 compare --------------------------------------------------------------------------------


@wrong("08.3", "not paired")
def adds_both_variances(fp32, amp):
    a, b = list(fp32.values()), list(amp.values())
    variance = statistics.variance(a) / len(a) + statistics.variance(b) / len(b)
    return statistics.mean(b) - statistics.mean(a), variance**0.5


@wrong("08.3", "paired by position")
def zips_the_values(fp32, amp):
    differences = [b - a for a, b in zip(fp32.values(), amp.values())]  # noqa: B905
    return statistics.mean(differences), statistics.stdev(differences) / len(differences) ** 0.5


@wrong("08.3", "best runs")
def takes_the_best(fp32, amp):
    differences = [amp[s] - fp32[s] for s in fp32.keys() & amp.keys()]
    error = statistics.stdev(differences) / len(differences) ** 0.5
    return max(amp.values()) - max(fp32.values()), error


@wrong("08.3", "the other way round")
def subtracts_amp(fp32, amp):
    differences = [fp32[s] - amp[s] for s in fp32.keys() & amp.keys()]
    return statistics.mean(differences), statistics.stdev(differences) / len(differences) ** 0.5


@wrong("08.3", "spread taken for error")
def returns_the_spread(fp32, amp):
    differences = [amp[s] - fp32[s] for s in fp32.keys() & amp.keys()]
    return statistics.mean(differences), statistics.stdev(differences)


@wrong("08.3", "spread of a population")
def divides_by_n(fp32, amp):
    d = torch.tensor([amp[s] - fp32[s] for s in fp32 if s in amp], dtype=torch.float64)
    return d.mean().item(), (d.std(correction=0) / len(d) ** 0.5).item()


@right("08.3")
def with_torch(fp32, amp):
    both = sorted(set(fp32) & set(amp))
    d = torch.tensor([amp[s] - fp32[s] for s in both], dtype=torch.float64)
    return d.mean().item(), d.var().div(len(d)).sqrt().item()


@right("08.3")
def by_hand(fp32, amp):
    d = [amp[s] - fp32[s] for s in amp if s in fp32]
    mean = sum(d) / len(d)
    variance = sum((x - mean) ** 2 for x in d) / (len(d) - 1)
    return [mean, (variance / len(d)) ** 0.5]
