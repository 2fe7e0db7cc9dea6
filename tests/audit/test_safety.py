"""The audit leaves no trace: nothing installed stays, no bit changes, no tensor is kept alive."""

import contextlib
import copy
import gc
import io
import pickle
import threading
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as modules
from torch.optim import lr_scheduler
from torch.optim import optimizer as optimizers
from torch.utils.checkpoint import checkpoint

import mptutor
from mptutor.audit import watch
from mptutor.audit.watch_gradients import clip_module
from tests.audit.loops import clean
from tests.audit.loops.pieces import batches, mlp

SCALER, AUTOCAST = torch.amp.GradScaler, torch.amp.autocast_mode.autocast
OPTIMIZER, SCHEDULER = torch.optim.Optimizer, lr_scheduler.LRScheduler


def installed():
    """Everything that is patched or hooked, as it stands now."""
    places = [
        *((SCALER, n) for n in ("__init__", "scale", "unscale_", "step", "update")),
        *((SCALER, n) for n in ("state_dict", "load_state_dict")),
        *((AUTOCAST, n) for n in ("__init__", "__enter__", "__exit__")),
        *((OPTIMIZER, n) for n in ("__init__", "zero_grad", "load_state_dict")),
        *((cls, "step") for cls in (SCHEDULER, lr_scheduler.OneCycleLR)),
        (torch.autograd, "_engine_run_backward"),
        (torch.serialization, "_save"),
        (torch, "compile"),
        (clip_module, "_group_tensors_by_device_and_dtype"),
        (nn.Module, "zero_grad"),
    ]
    functions = {(owner.__name__, name): vars(owner).get(name) for owner, name in places}
    hooks = [
        modules._global_forward_hooks,
        modules._global_forward_pre_hooks,
        optimizers._global_optimizer_pre_hooks,
        optimizers._global_optimizer_post_hooks,
    ]
    modes = torch.overrides._get_current_function_mode_stack()
    return functions, [len(h) for h in hooks], list(modes)


def train(dtype=torch.float16, checkpointed=False, optimizer=torch.optim.AdamW):
    """A loop with dropout, clipping and a scaler; returns weights, losses and the RNG's state."""
    torch.manual_seed(0)
    model = mlp()
    steps = optimizer(model.parameters(), 1e-2)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype is torch.float16)
    losses = []
    for x, y in batches():
        with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
            out = checkpoint(model, x, use_reentrant=False) if checkpointed else model(x)
            loss = F.cross_entropy(out, y)
        steps.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(steps)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(steps)
        scaler.update()
        losses.append(loss.item())
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return weights, torch.tensor(losses), torch.get_rng_state()


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt, SystemExit])
def test_everything_is_put_back(error):
    before = installed()
    expected = pytest.raises(error) if error else contextlib.nullcontext()
    with contextlib.redirect_stderr(io.StringIO()), expected, mptutor.audit():
        assert installed() != before
        train()
        if error:
            raise error("stop")
    assert installed() == before
    assert watch._running is None


def test_put_back_after_an_error_within_a_step():
    before = installed()

    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("broken")

    model = nn.Linear(2, 1)
    optimizer = Broken(model.parameters(), 0.1)
    quiet, fails = contextlib.redirect_stderr(io.StringIO()), pytest.raises(RuntimeError)
    with quiet, fails, mptutor.audit():
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert installed() == before


def test_a_failing_installation_undoes_itself(monkeypatch):
    before = installed()

    def fail(self, seams):
        raise OSError("no room")

    monkeypatch.setattr(watch.StepWatch, "install", fail)
    with pytest.raises(OSError, match="no room"), mptutor.audit():
        pass
    assert installed() == before
    assert watch._running is None


def test_a_nested_audit_is_refused_and_the_outer_one_goes_on():
    before = installed()
    with mptutor.audit() as outer:
        with pytest.raises(RuntimeError, match="already running"), mptutor.audit():
            pass
        train()
    assert outer.trace.steps == 8
    assert installed() == before


def test_one_audit_after_another():
    for _ in range(2):
        with mptutor.audit() as a:
            train()
        assert a.trace.steps == 8


def test_the_same_audit_twice():
    a = mptutor.audit()
    with a:
        train()
    with a:
        pass
    assert a.trace.steps == 0


def test_bad_numbers_of_steps_are_refused():
    with pytest.raises(ValueError, match="layer_steps must be a number of steps"):
        mptutor.audit(layer_steps=-1)


# -- nothing changes -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_not_one_bit_changes(dtype, checkpointed):
    plain = train(dtype, checkpointed)
    with mptutor.audit(layer_steps=100, call_steps=100):
        watched = train(dtype, checkpointed)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


