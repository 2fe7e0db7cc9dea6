"""The scalers against torch.amp.GradScaler("cpu"), step for step."""

import math
import pickle
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mptutor as mpt
from mptutor.scaling import DynamicLossScaler, ScalerState, StaticLossScaler, next_state

# -- one training run, driven in both worlds at once ----------------------------------------------


class World:
    """A scaler, two optimizers and their parameters; every act says what came of it."""

    def __init__(self, make_scaler, **options):
        self.make_scaler = make_scaler
        self.scaler = make_scaler(**options)
        generator = torch.Generator().manual_seed(0)
        self.params = [torch.randn(4, generator=generator).requires_grad_() for _ in range(3)]
        self.optimizers = [
            torch.optim.SGD(self.params[:2], lr=0.1, momentum=0.9),
            torch.optim.AdamW(self.params[2:], lr=0.01),
        ]
        self.steps_run = 0
        for optimizer in self.optimizers:
            optimizer.register_step_post_hook(self._count)

    def _count(self, *_):
        self.steps_run += 1

    def backward(self, which, values):
        """Give a parameter the gradient ``values``, by way of FP16 as under autocast."""
        weights = torch.tensor(values, dtype=torch.float16)
        loss = (self.params[which].half() * weights).float().sum()
        self.scaler.scale(loss).backward()

    def unscale_(self, which):
        self.scaler.unscale_(self.optimizers[which])

    def step(self, which):
        self.scaler.step(self.optimizers[which])

    def update(self):
        self.scaler.update()

    def update_to(self, new_scale):
        self.scaler.update(new_scale)

    def update_to_tensor(self, new_scale):
        self.scaler.update(torch.tensor(new_scale))

    def zero_grad(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def save_and_resume(self):
        saved = self.scaler.state_dict()
        self.scaler = self.make_scaler()
        self.scaler.load_state_dict(saved)

    def load(self, scale, tracker):
        # GradScaler rounds its scale to FP32 when it is first used; ours always has.
        fp32 = torch.tensor(scale).item()
        changed = {**self.scaler.state_dict(), "scale": fp32, "_growth_tracker": tracker}
        self.scaler.load_state_dict(changed)

    def set(self, name, value):
        getattr(self.scaler, f"set_{name}")(value)

    def do(self, act, *arguments):
        """Return the type of the error that ``act`` raises, None if it raises none."""
        try:
            getattr(self, act)(*arguments)
        except (RuntimeError, ValueError, AssertionError) as error:
            return type(error)
        return None

    def bits(self):
        """Parameters, gradients and momentum, so that NaN equals NaN and -0.0 is not 0.0."""
        tensors = [t for p in self.params for t in (p.detach(), p.grad) if t is not None]
        for optimizer in self.optimizers:
            for state in optimizer.state.values():
                tensors += [t for t in state.values() if isinstance(t, torch.Tensor)]
        return [t.float().view(torch.int32).tolist() for t in tensors]


def real_scaler(**options):
    return torch.amp.GradScaler("cpu", **options)


finite = st.floats(-8, 8, width=16)
gradient = st.lists(finite, min_size=4, max_size=4) | st.lists(
    st.sampled_from([1.0, 1e-7, 60000.0, math.inf, -math.inf, math.nan]), min_size=4, max_size=4
)
positive_fp32 = st.sampled_from([0.0, 2.0**-140, 0.1, 1.0, 1000.0, 2.0**16, 3e38]) | st.floats(
    2.0**-20, 2.0**30, width=32
)
optimizer_index = st.integers(0, 1)
growth_interval = st.integers(1, 4)
factor = st.sampled_from([1.5, 2.0, 3.3, 2.0**40])
backoff = st.sampled_from([0.5, 0.3, 0.9, 2.0**-40])

odd_act = st.one_of(
    st.tuples(st.just("backward"), st.integers(0, 2), gradient),
    st.tuples(st.just("unscale_"), optimizer_index),
    st.tuples(st.just("step"), optimizer_index),
    st.tuples(st.just("update")),
    st.tuples(st.just("update_to"), positive_fp32),
    st.tuples(st.just("update_to_tensor"), positive_fp32),
    st.tuples(st.just("zero_grad")),
    st.tuples(st.just("save_and_resume")),
    st.tuples(st.just("load"), positive_fp32, st.integers(0, 3)),
    st.tuples(st.just("set"), st.just("growth_interval"), growth_interval),
    st.tuples(st.just("set"), st.just("growth_factor"), factor),
    st.tuples(st.just("set"), st.just("backoff_factor"), backoff),
)


@st.composite
def proper_step(draw):
    """One training step as it should be: one or both optimizers, sometimes unscaled by hand."""
    acts = [("zero_grad",)]
    used = draw(st.sampled_from([[0], [1], [0, 1]]))
    for which in used:
        acts.append(("backward", 2 * which, draw(gradient)))
    for which in used:
        acts += [("unscale_", which)] * draw(st.booleans()) + [("step", which)]
    return [*acts, ("update",)]


runs = st.lists(proper_step() | st.lists(odd_act, min_size=1, max_size=3), max_size=12)


@settings(deadline=None, max_examples=150)
@given(runs, positive_fp32, factor, backoff, growth_interval)
def test_every_step_is_gradscalers(run, init_scale, growth_factor, backoff_factor, interval):
    options = {
        "init_scale": init_scale,
        "growth_factor": growth_factor,
        "backoff_factor": backoff_factor,
        "growth_interval": interval,
    }
    ours, theirs = World(DynamicLossScaler, **options), World(real_scaler, **options)
    # Use the scale once, so that GradScaler rounds it to FP32; ours has from the start.
    for world in (ours, theirs):
        world.do("backward", 0, [1.0] * 4)
        world.do("zero_grad")
    for act in [act for acts in run for act in acts]:
        steps_before = theirs.steps_run
        error = theirs.do(*act)
        assert ours.do(*act) == error, act
        assert ours.steps_run == theirs.steps_run
        if act[0] == "step" and error is None:
            assert ours.scaler.stepped == (theirs.steps_run > steps_before)
        if act[0] == "save_and_resume":
            assert ours.scaler.get_scale() == theirs.scaler.get_scale()
        assert ours.scaler.state_dict() == theirs.scaler.state_dict(), act
        assert ours.bits() == theirs.bits(), act


@settings(deadline=None, max_examples=50)
@given(st.lists(proper_step(), max_size=8), growth_interval)
def test_a_checkpoint_of_either_resumes_in_the_other(steps, interval):
    ours = World(DynamicLossScaler, growth_interval=interval)
    theirs = World(real_scaler, growth_interval=interval)
    for acts in steps:
        for act in acts:
            assert ours.do(*act) == theirs.do(*act)
        saved = ours.scaler.state_dict(), theirs.scaler.state_dict()
        theirs.scaler, ours.scaler = real_scaler(), DynamicLossScaler()
        theirs.scaler.load_state_dict(saved[0])
        ours.scaler.load_state_dict(saved[1])
    assert ours.scaler.state_dict() == theirs.scaler.state_dict()
    assert ours.bits() == theirs.bits()


# -- the state machine ----------------------------------------------------------------------------


@settings(deadline=None)
@given(
    positive_fp32,
    st.integers(0, 4),
    factor,
    backoff,
    growth_interval,
    st.lists(st.booleans(), max_size=30),
)
def test_next_state_is_what_gradscalers_kernel_does(
    scale, tracker, growth_factor, backoff_factor, interval, found
):
    scale = torch.tensor(scale).item()
    state = ScalerState(scale, tracker, 0, growth_factor, backoff_factor, interval)
    their_scale, their_tracker = torch.tensor(scale), torch.tensor(tracker, dtype=torch.int32)
    for found_inf in found:
        torch._amp_update_scale_(
            their_scale,
            their_tracker,
            torch.tensor(float(found_inf)),
            growth_factor,
            backoff_factor,
            interval,
        )
        state = next_state(state, found_inf)
        assert (state.scale, state.growth_tracker) == (their_scale.item(), their_tracker.item())


def test_defaults_are_gradscalers():
    assert DynamicLossScaler().state_dict() == real_scaler().state_dict()
    assert DynamicLossScaler().is_enabled() and mpt.DynamicLossScaler is DynamicLossScaler


def test_the_scale_doubles_after_2000_steps():
    state = ScalerState()
    for _ in range(1999):
        state = next_state(state, found_inf=False)
    assert state.scale == 2.0**16
    assert next_state(state, found_inf=False) == ScalerState(scale=2.0**17)


def test_the_scale_is_zero_after_166_skips_and_then_the_parameters_are_nan():
    ours, theirs = World(DynamicLossScaler), World(real_scaler)
    for world in (ours, theirs):
        for skips in range(1, 167):
            world.backward(0, [math.inf] * 4)
            world.step(0)
            world.update()
            world.zero_grad()
            assert (world.scaler.get_scale() == 0) == (skips == 166)
        assert all(p.isfinite().all() for p in world.params)
        world.backward(0, [1.0] * 4)
        world.step(0)
    assert ours.scaler.stepped
    assert ours.params[0].isnan().all()
    assert ours.bits() == theirs.bits()


def test_a_floor_holds_and_the_healthy_step_survives():
    world = World(DynamicLossScaler, min_scale=1.0)
    for _ in range(200):
        world.backward(0, [math.nan] * 4)
        world.step(0)
        world.update()
        world.zero_grad()
    assert world.scaler.get_scale() == 1.0
    world.backward(0, [1.0] * 4)
    world.step(0)
    assert world.params[0].isfinite().all()


@given(st.lists(st.booleans(), max_size=60), st.floats(0, 2.0**16, width=32))
def test_with_a_floor_the_scale_is_the_larger_of_floor_and_unfloored_halving(found, floor):
    state = ScalerState(min_scale=floor)
    for found_inf in found:
        before, state = state, next_state(state, found_inf)
        if found_inf:
            assert state.scale == max(before.scale / 2, floor)
    trailing = found[::-1].index(False) if False in found else len(found)
    assert state.skips_in_a_row == trailing


# -- scaling a loss -------------------------------------------------------------------------------


def losses():
    return [torch.tensor(0.1), torch.tensor([0.1, 7.0]), torch.tensor([3.0], dtype=torch.float16)]


@pytest.mark.parametrize("outputs", [losses(), tuple(losses()), [losses(), (losses(),)]])
@pytest.mark.parametrize("init_scale", [2.0**16, 3.0, 0.1])
def test_scale_of_nested_losses_is_gradscalers(outputs, init_scale):
    ours = DynamicLossScaler(init_scale).scale(outputs)
    theirs = real_scaler(init_scale=init_scale).scale(outputs)

    def compare(a, b):
        assert type(a) is type(b)
        if isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype and torch.equal(a, b)
        else:
            assert len(a) == len(b)
            [compare(x, y) for x, y in zip(a, b, strict=True)]

    compare(ours, theirs)


def test_scale_of_other_iterables_is_computed_as_it_is_read():
    scaler = DynamicLossScaler(4.0)
    scaled = scaler.scale(loss for loss in losses())
    with pytest.raises(AssertionError):
        scaler.update()  # nothing scaled so far
    assert next(scaled).item() == torch.tensor(0.1).item() * 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_scaled_loss_has_gradscalers_dtype_and_value(dtype, shape):
    loss = torch.full(shape, 1.5, dtype=dtype)
    ours, theirs = DynamicLossScaler().scale(loss), real_scaler().scale(loss)
    assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)


