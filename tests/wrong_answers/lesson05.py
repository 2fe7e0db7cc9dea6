"""What people really write for exercise 05, and how right answers may look."""

import math

import torch
import torch.nn.functional as F

from tests.answers import right, wrong

# -- 05.1 training_step ------------------------------------------------------------------------


def loss_of(net, images, labels):
    with torch.autocast("cpu", dtype=torch.float16):
        return F.cross_entropy(net(images), labels)


def finite(net):
    return all(p.grad.isfinite().all() for p in net.parameters())


@wrong("05.1", "not unscaled")
def forgets_to_unscale(net, optimizer, images, labels, scale):
    optimizer.zero_grad()
    (loss_of(net, images, labels) * scale).backward()
    if finite(net):
        optimizer.step()
        return True
    return False


@wrong("05.1", "not unscaled")
def unscales_after_the_step(net, optimizer, images, labels, scale):
    optimizer.zero_grad()
    (loss_of(net, images, labels) * scale).backward()
    if not finite(net):
        return False
    optimizer.step()
    for p in net.parameters():
        p.grad /= scale
    return True


@wrong("05.1", "loss not scaled")
def forgets_to_scale(net, optimizer, images, labels, scale):
    optimizer.zero_grad()
    loss_of(net, images, labels).backward()
    for p in net.parameters():
        p.grad /= scale
    if finite(net):
        optimizer.step()
        return True
    return False


@wrong("05.1", "no scale at all")
def scales_and_unscales_the_loss(net, optimizer, images, labels, scale):
    optimizer.zero_grad()
    loss = loss_of(net, images, labels) * scale
    (loss / scale).backward()
    if finite(net):
        optimizer.step()
        return True
    return False


@wrong("05.1", "multiplied again")
def multiplies_instead_of_dividing(net, optimizer, images, labels, scale):
    optimizer.zero_grad()
    (loss_of(net, images, labels) * scale).backward()
    for p in net.parameters():
        p.grad *= scale
    if finite(net):
        optimizer.step()
        return True
    return False


@wrong("05.1", "never skips")
def steps_always(net, optimizer, images, labels, scale):
    optimizer.zero_grad()
    (loss_of(net, images, labels) * scale).backward()
    for p in net.parameters():
        p.grad /= scale
    optimizer.step()
    return True


@wrong("05.1", "inf alone")
def looks_for_inf_alone(net, optimizer, images, labels, scale):
    optimizer.zero_grad()
    (loss_of(net, images, labels) * scale).backward()
    for p in net.parameters():
        p.grad /= scale
    if any(p.grad.isinf().any() for p in net.parameters()):
        return False
    optimizer.step()
    return True


@wrong("05.1", "inf replaced")
def repairs_the_gradients(net, optimizer, images, labels, scale):
    optimizer.zero_grad()
    (loss_of(net, images, labels) * scale).backward()
    for p in net.parameters():
        p.grad[~p.grad.isfinite()] = 0
        p.grad /= scale
    optimizer.step()
    return True


@wrong("05.1", "looks at the loss")
def checks_the_scaled_loss(net, optimizer, images, labels, scale):
    optimizer.zero_grad()
    loss = loss_of(net, images, labels) * scale
    loss.backward()
    for p in net.parameters():
        p.grad /= scale
    if not loss.isfinite():
        return False
    optimizer.step()
    return True


@wrong("05.1", "unscaled in FP16")
def divides_in_fp16(net, optimizer, images, labels, scale):
    optimizer.zero_grad()
    (loss_of(net, images, labels) * scale).backward()
    for p in net.parameters():
        p.grad = (p.grad / scale).half().float()
    if not finite(net):
        return False
    optimizer.step()
    return True


@wrong("05.1", "gradients pile up")
def never_clears_gradients(net, optimizer, images, labels, scale):
    (loss_of(net, images, labels) * scale).backward()
    for p in net.parameters():
        p.grad /= scale
    if not finite(net):
        return False
    optimizer.step()
    return True


