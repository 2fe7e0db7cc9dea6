"""What people really write for exercise 06, and how right answers may look."""

import math

import torch

from tests.answers import right, wrong

# -- 06.1 next_scale ---------------------------------------------------------------------------


@wrong("06.1", "count survives a skip")
def forgets_to_reset_after_a_skip(scale, good, found_inf, interval):
    if found_inf:
        return scale * 0.5, good
    if good + 1 == interval:
        return scale * 2, 0
    return scale, good + 1


@wrong("06.1", "skips count as steps")
def counts_every_step(scale, good, found_inf, interval):
    good += 1
    if found_inf:
        return scale / 2, good
    if good == interval:
        return scale * 2, 0
    return scale, good


@wrong("06.1", "one step late")
def compares_before_counting(scale, good, found_inf, interval):
    if found_inf:
        return scale / 2, 0
    if good >= interval:
        return scale * 2, 0
    return scale, good + 1


@wrong("06.1", "count goes on after growth")
def forgets_to_reset_after_growth(scale, good, found_inf, interval):
    if found_inf:
        return scale / 2, 0
    good += 1
    if good >= interval:
        scale *= 2
    return scale, good


@wrong("06.1", "grows at every good step")
def ignores_the_interval(scale, good, found_inf, interval):
    return (scale / 2, 0) if found_inf else (scale * 2, 0)


@wrong("06.1", "upside down")
def doubles_on_overflow(scale, good, found_inf, interval):
    if found_inf:
        return scale * 2, 0
    good += 1
    return (scale / 2, 0) if good == interval else (scale, good)


@wrong("06.1", "floor at one")
def adds_a_floor(scale, good, found_inf, interval):
    if found_inf:
        return max(1.0, scale / 2), 0
    good += 1
    return (scale * 2, 0) if good == interval else (scale, good)


@wrong("06.1", "back to the start")
def starts_over(scale, good, found_inf, interval):
    if found_inf:
        return 65536.0, 0
    good += 1
    return (scale * 2, 0) if good == interval else (scale, good)


@right("06.1")
def works_with_exponents(scale, good, found_inf, interval):
    exponent = math.log2(scale) - found_inf
    good = 0 if found_inf else good + 1
    grown, good = divmod(good, interval)
    return 2.0 ** (exponent + grown), good


@right("06.1")
def asks_torch(scale, good, found_inf, interval):
    scale, good = torch.tensor(scale), torch.tensor(good, dtype=torch.int32)
    torch._amp_update_scale_(scale, good, torch.tensor(float(found_inf)), 2.0, 0.5, interval)
    return scale, good


# -- 06.2 unscale_and_check --------------------------------------------------------------------


@wrong("06.2", "inf alone")
def looks_for_inf(gradients, scale):
    return [g / scale for g in gradients], any(torch.isinf(g).any().item() for g in gradients)


@wrong("06.2", "NaN alone")
def looks_for_nan(gradients, scale):
    return [g / scale for g in gradients], any(torch.isnan(g).any().item() for g in gradients)


@wrong("06.2", "plus infinity alone")
def compares_with_inf(gradients, scale):
    bad = any(bool((g == float("inf")).any()) or bool((g != g).any()) for g in gradients)
    return [g / scale for g in gradients], bad


@wrong("06.2", "size of the gradients")
def compares_with_65504(gradients, scale):
    return [g / scale for g in gradients], any(
        not bool((g.abs() <= 65504).all()) for g in gradients
    )


@wrong("06.2", "sum overflows")
def looks_at_the_sum(gradients, scale):
    return [g / scale for g in gradients], any(not math.isfinite(g.sum().item()) for g in gradients)


@wrong("06.2", "multiplied again")
def multiplies_again(gradients, scale):
    bad = any(not g.isfinite().all() for g in gradients)
    return [g * scale for g in gradients], bool(bad)


@wrong("06.2", "not unscaled")
def forgets_to_unscale(gradients, scale):
    for g in gradients:
        g / scale
    return gradients, any(not bool(g.isfinite().all()) for g in gradients)


@wrong("06.2", "inf replaced")
def repairs_infinities(gradients, scale):
    bad = any(not bool(g.isfinite().all()) for g in gradients)
    clean = [torch.where(g.isfinite(), g, torch.zeros_like(g)) for g in gradients]
    return [g / scale for g in clean], bad


