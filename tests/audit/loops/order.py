"""Examples for the rules of order. Each faulty loop has one fault and is otherwise as it should."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from tests.audit.loops.examples import fires, silent
from tests.audit.loops.pieces import BF16, amp, batches, mlp, training


def scaled_losses(model, optimizer, scaler, batch=32):
    """The part that all these loops share: forward, loss, backward; the loop does the rest."""
    for x, y in batches(batch=batch):
        with amp():
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        yield loss


@fires("clip_before_unscale")
def values_clipped_before_unscale():
    model, optimizer, scaler = training()
    for _ in scaled_losses(model, optimizer, scaler):
        clip_grad_value_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@fires("clip_before_unscale")
def clamped_by_hand():
    model, optimizer, scaler = training()
    for _ in scaled_losses(model, optimizer, scaler):
        for p in model.parameters():
            p.grad.data.clamp_(-1, 1)
        scaler.step(optimizer)
        scaler.update()


@fires("clip_before_unscale")
def norm_clipped_by_hand():
    model, optimizer, scaler = training()
    for _ in scaled_losses(model, optimizer, scaler):
        norm = sum(p.grad.pow(2).sum() for p in model.parameters()).sqrt()
        for p in model.parameters():
            p.grad.mul_(1.0 / max(1.0, float(norm)))
        scaler.step(optimizer)
        scaler.update()


def _static_scale(scale, clip_first):
    model, optimizer, _ = training()
    for x, y in batches():
        optimizer.zero_grad()
        with amp():
            loss = F.cross_entropy(model(x), y)
        (loss * scale).backward()
        if clip_first:
            clip_grad_norm_(model.parameters(), 1.0)
        for p in model.parameters():
            p.grad /= scale
        if not clip_first:
            clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@fires("clip_before_unscale")
def clipped_before_a_division_by_hand():
    _static_scale(1024.0, clip_first=True)


@silent("clip_before_unscale", "static_scale_not_divided")
def clipped_after_a_division_by_hand():
    _static_scale(1024.0, clip_first=False)


@fires("clip_before_unscale")
def unscaled_after_the_clip():
    model, optimizer, scaler = training()
    for _ in scaled_losses(model, optimizer, scaler):
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


@silent("clip_before_unscale", "clip_after_step")
def norm_measured_before_unscale():
    """clip_grad_norm_ with an infinite limit only measures."""
    model, optimizer, scaler = training()
    for _ in scaled_losses(model, optimizer, scaler):
        clip_grad_norm_(model.parameters(), float("inf"))
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@silent("clip_before_unscale")
def clipped_with_an_unused_optimizer_about():
    """Another optimizer holds the same weights, and never steps."""
    model, unused, scaler = training()
    body = torch.optim.SGD(model[0].parameters(), 0.1)
    head = torch.optim.SGD(model[1:].parameters(), 0.1)
    for _ in scaled_losses(model, unused, scaler):
        scaler.unscale_(body)
        clip_grad_norm_(model[0].parameters(), 1.0)
        scaler.step(body)
        scaler.step(head)
        scaler.update()


@fires("clip_before_unscale")
def clipped_together_with_a_scaled_head():
    """The norm of both has the scale of one in it."""
    model, unused, scaler = training()
    body = torch.optim.SGD(model[0].parameters(), 0.1)
    head = torch.optim.SGD(model[1:].parameters(), 0.1)
    for _ in scaled_losses(model, unused, scaler):
        scaler.unscale_(body)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(body)
        scaler.step(head)
        scaler.update()


@fires("clip_after_step")
def clipped_after_the_step():
    model, optimizer, scaler = training()
    for _ in scaled_losses(model, optimizer, scaler):
        scaler.step(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.update()


@fires("unscale_twice")
def unscaled_to_log_and_to_clip():
    model, optimizer, scaler = training()
    for _ in scaled_losses(model, optimizer, scaler):
        scaler.unscale_(optimizer)
        print(max(p.grad.abs().max() for p in model.parameters()))
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@silent("unscale_twice", "batch_abandoned", "update_missing")
def two_optimizers_unscaled_once_each():
    torch.manual_seed(0)
    first, second = nn.Linear(32, 16), nn.Linear(16, 3)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (first, second)]
    scaler = torch.amp.GradScaler("cpu")
    for x, y in batches():
        with amp():
            loss = F.cross_entropy(second(first(x)), y)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        for optimizer in optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()


@fires("batch_abandoned")
def large_norms_skipped_without_update():
    """The loop gives up batches whose norm it dislikes; the scaler isn't told."""
    model, optimizer, scaler = training()
    for i, _ in enumerate(scaled_losses(model, optimizer, scaler)):
        if i == 2:
            scaler.unscale_(optimizer)
            continue
        scaler.step(optimizer)
        scaler.update()