@wrong("05.1", "no autocast")
def computes_in_fp32(net, optimizer, images, labels, scale):
    optimizer.zero_grad()
    (F.cross_entropy(net(images), labels) * scale).backward()
    for p in net.parameters():
        p.grad /= scale
    if not finite(net):
        return False
    optimizer.step()
    return True


@wrong("05.1", "returns nothing")
def forgets_to_return(net, optimizer, images, labels, scale):
    checks_before_unscaling(net, optimizer, images, labels, scale)


@wrong("05.1", "returns whether it skipped")
def returns_the_opposite(net, optimizer, images, labels, scale):
    return not checks_before_unscaling(net, optimizer, images, labels, scale)


@right("05.1")
def checks_before_unscaling(net, optimizer, images, labels, scale):
    net.zero_grad()
    loss_of(net, images, labels).mul(scale).backward()
    if not finite(net):
        return False
    for p in net.parameters():
        p.grad.mul_(1 / scale)
    optimizer.step()
    return True


@right("05.1")
def starts_backward_with_the_scale(net, optimizer, images, labels, scale):
    loss = loss_of(net, images, labels)
    gradients = torch.autograd.grad(loss, list(net.parameters()), torch.tensor(scale))
    ok = bool(torch.stack([g.isfinite().all() for g in gradients]).all())
    for p, g in zip(net.parameters(), gradients, strict=True):
        p.grad = g / scale
    if ok:
        optimizer.step()
    return ok


@right("05.1")
def lets_gradscaler_do_it(net, optimizer, images, labels, scale):
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    optimizer.zero_grad()
    scaler.scale(loss_of(net, images, labels)).backward()
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale() >= scale


# -- 05.2 largest_scale ------------------------------------------------------------------------


def largest(gradients):
    return max(g.abs().max().item() for g in gradients)


@wrong("05.2", "overflow beyond 65504")
def asks_finfo(gradients):
    most = largest(gradients)
    limit = torch.finfo(torch.float16).max
    return 2.0 ** math.floor(math.log2(limit / most)) if most else 1.0


@wrong("05.2", "overflow from 65536")
def stays_below_2_to_the_16(gradients):
    most, scale = largest(gradients), 2.0**120
    while most and scale * most >= 65536:
        scale /= 2
    return scale if most else 1.0


@wrong("05.2", "tie stays finite")
def allows_65520(gradients):
    most = largest(gradients)
    return 2.0 ** math.floor(math.log2(65520 / most)) if most else 1.0


@wrong("05.2", "sign not removed")
def forgets_the_sign(gradients):
    most = max(g.max().item() for g in gradients)
    return 2.0 ** math.floor(math.log2(65519.99 / most)) if most else 1.0


@wrong("05.2", "no power of two")
def divides_and_leaves_it_there(gradients):
    most = largest(gradients)
    return 65520 / most if most else 1.0


@wrong("05.2", "rounded up")
def rounds_up(gradients):
    most = largest(gradients)
    return 2.0 ** math.ceil(math.log2(65520 / most)) if most else 1.0


@wrong("05.2", "rounded to nearest")
def rounds_the_logarithm(gradients):
    most = largest(gradients)
    return 2.0 ** round(math.log2(65520 / most)) if most else 1.0


@wrong("05.2", "never below one")
def stops_at_one(gradients):
    most, scale = largest(gradients), 1.0
    while most and 2 * scale * most < 65520:
        scale *= 2
    return scale


@wrong("05.2", "last layer decides")
def overwrites_in_the_loop(gradients):
    for gradient in gradients:
        most = gradient.abs().max().item()
    return 2.0 ** math.floor(math.log2(65519.99 / most)) if most else 1.0


@wrong("05.2", "smallest gradient decides")
def takes_the_smallest(gradients):
    every = torch.cat([g.flatten() for g in gradients]).abs()
    if not every.any():
        return 1.0
    return 2.0 ** math.floor(math.log2(65519.99 / every[every > 0].min().item()))


