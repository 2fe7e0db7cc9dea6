"""What people really do to the loops of exercise 11, and how right repairs may look."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.answers import right, wrong

FAR = ~torch.ones(16, 16).tril().triu(-1).bool()


def fp16():
    return torch.autocast("cpu", torch.float16)


def forward(p, x, y):
    p.optimizer.zero_grad()
    with fp16():
        return F.cross_entropy(p.model(x), y)


def squares(p):
    return 0.05 * sum(w.square().sum() for w in p.model.parameters())


def clip(p, limit=0.1):
    nn.utils.clip_grad_norm_(p.model.parameters(), limit)


def step_and_update(p):
    p.scaler.step(p.optimizer)
    p.scaler.update()


# -- 11.1 mended_a -------------------------------------------------------------------------------


@wrong("11.1", "clips scaled gradients")
def scales_the_penalty_only(p):
    losses = []
    for x, y in p.batches:
        loss = forward(p, x, y)
        p.scaler.scale(loss + squares(p)).backward()
        clip(p)
        step_and_update(p)
        losses.append(loss.item())
    return losses


@wrong("11.1", "clips scaled gradients")
def unscales_after_clipping(p):
    losses = []
    for x, y in p.batches:
        loss = forward(p, x, y)
        p.scaler.scale(loss + squares(p)).backward()
        clip(p)
        p.scaler.unscale_(p.optimizer)
        step_and_update(p)
        losses.append(loss.item())
    return losses


@wrong("11.1", "penalty not scaled")
def unscales_before_clipping_only(p):
    losses = []
    for x, y in p.batches:
        loss = forward(p, x, y)
        p.scaler.scale(loss).backward()
        squares(p).backward()
        p.scaler.unscale_(p.optimizer)
        clip(p)
        step_and_update(p)
        losses.append(loss.item())
    return losses


@wrong("11.1", "clips after the step")
def clips_at_the_end(p):
    losses = []
    for x, y in p.batches:
        loss = forward(p, x, y)
        p.scaler.scale(loss + squares(p)).backward()
        p.scaler.step(p.optimizer)
        clip(p)
        p.scaler.update()
        losses.append(loss.item())
    return losses


@wrong("11.1", "clipping given up")
def deletes_the_clipping(p):
    losses = []
    for x, y in p.batches:
        loss = forward(p, x, y)
        p.scaler.scale(loss + squares(p)).backward()
        step_and_update(p)
        losses.append(loss.item())
    return losses


@wrong("11.1", "penalty given up")
def deletes_the_penalty(p):
    losses = []
    for x, y in p.batches:
        loss = forward(p, x, y)
        p.scaler.scale(loss).backward()
        p.scaler.unscale_(p.optimizer)
        clip(p)
        step_and_update(p)
        losses.append(loss.item())
    return losses


@wrong("11.1", "AMP turned off")
def trains_in_fp32(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        loss = F.cross_entropy(p.model(x), y)
        (loss + squares(p)).backward()
        clip(p)
        p.optimizer.step()
        losses.append(loss.item())
    return losses


@wrong("11.1", "scale turned down")
def makes_the_scale_one(p):
    p.scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    losses = []
    for x, y in p.batches:
        loss = forward(p, x, y)
        p.scaler.scale(loss).backward()
        squares(p).backward()
        clip(p)
        step_and_update(p)
        losses.append(loss.item())
    return losses


@right("11.1")
def two_backward_passes(p):
    losses = []
    for x, y in p.batches:
        loss = forward(p, x, y)
        p.scaler.scale(loss).backward()
        p.scaler.scale(squares(p)).backward()
        p.scaler.unscale_(p.optimizer)
        clip(p)
        step_and_update(p)
        losses.append(loss)
    return losses


@right("11.1")
def penalty_after_unscaling(p):
    losses = []
    for x, y in p.batches:
        loss = forward(p, x, y)
        p.scaler.scale(loss).backward()
        p.scaler.unscale_(p.optimizer)
        with torch.no_grad():
            for w in p.model.parameters():
                w.grad.add_(w, alpha=2 * 0.05)
        clip(p)
        step_and_update(p)
        losses.append(float(loss))
    return losses


# -- 11.2 mended_b -------------------------------------------------------------------------------


def attended(p, x, y, scores_of, fill=-math.inf):
    p.optimizer.zero_grad()
    q, k, v = p.model["qkv"](x).chunk(3, dim=-1)
    scores = scores_of(q, k)
    if fill is not None:
        scores = scores.masked_fill(FAR, fill)
    return F.cross_entropy(p.model["head"](scores.softmax(-1) @ v).mean(1), y)


def divided_after(q, k):
    return (q @ k.mT) / q.shape[-1] ** 0.5


def divided_before(q, k):
    return (q / q.shape[-1] ** 0.5) @ k.mT


def trained(p, scores_of=divided_before, fill=-math.inf, skip_bad=False):
    losses = []
    for x, y in p.batches:
        with fp16():
            loss = attended(p, x, y, scores_of, fill)
        losses.append(loss.item())
        if skip_bad and not math.isfinite(losses[-1]):
            continue
        p.scaler.scale(loss).backward()
        step_and_update(p)
    return losses


@wrong("11.2", "logits still overflow")
def mends_the_constant(p):
    return trained(p, divided_after)


@wrong("11.2", "logits still overflow")
def takes_the_smallest_number(p):
    return trained(p, divided_after, fill=torch.finfo(torch.float16).min)


@wrong("11.2", "constant still too large")
def mends_the_logits(p):
    return trained(p, fill=-1e9)


@wrong("11.2", "exception caught")
def catches_the_exception(p):
    losses = []
    for x, y in p.batches:
        try:
            with fp16():
                loss = attended(p, x, y, divided_after, -1e9)
        except RuntimeError:
            continue
        p.scaler.scale(loss).backward()
        step_and_update(p)
        losses.append(loss.item())
    return losses


@wrong("11.2", "NaN made finite")
def hides_the_overflow(p):
    return trained(p, lambda q, k: torch.nan_to_num(divided_after(q, k)))


@wrong("11.2", "bad batches skipped")
def skips_bad_batches(p):
    return trained(p, divided_after, skip_bad=True)


@wrong("11.2", "mask too weak")
def masks_with_zero(p):
    return trained(p, fill=0.0)


@wrong("11.2", "mask left out")
def forgets_the_mask(p):
    return trained(p, fill=None)


@wrong("11.2", "AMP turned off")
def attends_in_fp32(p):
    losses = []
    for x, y in p.batches:
        loss = attended(p, x, y, divided_after, -1e9)
        p.scaler.scale(loss).backward()
        step_and_update(p)
        losses.append(loss.item())
    return losses


@right("11.2")
def divides_the_keys(p):
    return trained(p, lambda q, k: q @ (k / k.shape[-1] ** 0.5).mT, torch.finfo(torch.float16).min)


@right("11.2")
def logits_in_fp32(p):
    def in_fp32(q, k):
        with torch.autocast("cpu", enabled=False):
            return divided_after(q.float(), k.float())

    return trained(p, in_fp32, fill=-1e9)


@right("11.2")
def asks_pytorch(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with fp16():
            q, k, v = (part.unsqueeze(1) for part in p.model["qkv"](x).chunk(3, dim=-1))
            mixed = F.scaled_dot_product_attention(q, k, v, ~FAR).squeeze(1)
            loss = F.cross_entropy(p.model["head"](mixed).mean(1), y)
        p.scaler.scale(loss).backward()
        step_and_update(p)
        losses.append(loss.item())
    return losses


# -- 11.3 mended_c -------------------------------------------------------------------------------


def in_half(p, x, y, dtype=torch.float16):
    p.optimizer.zero_grad()
    return F.cross_entropy(p.model(x.to(dtype)), y)


@wrong("11.3", "eps raised")
def raises_eps(p):
    p.model.half()
    for group in p.optimizer.param_groups:
        group["eps"] = 1e-4
    losses = []
    for x, y in p.batches:
        loss = in_half(p, x, y)
        loss.backward()
        p.optimizer.step()
        losses.append(loss.item())
    return losses


@wrong("11.3", "BF16 weights")
def takes_bfloat16(p):
    p.model.bfloat16()
    losses = []
    for x, y in p.batches:
        loss = in_half(p, x, y, torch.bfloat16)
        loss.backward()
        p.optimizer.step()
        losses.append(loss.item())
    return losses


@wrong("11.3", "NaN made finite")
def sweeps_nan_out_of_the_weights(p):
    p.model.half()
    losses = []
    for x, y in p.batches:
        loss = in_half(p, x, y)
        loss.backward()
        p.optimizer.step()
        for w in p.model.parameters():
            w.data = torch.nan_to_num(w.data)
        losses.append(loss.item())
    return losses


@wrong("11.3", "bad batches skipped")
def skips_nan_losses(p):
    p.model.half()
    losses = []
    for x, y in p.batches:
        loss = in_half(p, x, y)
        losses.append(loss.item())
        if math.isnan(losses[-1]):
            continue
        loss.backward()
        p.optimizer.step()
    return losses


@wrong("11.3", "no scaler")
def forgets_the_scaler(p):
    losses = []
    for x, y in p.batches:
        loss = forward(p, x, y)
        loss.backward()
        p.optimizer.step()
        losses.append(loss.item())
    return losses


@wrong("11.3", "FP16 weights with a scaler")
def adds_a_scaler_to_half(p):
    p.model.half()
    losses = []
    for x, y in p.batches:
        loss = in_half(p, x, y)
        p.scaler.scale(loss.float()).backward()
        step_and_update(p)
        losses.append(loss.item())
    return losses


@wrong("11.3", "AMP turned off")
def goes_back_to_fp32(p):
    losses = []
    for x, y in p.batches:
        loss = in_half(p, x, y, torch.float32)
        loss.backward()
        p.optimizer.step()
        losses.append(loss.item())
    return losses


@wrong("11.3", "another optimizer")
def takes_sgd(p):
    p.optimizer = torch.optim.SGD(p.model.parameters(), lr=0.1)
    losses = []
    for x, y in p.batches:
        loss = forward(p, x, y)
        p.scaler.scale(loss).backward()
        step_and_update(p)
        losses.append(loss.item())
    return losses


@right("11.3")
def clears_gradients_at_the_end(p):
    losses = []
    for x, y in p.batches:
        with fp16():
            logits = p.model(x)
        loss = F.cross_entropy(logits.float(), y)
        p.scaler.scale(loss).backward()
        p.scaler.unscale_(p.optimizer)
        step_and_update(p)
        p.model.zero_grad()
        losses.append(loss.detach())
    return losses


@right("11.3")
def from_half_and_back(p):
    p.model.float()
    losses = torch.zeros(len(p.batches))
    for i, (x, y) in enumerate(p.batches):
        loss = forward(p, x, y)
        p.scaler.scale(loss).backward()
        step_and_update(p)
        losses[i] = loss.detach()
    return losses


# -- 11.4 mended_d -------------------------------------------------------------------------------


def parts(x, y):
    return zip(x.chunk(4), y.chunk(4), strict=True)


def part_of(p, x, y):
    with fp16():
        return F.cross_entropy(p.model(x), y) / 4


@wrong("11.4", "clips scaled gradients")
def takes_unscale_out_and_clips_at_the_end(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        for part in parts(x, y):
            loss = part_of(p, *part)
            p.scaler.scale(loss).backward()
        clip(p)
        step_and_update(p)
        losses.append(4 * loss.item())
    return losses


@wrong("11.4", "clips scaled gradients")
def takes_unscale_out(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        for part in parts(x, y):
            loss = part_of(p, *part)
            p.scaler.scale(loss).backward()
            clip(p)
        step_and_update(p)
        losses.append(loss.item())
    return losses


@wrong("11.4", "unscales before the last part")
def unscales_on_the_first_part(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        for i, part in enumerate(parts(x, y)):
            loss = part_of(p, *part)
            p.scaler.scale(loss).backward()
            if i == 0:
                p.scaler.unscale_(p.optimizer)
        clip(p)
        step_and_update(p)
        losses.append(loss.item())
    return losses


@wrong("11.4", "clipping given up")
def deletes_unscale_and_clip(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        for part in parts(x, y):
            loss = part_of(p, *part)
            p.scaler.scale(loss).backward()
        step_and_update(p)
        losses.append(loss.item())
    return losses


@wrong("11.4", "a step for every part")
def indents_the_step(p):
    losses = []
    for x, y in p.batches:
        for part in parts(x, y):
            p.optimizer.zero_grad()
            loss = part_of(p, *part)
            p.scaler.scale(loss).backward()
            p.scaler.unscale_(p.optimizer)
            clip(p)
            step_and_update(p)
            losses.append(loss.item())
    return losses


@wrong("11.4", "only the last part")
def clears_before_every_part(p):
    losses = []
    for x, y in p.batches:
        for part in parts(x, y):
            p.optimizer.zero_grad()
            loss = part_of(p, *part)
            p.scaler.scale(loss).backward()
        p.scaler.unscale_(p.optimizer)
        clip(p)
        step_and_update(p)
        losses.append(loss.item())
    return losses


@wrong("11.4", "accumulation given up")
def takes_the_whole_batch(p):
    losses = []
    for x, y in p.batches:
        loss = forward(p, x, y)
        p.scaler.scale(loss).backward()
        p.scaler.unscale_(p.optimizer)
        clip(p)
        step_and_update(p)
        losses.append(loss.item())
    return losses


@wrong("11.4", "exception caught")
def catches_the_second_unscale(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        for part in parts(x, y):
            loss = part_of(p, *part)
            p.scaler.scale(loss).backward()
            try:
                p.scaler.unscale_(p.optimizer)
                clip(p)
            except RuntimeError:
                pass
        step_and_update(p)
        losses.append(loss.item())
    return losses


@wrong("11.4", "AMP turned off")
def accumulates_in_fp32(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        for some_x, some_y in parts(x, y):
            loss = F.cross_entropy(p.model(some_x), some_y) / 4
            loss.backward()
        clip(p)
        p.optimizer.step()
        losses.append(loss.item())
    return losses


@right("11.4")
def unscales_with_the_last_part(p):
    losses = []
    for x, y in p.batches:
        total = 0.0
        for i, part in enumerate(parts(x, y), start=1):
            loss = part_of(p, *part)
            p.scaler.scale(loss).backward()
            total += loss.item()
            if i == 4:
                p.scaler.unscale_(p.optimizer)
                clip(p)
                step_and_update(p)
                p.optimizer.zero_grad()
        losses.append(total)
    return losses


@right("11.4")
def divides_what_is_scaled(p):
    losses = []
    for x, y in p.batches:
        p.model.zero_grad()
        for some_x, some_y in parts(x, y):
            with fp16():
                logits = p.model(some_x)
            loss = F.cross_entropy(logits.float(), some_y)
            (p.scaler.scale(loss) / 4).backward()
        p.scaler.unscale_(p.optimizer)
        clip(p)
        step_and_update(p)
        losses.append(loss)
    return losses


# -- 11.5 mended_e -------------------------------------------------------------------------------


def half_forward(p, x, y, dtype=torch.float16):
    p.optimizer.zero_grad()
    with fp16():
        return F.cross_entropy(p.model(x.to(dtype)), y)


@wrong("11.5", "scaler thrown out")
def deletes_the_scaler(p):
    p.model.half()
    losses = []
    for x, y in p.batches:
        loss = half_forward(p, x, y)
        loss.backward()
        p.optimizer.step()
        losses.append(loss.item())
    return losses


@wrong("11.5", "no scaler")
def deletes_half_and_the_scaler(p):
    losses = []
    for x, y in p.batches:
        loss = forward(p, x, y)
        loss.backward()
        p.optimizer.step()
        losses.append(loss.item())
    return losses


@wrong("11.5", "unscaled by hand")
def divides_by_hand(p):
    p.model.half()
    losses = []
    for x, y in p.batches:
        loss = half_forward(p, x, y)
        scale = p.scaler.get_scale()
        (loss * scale).backward()
        for w in p.model.parameters():
            w.grad.div_(scale)
        p.optimizer.step()
        losses.append(loss.item())
    return losses


@wrong("11.5", "BF16 weights")
def takes_bfloat16_weights(p):
    p.model.bfloat16()
    losses = []
    for x, y in p.batches:
        loss = half_forward(p, x, y, torch.bfloat16)
        p.scaler.scale(loss).backward()
        step_and_update(p)
        losses.append(loss.item())
    return losses


@wrong("11.5", "exception caught")
def catches_the_step(p):
    p.model.half()
    losses = []
    for x, y in p.batches:
        loss = half_forward(p, x, y)
        p.scaler.scale(loss).backward()
        try:
            step_and_update(p)
        except ValueError:
            continue
        losses.append(loss.item())
    return losses


@wrong("11.5", "the check talked out of it")
def allows_fp16_gradients(p):
    p.model.half()
    unscale = p.scaler._unscale_grads_
    p.scaler._unscale_grads_ = lambda optimizer, inverse, found, allow: unscale(
        optimizer, inverse, found, True
    )
    losses = []
    for x, y in p.batches:
        loss = half_forward(p, x, y)
        p.scaler.scale(loss).backward()
        step_and_update(p)
        losses.append(loss.item())
    return losses


@wrong("11.5", "AMP turned off")
def back_to_fp32(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        loss = F.cross_entropy(p.model(x), y)
        loss.backward()
        p.optimizer.step()
        losses.append(loss.item())
    return losses


@right("11.5")
def deletes_half(p):
    losses = []
    for x, y in p.batches:
        loss = forward(p, x, y)
        p.scaler.scale(loss).backward()
        step_and_update(p)
        losses.append(loss.item())
    return losses


@right("11.5")
def makes_the_model_fp32_and_feeds_fp16(p):
    p.model.float()
    losses = []
    for x, y in p.batches:
        loss = half_forward(p, x, y)
        p.scaler.scale(loss).backward()
        p.scaler.unscale_(p.optimizer)
        step_and_update(p)
        losses.append(loss.item())
    return losses


# -- 11.6 mended_f -------------------------------------------------------------------------------


def steps_in_bf16(p):
    """Train as loop F does; what averages comes between the steps."""
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(p.model(x), y)
        loss.backward()
        p.optimizer.step()
        yield


def averaged(p, start, update):
    average = [start(w.detach()) for w in p.model.parameters()]
    for _ in steps_in_bf16(p):
        for mean, w in zip(average, p.model.parameters(), strict=True):
            update(mean, w.detach())
    return average


@wrong("11.6", "computed in FP32, kept in BF16")
def computes_in_fp32(p):
    return averaged(
        p,
        lambda w: w.bfloat16(),
        lambda mean, w: mean.copy_(0.999 * mean.float() + 0.001 * w),
    )


@wrong("11.6", "another decay")
def raises_the_weight(p):
    return averaged(p, lambda w: w.clone(), lambda mean, w: mean.lerp_(w, 0.1))


@wrong("11.6", "FP16 average")
def takes_fp16(p):
    return averaged(p, lambda w: w.half(), lambda mean, w: mean.lerp_(w.half(), 0.001))


@wrong("11.6", "average of rounded weights")
def adds_float_behind(p):
    return averaged(
        p,
        lambda w: w.bfloat16().float(),
        lambda mean, w: mean.lerp_(w.bfloat16().float(), 0.001),
    )


@wrong("11.6", "the average is the weights")
def deletes_bfloat16(p):
    return averaged(p, lambda w: w, lambda mean, w: mean.lerp_(w, 0.001))


@wrong("11.6", "the average is the weights")
def casts_to_what_it_is(p):
    return averaged(p, lambda w: w.float(), lambda mean, w: mean.lerp_(w.float(), 0.001))


@wrong("11.6", "the average is the weights")
def returns_the_parameters(p):
    for _ in steps_in_bf16(p):
        pass
    return list(p.model.parameters())


@wrong("11.6", "plain mean")
def averages_all_steps(p):
    seen = []
    for _ in steps_in_bf16(p):
        seen.append([w.detach().clone() for w in p.model.parameters()])
    return [torch.stack(ws).mean(0) for ws in zip(*seen, strict=True)]


@wrong("11.6", "AMP turned off")
def trains_all_in_fp32(p):
    average = [w.detach().clone() for w in p.model.parameters()]
    for x, y in p.batches:
        p.optimizer.zero_grad()
        F.cross_entropy(p.model(x), y).backward()
        p.optimizer.step()
        for mean, w in zip(average, p.model.parameters(), strict=True):
            mean.lerp_(w.detach(), 0.001)
    return average


@right("11.6")
def clones(p):
    return averaged(p, lambda w: w.clone(), lambda mean, w: mean.mul_(0.999).add_(w, alpha=0.001))


@right("11.6")
def asks_torch(p):
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    average = AveragedModel(p.model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    average.update_parameters(p.model)
    for _ in steps_in_bf16(p):
        average.update_parameters(p.model)
    return [w.detach() for w in average.module.parameters()]


@right("11.6")
def in_float64(p):
    return averaged(p, lambda w: w.double(), lambda mean, w: mean.lerp_(w.double(), 0.001))


# -- 11.7 causes ---------------------------------------------------------------------------------


@wrong("11.7", "one fault a loop")
def names_the_last(loop):
    second = {"A": ["clip_before_unscale"], "B": ["forward_overflow"]}
    return second.get(loop) or all_causes(loop)


@wrong("11.7", "the other fault alone")
def names_the_first(loop):
    first = {"A": ["loss_not_scaled"], "B": ["constant_overflows"]}
    return first.get(loop) or all_causes(loop)


@wrong("11.7", "consequences")
def names_what_follows(loop):
    return {
        "A": ["no_gradients"],
        "B": ["every_step_skipped"],
        "C": ["weights_not_finite"],
        "D": ["update_missing"],
        "E": ["every_step_skipped"],
        "F": ["weights_stall"],
    }[loop]


@wrong("11.7", "consequences too")
def copies_the_report(loop):
    return all_causes(loop) + (["weights_not_finite"] if loop == "C" else [])


@wrong("11.7", "notes taken for faults")
def copies_the_notes(loop):
    return [*all_causes(loop), "no_fast_units"]


@wrong("11.7", "the scale is to blame")
def blames_the_scale(loop):
    return ["scale_collapsed"]


@wrong("11.7", "kinds")
def names_kinds(loop):
    return [{"A": "order", "B": "range", "D": "order"}.get(loop, "dtype")]


@right("11.7")
def all_causes(loop):
    table = {
        "A": ["clip_before_unscale", "loss_not_scaled"],
        "B": ["forward_overflow", "constant_overflows"],
        "C": ["fp16_without_scaler", "adam_eps_vanishes"],
        "D": ["unscale_twice"],
        "E": ["half_parameters_with_scaler"],
        "F": ["average_stalls"],
    }
    return table[loop]


@right("11.7")
def a_chain_of_ifs(loop):
    if loop in "AD":
        return ("loss_not_scaled", "clip_before_unscale") if loop == "A" else ("unscale_twice",)
    if loop == "B":
        return ["logits_overflow", "constant_overflows", "logits_overflow"]
    return {"C": "adam_eps_vanishes", "E": "half_parameters_with_scaler"}.get(
        loop, "average_stalls"
    ).split()