@fires("batch_abandoned")
def abandoned_and_then_unscaled_again():
    model, optimizer, scaler = training()
    for i, _ in enumerate(scaled_losses(model, optimizer, scaler)):
        scaler.unscale_(optimizer)
        if i == 2:
            continue
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@fires("backward_after_unscale")
def regulariser_added_after_clipping():
    model, optimizer, scaler = training()
    for x, y in batches():
        with amp():
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        penalty = sum(p.pow(2).sum() for p in model.parameters()) * 1e-4
        scaler.scale(penalty).backward()
        scaler.step(optimizer)
        scaler.update()


@silent("backward_after_unscale", "loss_not_scaled")
def regulariser_added_before_unscale():
    model, optimizer, scaler = training()
    for x, y in batches():
        with amp():
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        penalty = sum(p.pow(2).sum() for p in model.parameters()) * 1e-4
        scaler.scale(penalty).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@fires("added_to_scaled")
def weight_decay_by_hand_on_scaled():
    model, optimizer, scaler = training()
    for _ in scaled_losses(model, optimizer, scaler):
        for p in model.parameters():
            p.grad.add_(p.detach(), alpha=1e-2)
        scaler.step(optimizer)
        scaler.update()


@silent("added_to_scaled")
def weight_decay_by_hand_on_unscaled():
    model, optimizer, scaler = training()
    for _ in scaled_losses(model, optimizer, scaler):
        scaler.unscale_(optimizer)
        for p in model.parameters():
            p.grad.add_(p.detach(), alpha=1e-2)
        scaler.step(optimizer)
        scaler.update()


@fires("cleared_before_step")
def cleared_between_backward_and_step():
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.zero_grad()
        optimizer.step()


@silent("cleared_before_step", "no_gradients")
def gradients_of_another_pass_thrown_away():
    """As a GAN does: the first backward is cleared, a second one is used."""
    model, optimizer, scaler = training()
    for _ in scaled_losses(model, optimizer, scaler):
        optimizer.zero_grad()
        with amp():
            loss = F.cross_entropy(model(torch.ones(4, 32)), torch.zeros(4, dtype=torch.long))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@fires("step_on_scaled")
def plain_step_after_scale():
    model, optimizer, scaler = training()
    for _ in scaled_losses(model, optimizer, scaler):
        optimizer.step()


@silent("step_on_scaled", "static_scale_not_divided")
def gradients_divided_by_hand():
    model, optimizer, scaler = training(init_scale=1024.0)
    for _ in scaled_losses(model, optimizer, scaler):
        for p in model.parameters():
            p.grad.div_(scaler.get_scale())
        optimizer.step()


@fires("step_twice")
def both_steps():
    model, optimizer, scaler = training()
    for _ in scaled_losses(model, optimizer, scaler):
        scaler.step(optimizer)
        scaler.update()
        optimizer.step()


@silent("step_twice", "step_past_inf_check", "step_on_scaled")
def a_second_optimizer_without_scaler():
    """One part is trained in FP16 with a scaler, another in FP32 without."""
    model, optimizer, scaler = training()
    other = nn.Linear(32, 1)
    other_optimizer = torch.optim.SGD(other.parameters(), 0.01)
    for x, y in batches():
        with amp():
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        other_optimizer.zero_grad()
        other(x).pow(2).mean().backward()
        other_optimizer.step()


@fires("step_past_inf_check")
def plain_step_after_unscale():
    model, optimizer, scaler = training()
    for _ in scaled_losses(model, optimizer, scaler):
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1)
        optimizer.step()
        scaler.update()


@fires("static_scale_not_divided")
def static_scale_forgotten():
    model, optimizer, _ = training()
    for x, y in batches():
        with amp():
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        (loss * 1024.0).backward()
        optimizer.step()