@wrong("05.2", "all zero")
def divides_by_zero(gradients):
    return 2.0 ** math.floor(math.log2(65519.99 / largest(gradients)))


@right("05.2")
def tries_casts(gradients):
    every = torch.cat([g.flatten() for g in gradients]).double()
    if not every.any():
        return 1.0
    scale = 2.0**120
    while (every * scale).half().isinf().any():
        scale /= 2
    return scale


@right("05.2")
def works_with_frexp(gradients):
    most = largest(gradients)
    if most == 0:
        return 1.0
    significand, exponent = math.frexp(most)
    fits = significand * 2**16 < 65520
    return 2.0 ** ((16 if fits else 15) - exponent)


# -- 05.3 smallest_scale -----------------------------------------------------------------------


def search(gradients, is_enough):
    every = torch.cat([g.flatten() for g in gradients]).double()
    for k in range(-40, 100):
        if is_enough(every * 2.0**k):
            return 2.0**k
    return math.inf


@wrong("05.3", "tie survives")
def keeps_the_tie(gradients, share):
    def is_enough(x):
        return ((x != 0) & (x.abs() < 2.0**-25)).sum() <= share * (x != 0).sum()

    return search(gradients, is_enough)


@wrong("05.3", "threshold at the smallest number")
def compares_with_the_smallest_number(gradients, share):
    def is_enough(x):
        return ((x != 0) & (x.abs() < 2.0**-24)).sum() <= share * (x != 0).sum()

    return search(gradients, is_enough)


@wrong("05.3", "subnormals are lost")
def asks_for_normal_numbers(gradients, share):
    def is_enough(x):
        return ((x != 0) & (x.abs() < 2.0**-14)).sum() <= share * (x != 0).sum()

    return search(gradients, is_enough)


@wrong("05.3", "share of all gradients")
def allows_a_share_of_all(gradients, share):
    return search(
        gradients, lambda x: ((x != 0) & (x.abs() <= 2.0**-25)).sum() <= share * x.numel()
    )


@wrong("05.3", "zeros are lost")
def counts_zeros_as_lost(gradients, share):
    return search(gradients, lambda x: (x.half() == 0).sum() <= share * (x != 0).sum())


@wrong("05.3", "none may be lost")
def saves_the_smallest(gradients, share):
    return search(gradients, lambda x: not ((x != 0) & (x.half() == 0)).any())


@wrong("05.3", "fewer than the share")
def goes_on_at_the_share(gradients, share):
    def is_enough(x):
        return ((x != 0) & (x.half() == 0)).sum() < share * (x != 0).sum()

    return search(gradients, is_enough)


@wrong("05.3", "sign not removed")
def forgets_abs(gradients, share):
    def is_enough(x):
        return ((x != 0) & (x <= 2.0**-25)).sum() <= share * (x != 0).sum()

    return search(gradients, is_enough)


@wrong("05.3", "never below one")
def starts_at_one(gradients, share):
    return max(1.0, right_search(gradients, share))


@wrong("05.3", "one power too small")
def returns_the_last_that_failed(gradients, share):
    return right_search(gradients, share) / 2


@wrong("05.3", "every layer by itself")
def satisfies_every_layer(gradients, share):
    return max(right_search([g], share) for g in gradients)


@right("05.3")
def right_search(gradients, share):
    def is_enough(x):
        return ((x != 0) & (x.half() == 0)).sum() <= share * (x != 0).sum()

    return search(gradients, is_enough)


@right("05.3")
def sorts_and_picks(gradients, share):
    sizes = torch.cat([g.flatten() for g in gradients]).abs()
    sizes = sizes[sizes != 0].sort().values
    lost = math.floor(share * len(sizes) + 1e-9)
    if lost == len(sizes):
        return 2.0**-40
    smallest_kept = sizes[lost].item()
    power = -40
    while smallest_kept * 2.0**power <= 2.0**-25:
        power += 1
    return torch.tensor(2.0, dtype=torch.float64) ** power