@pytest.mark.parametrize("outputs", [1.0, None])
def test_scale_refuses_what_is_no_tensor(outputs):
    with pytest.raises(ValueError, match="outputs"):
        real_scaler().scale(outputs)
    with pytest.raises(ValueError, match=f"outputs is a {type(outputs).__name__}"):
        DynamicLossScaler().scale(outputs)


# -- gradients of other kinds ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float32])
@pytest.mark.parametrize("scale", [2.0**16, 3.0, 2.0**-149, 2.0**127, 0.0])
def test_unscaling_other_dtypes_gives_gradscalers_bits(dtype, scale):
    values = [1.0, -0.0, 1e-30, 3e38, 0.1, 123456.0, -7.25]
    grads = []
    for scaler in (DynamicLossScaler(), real_scaler()):
        param = torch.zeros(len(values), dtype=dtype, requires_grad=True)
        scaler.scale(torch.tensor(1.0))
        scaler.update(scale)
        param.grad = torch.tensor(values, dtype=dtype)
        optimizer = torch.optim.SGD([param], lr=1.0)
        scaler.unscale_(optimizer)
        grads.append(param.grad)
    assert torch.equal(torch.signbit(grads[0]), torch.signbit(grads[1]))
    assert torch.equal(grads[0].nan_to_num(nan=42.0), grads[1].nan_to_num(nan=42.0))