@silent("static_scale_not_divided")
def loss_weight_of_a_hundred():
    model, optimizer, _ = training()
    for x, y in batches():
        with amp(BF16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        (loss * 100.0).backward()
        optimizer.step()


@fires("loss_not_scaled")
def second_loss_not_scaled():
    model, optimizer, scaler = training()
    for x, y in batches():
        with amp():
            out = model(x)
            first, second = F.cross_entropy(out, y), out.float().pow(2).mean()
        optimizer.zero_grad()
        scaler.scale(first).backward(retain_graph=True)
        second.backward()
        scaler.step(optimizer)
        scaler.update()


@fires("two_scalers")
def scaled_by_one_unscaled_by_another():
    model, optimizer, scaler = training()
    other = torch.amp.GradScaler("cpu")
    for _ in scaled_losses(model, optimizer, scaler):
        other.scale(torch.zeros(()))
        other.step(optimizer)
        other.update()


@silent("two_scalers")
def a_scaler_for_each_optimizer():
    for _ in range(2):
        model, optimizer, scaler = training()
        for _ in scaled_losses(model, optimizer, scaler):
            scaler.step(optimizer)
            scaler.update()


@fires("no_zero_grad")
def gradients_never_cleared():
    model, optimizer, scaler = training()
    for x, y in batches():
        with amp():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@silent("no_zero_grad", "unscale_twice", "update_without_step", "scale_changed_in_accumulation")
def accumulation_of_four():
    model, optimizer, scaler = training()
    for i, (x, y) in enumerate(batches(batch=16)):
        with amp():
            loss = F.cross_entropy(model(x), y) / 4
        scaler.scale(loss).backward()
        if i % 4 == 3:
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            for p in model.parameters():
                p.grad = None


@fires("backward_in_autocast")
def backward_in_the_block():
    model, optimizer, scaler = training()
    for x, y in batches():
        optimizer.zero_grad()
        with amp():
            loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@silent("backward_in_autocast", "stale_weight_cache")
def whole_loop_in_a_disabled_autocast():
    model, optimizer, _ = training()
    with torch.autocast("cpu", dtype=BF16, enabled=False):
        for x, y in batches():
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


@fires("stale_weight_cache")
def epoch_in_one_autocast():
    model, optimizer, _ = training()
    with amp(BF16):
        for x, y in batches():
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


@silent("stale_weight_cache")
def step_at_the_end_of_the_block():
    model, optimizer, _ = training()
    for x, y in batches():
        optimizer.zero_grad()
        with amp(BF16):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


def _critic():
    net = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))
    return training(net, init_scale=512.0)


@fires("penalty_on_scaled_gradients")
def penalty_on_scaled():
    critic, optimizer, scaler = _critic()
    for x, _ in batches():
        x.requires_grad_()
        with amp():
            out = critic(x).float().mean()
        grad = torch.autograd.grad(scaler.scale(out), x, create_graph=True)[0]
        penalty = (grad.view(len(grad), -1).norm(dim=1) - 1).pow(2).mean()
        optimizer.zero_grad()
        scaler.scale(out + penalty).backward()
        scaler.step(optimizer)
        scaler.update()


@silent("penalty_on_scaled_gradients")
def penalty_without_scaling_the_first_pass():
    critic, optimizer, scaler = _critic()
    for x, _ in batches():
        x.requires_grad_()
        out = critic(x).mean()
        grad = torch.autograd.grad(out, x, create_graph=True)[0]
        penalty = (grad.norm(dim=1) - 1).pow(2).mean()
        optimizer.zero_grad()
        scaler.scale(out + penalty).backward()
        scaler.step(optimizer)
        scaler.update()


@fires("scheduler_after_skip")
def schedule_moves_on_after_a_skip():
    model, optimizer, scaler = training(init_scale=2.0**10)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    for i, (x, y) in enumerate(batches()):
        with amp():
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if i == 2:
            model[0].weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        schedule.step()


@silent("scheduler_after_skip")
def schedule_waits_after_a_skip():
    model, optimizer, scaler = training(init_scale=2.0**10)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    for i, _ in enumerate(scaled_losses(model, optimizer, scaler)):
        if i == 2:
            model[0].weight.grad[0, 0] = float("inf")
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= before:
            schedule.step()


# -- the scaler ----------------------------------------------------------------------------------


@fires("update_missing")
def update_forgotten():
    model, optimizer, scaler = training()
    for _ in scaled_losses(model, optimizer, scaler):
        scaler.step(optimizer)


@fires("update_missing")
def update_forgotten_with_clipping():
    model, optimizer, scaler = training()
    for _ in scaled_losses(model, optimizer, scaler):
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)


@fires("update_without_step")
def update_on_every_micro_batch():
    model, optimizer, scaler = training()
    for i, (x, y) in enumerate(batches(batch=16)):
        with amp():
            loss = F.cross_entropy(model(x), y) / 4
        scaler.scale(loss).backward()
        if i % 4 == 3:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()


