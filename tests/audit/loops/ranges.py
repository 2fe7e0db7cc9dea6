"""Examples for the rules of range."""

import itertools

import torch
import torch.nn.functional as F
from torch import nn

from tests.audit.loops.dtype import amp_loop
from tests.audit.loops.examples import fires, silent
from tests.audit.loops.pieces import BF16, FP16, amp, batches, mlp, training


def constant_layers(value=1.0, widths=(32, 32, 32, 32, 3)):
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    for layer in layers:
        nn.init.constant_(layer.weight, value)
    return nn.Sequential(*layers)


@fires("forward_overflow")
def activations_grow_from_layer_to_layer():
    model, optimizer, scaler = training(constant_layers())
    for x, y in batches():
        with amp():
            loss = F.cross_entropy(model(x.abs() * 2), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@fires("forward_overflow")
def temperature_of_a_millionth():
    amp_loop(*training(), loss_of=lambda out, y: F.cross_entropy(out / 1e-6, y))


@fires("forward_overflow")
def squares_of_a_norm_by_hand():
    def loss(out, y):
        out = out * 4000
        return F.cross_entropy(out * torch.rsqrt(out.pow(2).mean(-1, keepdim=True) + 1e-4), y)

    amp_loop(*training(), loss_of=loss)


@silent("forward_overflow", "little_headroom", "forward_not_finite")
def the_same_growth_in_bf16():
    model, optimizer, scaler = training(constant_layers(), lr=1e-5, enabled=False)
    amp_loop(model, optimizer, scaler, dtype=BF16)


class Attention(nn.Module):
    def __init__(self, scale_first):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))
        self.scale_first = scale_first
        for layer in (self.q, self.k):
            nn.init.constant_(layer.weight, 1.0 if scale_first else 2.0)

    def forward(self, x):
        q, k = self.q(x), self.k(x)
        scores = (q / 32) @ k.mT if self.scale_first else q @ k.mT / 32**0.5
        return scores.softmax(-1) @ self.v(x)


def _attend(scale_first):
    model, optimizer, scaler = training(Attention(scale_first))
    for x, _ in batches():
        with amp():
            loss = model(x.view(4, 8, 32).abs()).float().pow(2).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@fires("logits_overflow")
def attention_scaled_too_late():
    _attend(scale_first=False)


@silent("logits_overflow")
def attention_scaled_first():
    _attend(scale_first=True)


def _segment(loss_of, bias=9.0):
    model = nn.Conv2d(1, 1, 1)
    nn.init.constant_(model.weight, 0.0)
    nn.init.constant_(model.bias, bias)
    model, optimizer, scaler = training(model)
    for _ in range(3):
        with amp():
            p = model(torch.randn(2, 1, 256, 256)).sigmoid()
            loss = loss_of(p, torch.ones_like(p))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@fires("sum_overflow")
def dice_in_fp16():
    _segment(lambda p, t: 1 - 2 * (p * t).sum() / (p.sum() + t.sum()))


@silent("sum_overflow")
def dice_with_sums_in_fp32():
    def dice(p, t):
        p, t = p.float(), t.float()
        return 1 - 2 * (p * t).sum() / (p.sum() + t.sum())

    _segment(dice)


@fires("forward_not_finite")
def logarithm_of_a_saturated_sigmoid():
    model, optimizer, scaler = training(nn.Linear(32, 1))
    for x, y in batches():
        target = y.gt(0).float()[:, None]
        with amp():
            p = torch.sigmoid(model(x) * 200)
        p = p.float()
        loss = -(target * p.log() + (1 - target) * (1 - p).log()).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@silent("forward_not_finite", "constant_vanishes")
def logarithm_of_a_guarded_sigmoid():
    model, optimizer, scaler = training(nn.Linear(32, 1))
    for x, y in batches():
        target = y.gt(0).float()[:, None]
        with amp():
            p = torch.sigmoid(model(x))
        p = p.float().clamp(1e-6, 1 - 1e-6)
        loss = -(target * p.log() + (1 - target) * (1 - p).log()).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@fires("inf_left_out")