@wrong("06.2", "last gradient decides")
def overwrites_the_answer(gradients, scale):
    found_inf, unscaled = False, []
    for g in gradients:
        found_inf = not bool(torch.isfinite(g).all())
        unscaled.append(g / scale)
    return unscaled, found_inf


@wrong("06.2", "says what is finite")
def says_whether_it_is_fine(gradients, scale):
    return [g / scale for g in gradients], all(bool(g.isfinite().all()) for g in gradients)


@right("06.2")
def unscales_in_place_and_looks_afterwards(gradients, scale):
    for g in gradients:
        g.mul_(1.0 / scale)
    return gradients, sum(int((~g.isfinite()).sum()) for g in gradients) > 0


@right("06.2")
def answers_with_a_tensor(gradients, scale):
    unscaled = tuple(g / scale for g in gradients)
    found = torch.tensor(False)
    for g in unscaled:
        found = found | (g - g).isnan().any()
    return unscaled, found


# -- 06.3 MyScaler -----------------------------------------------------------------------------


class Base:
    def __init__(self, init_scale, interval):
        self.s, self.interval, self.good, self.bad = init_scale, interval, 0, False

    def get_scale(self):
        return self.s

    def scale(self, loss):
        return loss * self.s

    def grads(self, optimizer):
        return [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]

    def look(self, optimizer):
        return any(not bool(g.isfinite().all()) for g in self.grads(optimizer))

    def step(self, optimizer):
        self.bad = self.look(optimizer)
        if not self.bad:
            for g in self.grads(optimizer):
                g /= self.s
            optimizer.step()

    def update(self):
        if self.bad:
            self.s, self.good = self.s / 2, 0
            return
        self.good += 1
        if self.good == self.interval:
            self.s, self.good = self.s * 2, 0


@wrong("06.3", "not unscaled")
class ForgetsToUnscale(Base):
    def step(self, optimizer):
        self.bad = self.look(optimizer)
        if not self.bad:
            optimizer.step()


@wrong("06.3", "steps anyway")
class StepsAnyway(Base):
    def step(self, optimizer):
        self.bad = self.look(optimizer)
        for g in self.grads(optimizer):
            g /= self.s
        optimizer.step()


@wrong("06.3", "clips instead of skipping")
class Clips(Base):
    def step(self, optimizer):
        for g in self.grads(optimizer):
            torch.nan_to_num_(g, nan=0.0, posinf=65504.0, neginf=-65504.0)
        super().step(optimizer)


@wrong("06.3", "inf alone")
class LooksForInf(Base):
    def look(self, optimizer):
        return any(bool(torch.isinf(g).any()) for g in self.grads(optimizer))


@wrong("06.3", "growth counted over skips")
class NeverResetsTheCount(Base):
    def update(self):
        if self.bad:
            self.s /= 2
            return
        self.good += 1
        if self.good == self.interval:
            self.s, self.good = self.s * 2, 0


@wrong("06.3", "once bad, always bad")
class NeverForgets(Base):
    def step(self, optimizer):
        if self.look(optimizer):
            self.bad = True
        if not self.bad:
            super().step(optimizer)


@wrong("06.3", "never grows")
class OnlyBacksOff(Base):
    def update(self):
        if self.bad:
            self.s /= 2


@wrong("06.3", "unscaled by another scale")
class UpdatesTooEarly(Base):
    def step(self, optimizer):
        self.bad = self.look(optimizer)
        Base.update(self)
        if not self.bad:
            for g in self.grads(optimizer):
                g /= self.s
            optimizer.step()

    def update(self):
        pass


@wrong("06.3", "looks at the loss")
class LooksAtTheLoss(Base):
    def scale(self, loss):
        self.last = loss * self.s
        return self.last

    def look(self, optimizer):
        return not math.isfinite(self.last.item())


@right("06.3")
class Plain(Base):
    pass


@right("06.3")
class DecidesInStep(Base):
    def step(self, optimizer):
        super().step(optimizer)
        self.next = Base(self.s, self.interval)
        self.next.good, self.next.bad = self.good, self.bad
        self.next.update()

    def update(self):
        self.s, self.good = self.next.s, self.next.good


@right("06.3")
class Delegates:
    def __init__(self, init_scale, interval):
        self.inner = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=interval)

    def __getattr__(self, name):
        return getattr(self.inner, name)