@fires("scale_changed_in_accumulation")
def accumulation_across_growth():
    """Two optimizers: the one that accumulates sees the scale grow for the other's sake."""
    model, optimizer, scaler = training(init_scale=1024.0, growth_interval=1)
    other = nn.Linear(32, 1)
    other_optimizer = torch.optim.SGD(other.parameters(), 0.1)
    for i, (x, y) in enumerate(batches()):
        with amp():
            loss, other_loss = F.cross_entropy(model(x), y), other(x).float().pow(2).mean()
        other_optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.scale(other_loss).backward()
        scaler.step(other_optimizer)
        if i % 2:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()


@fires("update_before_step")
def update_between_two_optimizers():
    torch.manual_seed(0)
    models = mlp(), mlp()
    first, second = (torch.optim.SGD(m.parameters(), 0.1) for m in models)
    scaler = torch.amp.GradScaler("cpu", growth_interval=4)
    for x, y in batches():
        first.zero_grad()
        second.zero_grad()
        with amp():
            loss = sum(F.cross_entropy(m(x), y) for m in models)
        scaler.scale(loss).backward()
        scaler.step(first)
        scaler.update()
        scaler.step(second)
        scaler.update()


@silent("update_before_step", "scale_changed_in_accumulation")
def one_update_after_two_optimizers():
    torch.manual_seed(0)
    models = mlp(), mlp()
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in models]
    scaler = torch.amp.GradScaler("cpu", growth_interval=4)
    for x, y in batches():
        with amp():
            loss = sum(F.cross_entropy(m(x), y) for m in models)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()


@fires("no_gradients")
def optimizer_has_another_models_parameters():
    model, _, scaler = training()
    optimizer = torch.optim.SGD(mlp().parameters(), 0.1)
    for _ in scaled_losses(model, optimizer, scaler):
        scaler.step(optimizer)
        scaler.update()


@silent("no_gradients")
def some_parameters_frozen():
    model, optimizer, scaler = training()
    model[0].requires_grad_(False)
    for _ in scaled_losses(model, optimizer, scaler):
        scaler.step(optimizer)
        scaler.update()


def _checkpoint():
    return os.path.join(tempfile.mkdtemp(), "checkpoint.pt")


@fires("scaler_not_saved")
def saved_nested_and_without_scaler():
    model, optimizer, scaler = training()
    for _ in scaled_losses(model, optimizer, scaler):
        scaler.step(optimizer)
        scaler.update()
    states = {"model": model.state_dict(), "optimizers": [optimizer.state_dict()]}
    torch.save({"epoch": 3, "state": states}, _checkpoint())


@silent("scaler_not_saved", "scaler_not_restored")
def weights_saved_for_inference():
    model, optimizer, scaler = training()
    for _ in scaled_losses(model, optimizer, scaler):
        scaler.step(optimizer)
        scaler.update()
    torch.save(model.state_dict(), _checkpoint())


@fires("scaler_not_restored")
def resumed_without_the_scaler():
    path = _checkpoint()
    for part in range(2):
        model, optimizer, scaler = training()
        if part:
            stored = torch.load(path)
            model.load_state_dict(stored["model"])
            optimizer.load_state_dict(stored["optimizer"])
        for _ in scaled_losses(model, optimizer, scaler):
            scaler.step(optimizer)
            scaler.update()
        states = {"model": model, "optimizer": optimizer, "scaler": scaler}
        torch.save({name: s.state_dict() for name, s in states.items()}, path)


@silent("update_missing")
def update_before_the_next_batch():
    model, optimizer, scaler = training()
    for i, (x, y) in enumerate(batches()):
        if i:
            scaler.update()
        with amp():
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)


@fires("scaler_replaced")
def a_new_scaler_every_epoch():
    model, optimizer, _ = training()
    for _ in range(2):
        scaler = torch.amp.GradScaler("cpu")
        for _ in scaled_losses(model, optimizer, scaler):
            scaler.step(optimizer)
            scaler.update()


@silent("scaler_replaced", "closure_with_scaler")
def one_scaler_for_two_epochs():
    model, optimizer, scaler = training()
    for _ in range(2):
        for _ in scaled_losses(model, optimizer, scaler):
            scaler.step(optimizer)
            scaler.update()


@fires("closure_with_scaler")
def lbfgs_through_the_scaler():
    model, _, scaler = training()
    optimizer = torch.optim.LBFGS(model.parameters())
    for x, y in batches():

        def closure(x=x, y=y):
            optimizer.zero_grad()
            with amp():
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            return loss

        closure()
        scaler.step(optimizer, closure=closure)
        scaler.update()