@pytest.mark.parametrize("value", [0.5, math.inf])
def test_sparse_gradients(value):
    tables = []
    for scaler in (DynamicLossScaler(), real_scaler()):
        torch.manual_seed(0)
        embedding = torch.nn.Embedding(5, 3, sparse=True)
        optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1)
        loss = (embedding(torch.tensor([1, 3, 3])) * value).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        tables.append((embedding.weight.detach(), scaler.get_scale()))
    assert torch.equal(tables[0][0], tables[1][0])
    assert tables[0][1] == tables[1][1] == (2.0**16 if value == 0.5 else 2.0**15)


def test_a_fused_optimizer_takes_the_same_step():
    weights = []
    for scaler in (DynamicLossScaler(), real_scaler()):
        param = torch.linspace(-1, 1, 50).requires_grad_()
        optimizer = torch.optim.AdamW([param], lr=0.1, fused=True)
        for value in (0.3, math.inf, -0.7):
            optimizer.zero_grad()
            scaler.scale((param * value).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        weights.append((param.detach(), scaler.get_scale()))
    torch.testing.assert_close(weights[0][0], weights[1][0], rtol=1e-6, atol=0)
    assert weights[0][1] == weights[1][1] == 2.0**15


# -- misuse ---------------------------------------------------------------------------------------

MISUSE = {
    "unscale twice": (
        [("backward", 0, [1.0] * 4), ("unscale_", 0), ("unscale_", 0)],
        RuntimeError,
        "unscale_.* already been called .* since the last update",
    ),
    "unscale after step": (
        [("backward", 0, [1.0] * 4), ("step", 0), ("unscale_", 0)],
        RuntimeError,
        "unscale_.* after step",
    ),
    "step twice": (
        [("backward", 0, [1.0] * 4), ("step", 0), ("step", 0)],
        RuntimeError,
        "step.* already been called since the last update",
    ),
    "step without gradients": (
        [("backward", 0, [1.0] * 4), ("step", 1)],
        AssertionError,
        "No inf checks were recorded for this optimizer",
    ),
    "update without step": (
        [("backward", 0, [1.0] * 4), ("update",)],
        AssertionError,
        "No inf checks were recorded prior to update",
    ),
    "step without scale": ([("step", 0)], AssertionError, "step"),
    "unscale without scale": ([("unscale_", 0)], AssertionError, "unscale_"),
    "update without scale": ([("update",)], AssertionError, "update"),
}


@pytest.mark.parametrize("name", MISUSE)
@pytest.mark.parametrize("make_scaler", [DynamicLossScaler, StaticLossScaler, real_scaler])
def test_misuse_raises_what_gradscaler_raises(name, make_scaler):
    acts, error, message = MISUSE[name]
    world = World(make_scaler)
    for act, *arguments in acts[:-1]:
        getattr(world, act)(*arguments)
    act, *arguments = acts[-1]
    with pytest.raises(error, match=message):
        getattr(world, act)(*arguments)


@pytest.mark.parametrize("make_scaler", [DynamicLossScaler, real_scaler])
def test_fp16_gradients_are_refused_and_nothing_is_changed(make_scaler):
    param = torch.ones(3, dtype=torch.float16, requires_grad=True)
    other = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([other, param], lr=0.1)
    scaler = make_scaler(init_scale=8.0)
    scaler.scale(param.sum() + other.sum()).backward()
    for act in (scaler.unscale_, scaler.step):
        with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
            act(optimizer)
    assert other.grad.tolist() == [8.0] * 3


@pytest.mark.parametrize("make_scaler", [DynamicLossScaler, real_scaler])
def test_closures_are_refused(make_scaler):
    scaler, param = make_scaler(), torch.ones(1, requires_grad=True)
    scaler.scale(param.sum()).backward()
    with pytest.raises(RuntimeError, match=r"[Cc]losure"):
        scaler.step(torch.optim.SGD([param], lr=0.1), closure=lambda: None)


@pytest.mark.parametrize("make_scaler", [DynamicLossScaler, real_scaler])
@pytest.mark.parametrize(
    "new_scale", [torch.ones(2), torch.ones(1, requires_grad=True)], ids=["two", "with grad"]
)
def test_update_refuses_a_tensor_it_cannot_take_a_scale_from(make_scaler, new_scale):
    scaler = make_scaler()
    scaler.scale(torch.ones(1))
    with pytest.raises(AssertionError, match="new_scale"):
        scaler.update(new_scale)


@pytest.mark.parametrize("make_scaler", [DynamicLossScaler, real_scaler])
@pytest.mark.parametrize("options", [{"growth_factor": 1.0}, {"backoff_factor": 1.0}])
def test_factors_that_make_no_sense_are_refused(make_scaler, options):
    with pytest.raises(AssertionError, match=r"growth.factor|backoff.factor"):
        make_scaler(**options)
    assert not make_scaler(enabled=False, **options).is_enabled()


@pytest.mark.parametrize("min_scale", [-1.0, 2.0**17])
def test_a_floor_below_zero_or_above_the_scale_is_refused(min_scale):
    with pytest.raises(ValueError, match="min_scale"):
        DynamicLossScaler(min_scale=min_scale)


@pytest.mark.parametrize("make_scaler", [DynamicLossScaler, StaticLossScaler])
@pytest.mark.parametrize("number", [0, -1, 2.5, True])
def test_a_warning_after_no_number_of_skips_is_refused(make_scaler, number):
    with pytest.raises(ValueError, match=f"warn_after_skips is {number}; allowed are whole"):
        make_scaler(warn_after_skips=number)


@pytest.mark.parametrize("make_scaler", [DynamicLossScaler, StaticLossScaler, real_scaler])
def test_an_empty_state_dict_is_refused(make_scaler):
    with pytest.raises(RuntimeError, match="empty"):
        make_scaler().load_state_dict({})


# -- options and the rest of the interface ---------------------------------------------------------


@pytest.mark.parametrize("make_scaler", [DynamicLossScaler, StaticLossScaler, real_scaler])
def test_disabled_does_nothing_but_step(make_scaler):
    world = World(make_scaler, enabled=False)
    loss = torch.tensor(3.0)
    assert world.scaler.scale(loss) is loss
    world.backward(0, [math.inf] * 4)
    for _ in range(2):
        world.unscale_(0)
        world.step(0)
    world.update()
    world.scaler.load_state_dict({})
    assert world.steps_run == 2
    assert world.params[0].isinf().any() or world.params[0].isnan().any()
    assert world.scaler.get_scale() == 1.0 and world.scaler.state_dict() == {}
    assert not world.scaler.is_enabled()


def test_step_returns_what_the_optimizer_returns():
    class Chatty(torch.optim.SGD):
        def step(self, greeting, name):
            return f"{greeting}, {name}"

    for scaler in (DynamicLossScaler(), DynamicLossScaler(enabled=False), StaticLossScaler()):
        param = torch.ones(1, requires_grad=True)
        optimizer = Chatty([param], lr=0.1)
        scaler.scale(param.sum()).backward()
        assert scaler.step(optimizer, "hello", name="world") == "hello, world"


def test_stepped_tells_whether_the_optimizer_ran():
    world = World(DynamicLossScaler, init_scale=8.0)
    assert world.scaler.stepped is None
    for value, stepped in ((1.0, True), (math.inf, False), (1.0, True)):
        world.zero_grad()
        world.backward(0, [value] * 4)
        world.step(0)
        assert world.scaler.stepped is stepped
        world.update()


@pytest.mark.parametrize("make_scaler", [DynamicLossScaler, StaticLossScaler])
def test_the_warning_comes_once_in_a_row_of_skips(make_scaler):
    world = World(make_scaler, warn_after_skips=3)
    world.scaler.load_state_dict({**DynamicLossScaler().state_dict(), "scale": 8.0})
    warned_at = []
    values = [math.inf] * 2 + [1.0] + [math.nan] * 6 + [1.0] + [math.inf] * 3
    for number, value in enumerate(values):
        world.zero_grad()
        world.backward(0, [value] * 4)
        world.step(0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            world.update()
        if caught:
            assert "3 steps in a row were skipped" in str(caught[0].message)
            assert caught[0].filename == __file__
            warned_at.append(number)
    assert warned_at == [5, 12]


def test_no_warning_unless_asked_for():
    world = World(DynamicLossScaler)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(50):
            world.backward(0, [math.inf] * 4)
            world.step(0)
            world.update()


def test_a_static_scale_stays_and_skips():
    world = World(StaticLossScaler, scale=1024.0)
    for value in (1.0, math.inf, 1.0, 1.0):
        world.zero_grad()
        world.backward(0, [value] * 4)
        world.step(0)
        world.update()
        assert world.scaler.get_scale() == 1024.0
    assert world.steps_run == 3
    world.update_to(8.0)
    assert world.scaler.get_scale() == 8.0


def test_a_static_scaler_is_a_gradscaler_that_never_moves():
    ours = World(StaticLossScaler, scale=64.0)
    theirs = World(real_scaler, init_scale=64.0, growth_interval=10**9)
    for values in ([1.0, 2.0, -3.0, 1e-7], [2000.0] * 4, [0.3] * 4):
        for world in (ours, theirs):
            world.zero_grad()
            world.backward(0, values)
            world.step(0)
            world.update_to(64.0)
        assert ours.bits() == theirs.bits()


def test_static_state_dict_resumes():
    saved = StaticLossScaler(32.0).state_dict()
    resumed = StaticLossScaler()
    resumed.load_state_dict(saved)
    assert resumed.get_scale() == 32.0
    resumed.load_state_dict(real_scaler(init_scale=4.0).state_dict())
    assert resumed.get_scale() == 4.0


def test_getters_return_what_setters_set():
    for scaler in (DynamicLossScaler(), real_scaler()):
        scaler.set_growth_factor(4.0)
        scaler.set_backoff_factor(0.25)
        scaler.set_growth_interval(7)
        got = scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()
        assert got == (4.0, 0.25, 7)


def test_it_can_be_pickled():
    scaler = DynamicLossScaler(growth_interval=3)
    assert pickle.loads(pickle.dumps(scaler)).state == scaler.state


@pytest.mark.gpu
def test_on_cuda_it_is_gradscaler_too():
    weights = []
    for scaler in (DynamicLossScaler(), torch.amp.GradScaler("cuda")):
        param = torch.linspace(-1, 1, 50, device="cuda").requires_grad_()
        optimizer = torch.optim.SGD([param], lr=0.1, momentum=0.9)
        for value in (0.3, math.inf, -0.7, math.nan, 1e-5):
            optimizer.zero_grad()
            scaler.scale((param * value).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        weights.append((param.detach().cpu(), scaler.get_scale()))
    assert torch.equal(weights[0][0], weights[1][0])
    assert weights[0][1] == weights[1][1] == 2.0**14