@pytest.mark.parametrize(
    "loop",
    [
        clean.gan_with_one_update,
        clean.transformer_with_masks,
        clean.lstm_in_bf16,
        clean.transformer_of_torch,
        clean.evaluation_and_average_in_between,
    ],
    ids=lambda loop: loop.__name__,
)
def test_the_random_numbers_are_the_same(loop):
    loop()
    plain = torch.get_rng_state()
    with mptutor.audit(layer_steps=100, call_steps=100):
        loop()
    assert torch.equal(plain, torch.get_rng_state())


def test_the_users_hooks_still_run():
    seen = []

    def note(name):
        return lambda *args: seen.append(name)

    model = mlp()
    model.register_forward_hook(note("module"))
    early = modules.register_module_forward_hook(note("global"))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.register_step_post_hook(note("optimizer"))
    model[0].weight.register_hook(note("gradient"))
    with mptutor.audit():
        late = modules.register_module_forward_hook(note("late"))
        saved = torch.autograd.graph.saved_tensors_hooks(
            lambda x: (note("saved")(), x)[1], lambda x: x
        )
        with saved:
            model(torch.randn(4, 32)).sum().backward()
        optimizer.step()
    assert {"module", "global", "optimizer", "gradient", "late", "saved"} <= set(seen)
    seen.clear()
    model(torch.randn(1, 32))
    assert "late" in seen
    early.remove()
    late.remove()


def test_no_tensor_is_kept_alive():
    with mptutor.audit(layer_steps=100, call_steps=100) as a:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        dead = []
        for x, y in batches():
            out = model(x)
            loss = F.cross_entropy(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            dead += [weakref.ref(t) for t in (x, out, loss)]
            del x, y, out, loss
            assert not any(ref() is not None for ref in dead)
        dead += [weakref.ref(model), weakref.ref(optimizer)]
        del model, optimizer
        gc.collect()
        assert not any(ref() is not None for ref in dead)
    values = [v for event in a.trace.events for v in vars(event).values()]
    assert not any(isinstance(v, torch.Tensor) for v in values)


# -- other things people do ----------------------------------------------------------------------


def test_modes_of_the_user_are_respected():
    with torch.device("cpu"):
        with mptutor.audit(call_steps=2) as a, torch.device("cpu"):
            clean.fp16_with_clipping()
        top = torch.overrides._get_current_function_mode()
        assert type(top).__name__ == "DeviceContext"
    assert not torch.overrides._get_current_function_mode_stack()
    assert a.trace.steps == 16


def test_a_mode_that_outlives_the_audit_stays():
    a = mptutor.audit()
    a.start()
    device = torch.device("cpu")
    device.__enter__()
    a.stop()
    stack = torch.overrides._get_current_function_mode_stack()
    device.__exit__(None, None, None)
    assert [type(mode).__name__ for mode in stack] == ["DeviceContext"]
    assert not torch.overrides._get_current_function_mode_stack()


def test_scripting_anomaly_mode_pickle_and_copies():
    with mptutor.audit() as a, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        scripted(torch.randn(2, 4)).sum().backward()
        with torch.autograd.detect_anomaly(check_nan=True):
            mlp()(torch.randn(2, 32)).sum().backward()
        scaler = torch.amp.GradScaler("cpu")
        p = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.Adam([p])
        scaler.scale(p.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        pickle.loads(pickle.dumps(scaler))
        copy.deepcopy(optimizer)
        torch.save(mlp(), io.BytesIO())
        pickle.dumps(torch.autocast("cpu", torch.bfloat16))
    assert not [text for text in a.trace.unseen if "itself" in text]


def test_compiled_code_is_compiled_once():
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = torch.compile(mlp().eval(), backend=backend)
    with mptutor.audit() as a:
        for _ in range(4):
            model(torch.randn(8, 32))
    torch._dynamo.reset()
    assert len(graphs) == 1
    assert any("Compiled" in text for text in a.trace.unseen)


def test_an_error_inside_an_observer_never_reaches_the_loop(monkeypatch):
    def fail(self, module, inputs, output):
        raise ZeroDivisionError("in the audit")

    monkeypatch.setattr("mptutor.audit.watch_layers.LayerWatch._after", fail)
    with mptutor.audit() as a:
        weights, *_ = train()
    assert weights.isfinite().all()
    assert any("in the audit" in text for text in a.trace.unseen)
    assert "in the audit" in str(a)


def test_a_loop_in_a_thread_is_seen():
    with mptutor.audit() as a:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    assert a.trace.steps == 8
    assert not [f for f in a.findings if f.level != "note"]


def test_what_torch_has_to_offer_is_all_there():
    """Some seams are private functions of torch: this says which are gone in the one installed."""
    a = mptutor.audit()
    with a:
        pass
    assert not [text for text in a.trace.unseen if "this torch has no" in text]