def infinite_rows_left_out_of_the_loss():
    model, optimizer, _ = training(nn.Linear(32, 3))
    for x, y in batches():
        out = model(x)
        with torch.no_grad():
            weight = 1 / (y == 0).float()
        weight = torch.where(weight.isfinite(), weight, 0.0)
        loss = (F.cross_entropy(out, y, reduction="none") * weight).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@silent("inf_left_out", "constant_overflows", "constant_vanishes")
def masks_of_infinity():
    def loss(out, y):
        return F.cross_entropy(out.masked_fill(out < -3, float("-inf")).clamp(min=-100.0), y)

    amp_loop(*training(), loss_of=loss)


@fires("little_headroom")
def activations_near_the_limit():
    model, _, _ = training(nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 3)))
    nn.init.constant_(model[0].weight, 30.0)
    with torch.no_grad(), amp():
        for _ in range(3):
            model(torch.full((8, 32), 25.0))


@fires("input_not_finite")
def nan_in_a_batch():
    model, optimizer, scaler = training()
    for i, (x, y) in enumerate(batches()):
        if i == 3:
            x[0, 0] = float("nan")
        with amp():
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@silent("input_not_finite", "weights_not_finite")
def gradients_with_inf_looked_at():
    """The norm of overflowed gradients is computed by hand: inf, and no fault of the data."""
    model, optimizer, scaler = training(init_scale=2.0**30)
    for x, y in batches():
        with amp():
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        scaler.step(optimizer)
        scaler.update()


@silent("input_not_finite")
def nan_in_a_weight_replaced():
    """The weight was not sound, which is no fault of the data."""
    model, optimizer, scaler = training()
    model[0].weight.data[0, 0] = float("nan")
    model[0].weight.data = torch.nan_to_num(model[0].weight.data)
    amp_loop(model, optimizer, scaler)


def _rotary(first_position, with_autocast):
    model, optimizer, _ = training()
    frequencies = 1 / 10 ** (torch.arange(16) / 4)
    for _, y in batches(batch=8, n=64):
        with amp(BF16):
            positions = torch.arange(first_position, first_position + 8, dtype=torch.float32)
            with torch.autocast("cpu", dtype=BF16, enabled=with_autocast):
                angles = positions[:, None] @ frequencies[None]
            loss = F.cross_entropy(model(torch.cat([angles.sin(), angles.cos()], -1)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fires("positions_rounded")
def rotary_positions_under_autocast():
    _rotary(1000, with_autocast=True)


@fires("positions_rounded")
def timesteps_cast_to_bf16():
    model, optimizer, _ = training()
    for x, y in batches():
        with amp(BF16):
            timesteps = torch.arange(4096, 4096 + 32).to(BF16)
            loss = F.cross_entropy(model(torch.sin(x.bfloat16() + timesteps)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fires("positions_rounded")
def positions_counted_in_bf16():
    """The cumulative sum of a mask stands still at 256."""
    model, optimizer, _ = training(nn.Linear(512, 3))
    for _, y in batches(batch=8, n=64):
        with amp(BF16):
            positions = torch.ones(8, 512).bfloat16().cumsum(-1)
            loss = F.cross_entropy(model(torch.sin(positions.float() / 50)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fires("forward_overflow")
def variance_of_bytes_in_fp16():
    """The mean of squares is inf, and dividing by it gives 0: the loss stays finite."""
    model, optimizer, scaler = training(nn.Linear(32, 3))
    for x, y in batches():
        with amp():
            h = (x.abs() * 120).half()
            power = (h * h).mean(-1, keepdim=True)
            loss = F.cross_entropy(model(h / torch.sqrt(power + 1)), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@silent("positions_rounded")
def rotary_positions_outside_autocast():
    _rotary(1000, with_autocast=False)


@silent("positions_rounded")
def few_positions_under_autocast():
    _rotary(0, with_autocast=True)


# -- constants -----------------------------------------------------------------------------------


@fires("constant_overflows")
def additive_mask_of_a_billion():
    def loss(out, y):
        keep = (out > -1).to(out.dtype)
        return F.cross_entropy(out + (1.0 - keep) * -1e9, y)

    amp_loop(*training(), loss_of=loss)


@fires("constant_overflows")
def where_with_a_large_number():
    def loss(out, y):
        return F.cross_entropy(torch.where(out > -0.5, out, -1e5), y)

    amp_loop(*training(), loss_of=loss)


@silent("constant_overflows")
def mask_of_a_billion_in_fp32():
    def loss(out, y):
        return F.cross_entropy(out.float().masked_fill(out < -1, -1e9), y)

    amp_loop(*training(), loss_of=loss)


@fires("constant_vanishes")
def guard_of_a_hundred_millionth():
    def loss(out, y):
        return F.cross_entropy(out / (out.pow(2).mean(-1, keepdim=True) + 1e-8).sqrt(), y)

    amp_loop(*training(), loss_of=loss)


# -- the scale -----------------------------------------------------------------------------------


def _root_at_zero(out, y):
    """Finite, but its gradient is not: inf times 0."""
    out = out.float()
    return (out - out.detach()).pow(2).sum(-1).sqrt().mean() + out.mean() * 0


def _long_loop(loss_of, steps=24, **scaler_options):
    model, optimizer, scaler = training(nn.Linear(32, 3), **scaler_options)
    done = 0
    while done < steps:
        for x, y in batches():
            done += 1
            with amp():
                out = model(x)
            loss = loss_of(out, y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


@fires("scale_collapsed")
def gradient_of_a_root_at_zero():
    _long_loop(_root_at_zero)


@fires("every_step_skipped")
def scale_started_far_too_high():
    _long_loop(lambda out, y: F.cross_entropy(out, y), steps=10, init_scale=2.0**40)


@fires("scale_is_zero")
def scale_halved_to_nothing():
    _long_loop(_root_at_zero, steps=20, init_scale=2.0**-140)


@fires("skips_persist")
def one_step_in_four_overflows():
    count = 0

    def loss(out, y):
        nonlocal count
        count += 1
        factor = float("inf") if count > 4 and count % 4 == 0 else 1.0
        out = out.float()
        out.register_hook(lambda g: g * factor)
        return F.cross_entropy(out, y)

    _long_loop(loss, init_scale=1024.0)


@silent("scale_collapsed", "scale_is_zero", "every_step_skipped", "skips_persist")
def scale_that_finds_its_place():
    _long_loop(lambda out, y: F.cross_entropy(out, y) * 1000)


@fires("first_steps_skipped")
def losses_weighted_by_a_thousand():
    _long_loop(lambda out, y: F.cross_entropy(out, y) * 1000)


@silent("first_steps_skipped", "scale_collapsed")
def scale_that_fits_from_the_start():
    _long_loop(lambda out, y: F.cross_entropy(out, y), init_scale=1024.0)


@fires("scale_too_low")
def scale_of_one_and_a_small_loss():
    amp_loop(
        *training(init_scale=2.0, growth_interval=10_000),
        loss_of=lambda out, y: F.cross_entropy(out, y) * 1e-3,
    )


@silent("scale_too_low", "fp16_without_scaler")
def scale_that_is_high_enough():
    amp_loop(*training(init_scale=2.0**14))


@fires("fp16_without_scaler")
def fp16_and_no_scaler():
    model, optimizer, _ = training()
    for x, y in batches():
        with amp(FP16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fires("weights_not_finite")
def rate_of_a_googol():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 1e38)
    for x, y in batches(n=64):
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y) * 1e6).backward()
        optimizer.step()
