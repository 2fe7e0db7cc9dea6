"""What people really write into the loops of exercise 10, and how right ones may look."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from tests.answers import right, wrong


def fp16():
    return torch.autocast("cpu", torch.float16)


def loss_of(p, x, y):
    with fp16():
        return F.cross_entropy(p.model(x), y)


def step_and_update(p):
    p.scaler.step(p.optimizer)
    p.scaler.update()


# -- 10.1 clip -----------------------------------------------------------------------------------


@wrong("10.1", "clips scaled gradients")
def forgets_to_unscale(p):
    norms = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        p.scaler.scale(loss_of(p, x, y)).backward()
        norms.append(float(nn.utils.clip_grad_norm_(p.model.parameters(), 0.1)))
        step_and_update(p)
    return norms


@wrong("10.1", "clips scaled gradients")
def unscales_after_clipping(p):
    norms = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        p.scaler.scale(loss_of(p, x, y)).backward()
        norms.append(float(nn.utils.clip_grad_norm_(p.model.parameters(), 0.1)))
        p.scaler.unscale_(p.optimizer)
        step_and_update(p)
    return norms


@wrong("10.1", "divided once too often")
def divides_the_norm_only(p):
    norms = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        p.scaler.scale(loss_of(p, x, y)).backward()
        norm = nn.utils.clip_grad_norm_(p.model.parameters(), 0.1)
        norms.append(norm.item() / p.scaler.get_scale())
        step_and_update(p)
    return norms


@wrong("10.1", "divided once too often")
def divides_by_hand_before_the_scaler_does(p):
    norms = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        p.scaler.scale(loss_of(p, x, y)).backward()
        for w in p.model.parameters():
            w.grad.div_(p.scaler.get_scale())
        norms.append(nn.utils.clip_grad_norm_(p.model.parameters(), 0.1).item())
        step_and_update(p)
    return norms


@wrong("10.1", "clips after the step")
def clips_before_update(p):
    norms = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        p.scaler.scale(loss_of(p, x, y)).backward()
        p.scaler.step(p.optimizer)
        norms.append(nn.utils.clip_grad_norm_(p.model.parameters(), 0.1).item())
        p.scaler.update()
    return norms


@wrong("10.1", "norms after clipping")
def measures_after_clipping(p):
    norms = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        p.scaler.scale(loss_of(p, x, y)).backward()
        p.scaler.unscale_(p.optimizer)
        nn.utils.clip_grad_norm_(p.model.parameters(), 0.1)
        norms.append(sum(w.grad.square().sum() for w in p.model.parameters()).sqrt().item())
        step_and_update(p)
    return norms


@wrong("10.1", "steps past the check")
def steps_the_optimizer(p):
    norms = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        p.scaler.scale(loss_of(p, x, y)).backward()
        p.scaler.unscale_(p.optimizer)
        norms.append(nn.utils.clip_grad_norm_(p.model.parameters(), 0.1).item())
        p.optimizer.step()
        p.scaler.update()
    return norms


@wrong("10.1", "clips each entry")
def clips_values(p):
    norms = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        p.scaler.scale(loss_of(p, x, y)).backward()
        p.scaler.unscale_(p.optimizer)
        norms.append(nn.utils.get_total_norm([w.grad for w in p.model.parameters()]).item())
        nn.utils.clip_grad_value_(p.model.parameters(), 0.1)
        step_and_update(p)
    return norms


@wrong("10.1", "AMP turned off")
def clips_in_fp32(p):
    norms = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        F.cross_entropy(p.model(x), y).backward()
        norms.append(nn.utils.clip_grad_norm_(p.model.parameters(), 0.1).item())
        p.optimizer.step()
    return norms


@right("10.1")
def measures_first(p):
    norms = torch.zeros(len(p.batches))
    for i, (x, y) in enumerate(p.batches):
        p.scaler.scale(loss_of(p, x, y)).backward()
        p.scaler.unscale_(p.optimizer)
        norms[i] = torch.cat([w.grad.flatten() for w in p.model.parameters()]).norm()
        nn.utils.clip_grad_norm_(p.model.parameters(), 0.1)
        step_and_update(p)
        p.optimizer.zero_grad()
    return norms


@right("10.1")
def scales_the_limit(p):
    norms = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        p.scaler.scale(loss_of(p, x, y)).backward()
        scale = p.scaler.get_scale()
        norms.append(nn.utils.clip_grad_norm_(p.model.parameters(), 0.1 * scale) / scale)
        step_and_update(p)
    return norms


# -- 10.2 accumulate -----------------------------------------------------------------------------


def windows(p):
    return [p.batches[i : i + 4] for i in range(0, len(p.batches), 4)]


@wrong("10.2", "sum instead of mean")
def forgets_to_divide(p):
    losses = []
    for window in windows(p):
        p.optimizer.zero_grad()
        total = 0
        for x, y in window:
            loss = loss_of(p, x, y)
            p.scaler.scale(loss).backward()
            total += loss.item()
        step_and_update(p)
        losses.append(total / len(window))
    return losses


@wrong("10.2", "last window dropped")
def steps_on_every_fourth(p):
    losses, total = [], 0
    p.optimizer.zero_grad()
    for i, (x, y) in enumerate(p.batches):
        loss = loss_of(p, x, y) / 4
        p.scaler.scale(loss).backward()
        total += loss.item()
        if (i + 1) % 4 == 0:
            step_and_update(p)
            p.optimizer.zero_grad()
            losses.append(total)
            total = 0
    return losses


@wrong("10.2", "last window divided by four")
def always_divides_by_four(p):
    losses, some = [], []
    p.optimizer.zero_grad()
    for i, (x, y) in enumerate(p.batches):
        loss = loss_of(p, x, y)
        p.scaler.scale(loss / 4).backward()
        some.append(loss.item())
        if (i + 1) % 4 == 0 or i + 1 == len(p.batches):
            step_and_update(p)
            p.optimizer.zero_grad()
            losses.append(sum(some) / len(some))
            some = []
    return losses


@wrong("10.2", "last window divided by four, and its loss")
def divides_its_loss_by_four_too(p):
    losses, total = [], 0.0
    p.optimizer.zero_grad()
    for i, (x, y) in enumerate(p.batches):
        loss = loss_of(p, x, y) / 4
        p.scaler.scale(loss).backward()
        total += loss.item()
        if (i + 1) % 4 == 0 or i + 1 == len(p.batches):
            step_and_update(p)
            p.optimizer.zero_grad()
            losses.append(total)
            total = 0.0
    return losses


@wrong("10.2", "update after every batch")
def updates_in_the_inner_loop(p):
    losses = []
    for window in windows(p):
        p.optimizer.zero_grad()
        for x, y in window:
            loss = loss_of(p, x, y) / len(window)
            p.scaler.scale(loss).backward()
            p.scaler.update()
        p.scaler.step(p.optimizer)
        losses.append(loss.item())
    return losses


@wrong("10.2", "cleared in every batch")
def clears_in_the_inner_loop(p):
    losses = []
    for window in windows(p):
        total = 0
        for x, y in window:
            p.optimizer.zero_grad()
            loss = loss_of(p, x, y) / len(window)
            p.scaler.scale(loss).backward()
            total += loss.item()
        step_and_update(p)
        losses.append(total)
    return losses


@wrong("10.2", "never cleared")
def clears_nothing(p):
    losses = []
    for window in windows(p):
        total = 0
        for x, y in window:
            loss = loss_of(p, x, y) / len(window)
            p.scaler.scale(loss).backward()
            total += loss.item()
        step_and_update(p)
        losses.append(total)
    return losses


@wrong("10.2", "a step for every batch")
def steps_in_the_inner_loop(p):
    losses = []
    for window in windows(p):
        p.optimizer.zero_grad()
        total = 0
        for x, y in window:
            loss = loss_of(p, x, y) / len(window)
            p.scaler.scale(loss).backward()
            step_and_update(p)
            total += loss.item()
        losses.append(total)
    return losses


@right("10.2")
def divides_the_gradients(p):
    losses = []
    for window in windows(p):
        p.optimizer.zero_grad()
        some = []
        for x, y in window:
            loss = loss_of(p, x, y)
            p.scaler.scale(loss / len(window)).backward()
            some.append(loss.detach())
        p.scaler.unscale_(p.optimizer)
        step_and_update(p)
        losses.append(torch.stack(some).mean())
    return losses


@right("10.2")
def counts_what_is_left(p):
    losses, left = [], 0
    for i, (x, y) in enumerate(p.batches):
        if left == 0:
            left = parts = min(4, len(p.batches) - i)
            losses.append(0.0)
        loss = loss_of(p, x, y) / parts
        p.scaler.scale(loss).backward()
        losses[-1] += loss.item()
        left -= 1
        if left == 0:
            step_and_update(p)
            p.optimizer.zero_grad(set_to_none=False)
    return losses


# -- 10.3 two_optimizers -------------------------------------------------------------------------


def optimizers(p):
    body = torch.optim.SGD(p.model[:-1].parameters(), lr=0.5)
    return body, torch.optim.Adam(p.model[-1].parameters(), lr=0.01)


def penalty_of(p):
    return 0.05 * (p.model[-1].weight ** 2).sum()


def clip_body(p):
    nn.utils.clip_grad_norm_(p.model[:-1].parameters(), 0.1)


def backward(p, x, y):
    p.model.zero_grad()
    loss = loss_of(p, x, y)
    p.scaler.scale(loss + penalty_of(p)).backward()
    return loss.item()


@wrong("10.3", "head past the scaler")
def steps_the_head_by_itself(p):
    body, head = optimizers(p)
    losses = []
    for x, y in p.batches:
        losses.append(backward(p, x, y))
        p.scaler.unscale_(body)
        clip_body(p)
        p.scaler.step(body)
        head.step()
        p.scaler.update()
    return losses


@wrong("10.3", "a scaler each")
def makes_a_second_scaler(p):
    body, head = optimizers(p)
    second = torch.amp.GradScaler("cpu", init_scale=p.scaler.get_scale())
    second.scale(torch.ones(1))
    losses = []
    for x, y in p.batches:
        losses.append(backward(p, x, y))
        p.scaler.unscale_(body)
        clip_body(p)
        p.scaler.step(body)
        p.scaler.update()
        second.step(head)
        second.update()
    return losses


@wrong("10.3", "update between the steps")
def updates_after_each(p):
    body, head = optimizers(p)
    losses = []
    for x, y in p.batches:
        losses.append(backward(p, x, y))
        p.scaler.unscale_(body)
        clip_body(p)
        p.scaler.step(body)
        p.scaler.update()
        p.scaler.step(head)
        p.scaler.update()
    return losses


@wrong("10.3", "penalty not scaled")
def propagates_the_penalty_alone(p):
    body, head = optimizers(p)
    losses = []
    for x, y in p.batches:
        p.model.zero_grad()
        loss = loss_of(p, x, y)
        p.scaler.scale(loss).backward()
        penalty_of(p).backward()
        p.scaler.unscale_(body)
        clip_body(p)
        p.scaler.step(body)
        p.scaler.step(head)
        p.scaler.update()
        losses.append(loss.item())
    return losses


@wrong("10.3", "penalty left out")
def forgets_the_penalty(p):
    body, head = optimizers(p)
    losses = []
    for x, y in p.batches:
        body.zero_grad()
        head.zero_grad()
        loss = loss_of(p, x, y)
        p.scaler.scale(loss).backward()
        p.scaler.unscale_(body)
        clip_body(p)
        p.scaler.step(body)
        p.scaler.step(head)
        p.scaler.update()
        losses.append(loss.item())
    return losses


@wrong("10.3", "clips scaled gradients")
def clips_the_scaled_body(p):
    body, head = optimizers(p)
    losses = []
    for x, y in p.batches:
        losses.append(backward(p, x, y))
        clip_body(p)
        p.scaler.step(body)
        p.scaler.step(head)
        p.scaler.update()
    return losses


@wrong("10.3", "clips scaled gradients")
def unscales_the_head_instead(p):
    body, head = optimizers(p)
    losses = []
    for x, y in p.batches:
        losses.append(backward(p, x, y))
        p.scaler.unscale_(head)
        clip_body(p)
        p.scaler.step(body)
        p.scaler.step(head)
        p.scaler.update()
    return losses


@wrong("10.3", "clips the head too")
def clips_the_whole_model(p):
    body, head = optimizers(p)
    losses = []
    for x, y in p.batches:
        losses.append(backward(p, x, y))
        p.scaler.unscale_(body)
        nn.utils.clip_grad_norm_(p.model.parameters(), 0.1)
        p.scaler.step(body)
        p.scaler.step(head)
        p.scaler.update()
    return losses


@wrong("10.3", "clips both as one")
def unscales_and_clips_the_whole_model(p):
    body, head = optimizers(p)
    losses = []
    for x, y in p.batches:
        losses.append(backward(p, x, y))
        p.scaler.unscale_(body)
        p.scaler.unscale_(head)
        nn.utils.clip_grad_norm_(p.model.parameters(), 0.1)
        p.scaler.step(body)
        p.scaler.step(head)
        p.scaler.update()
    return losses


@wrong("10.3", "head in both optimizers")
def keeps_the_old_optimizer(p):
    body, head = p.optimizer, torch.optim.Adam(p.model[-1].parameters(), lr=0.01)
    losses = []
    for x, y in p.batches:
        losses.append(backward(p, x, y))
        p.scaler.unscale_(body)
        clip_body(p)
        p.scaler.step(body)
        p.scaler.step(head)
        p.scaler.update()
    return losses


@right("10.3")
def unscales_both_and_steps_the_head_first(p):
    body, head = optimizers(p)
    losses = []
    for x, y in p.batches:
        losses.append(backward(p, x, y))
        for optimizer in (head, body):
            p.scaler.unscale_(optimizer)
        clip_body(p)
        for optimizer in (body, head):
            p.scaler.step(optimizer)
        p.scaler.update()
    return losses


@right("10.3")
def two_backward_passes(p):
    body, head = optimizers(p)
    losses = []
    for x, y in p.batches:
        loss = loss_of(p, x, y)
        p.scaler.scale(loss).backward()
        p.scaler.scale(penalty_of(p)).backward()
        p.scaler.unscale_(body)
        clip_body(p)
        p.scaler.step(body)
        p.scaler.step(head)
        p.scaler.update()
        body.zero_grad()
        head.zero_grad()
        losses.append(loss.detach())
    return losses


# -- 10.4 go_on ----------------------------------------------------------------------------------


def train(p, batches):
    for x, y in batches:
        p.optimizer.zero_grad()
        p.scaler.scale(loss_of(p, x, y)).backward()
        step_and_update(p)


def states(p, *parts):
    return {part: getattr(p, part).state_dict() for part in parts}


def load(p, saved, *parts):
    for part in parts if saved else ():
        getattr(p, part).load_state_dict(saved[part])
    return saved["done"] if saved else 0


ALL = ("model", "optimizer", "scaler")


@wrong("10.4", "scaler not saved")
def forgets_the_scaler(p, checkpoint, steps):
    done = load(p, checkpoint, "model", "optimizer")
    train(p, p.batches[done : done + steps])
    return {**states(p, "model", "optimizer"), "done": done + steps}


@wrong("10.4", "scaler not saved")
def saves_the_scaler_and_forgets_to_load_it(p, checkpoint, steps):
    done = load(p, checkpoint, "model", "optimizer")
    train(p, p.batches[done : done + steps])
    return {**states(p, *ALL), "done": done + steps}


@wrong("10.4", "scale without its count")
def keeps_the_scale_as_a_number(p, checkpoint, steps):
    done = load(p, checkpoint, "model", "optimizer")
    if checkpoint:
        p.scaler.load_state_dict({**p.scaler.state_dict(), "scale": checkpoint["scale"]})
    train(p, p.batches[done : done + steps])
    saved = states(p, "model", "optimizer")
    return {**saved, "scale": p.scaler.get_scale(), "done": done + steps}


@wrong("10.4", "optimizer not saved")
def forgets_the_optimizer(p, checkpoint, steps):
    done = load(p, checkpoint, "model", "scaler")
    train(p, p.batches[done : done + steps])
    return {**states(p, "model", "scaler"), "done": done + steps}


@wrong("10.4", "model not saved")
def loads_all_but_the_model(p, checkpoint, steps):
    done = load(p, checkpoint, "optimizer", "scaler")
    train(p, p.batches[done : done + steps])
    return {**states(p, *ALL), "done": done + steps}


@wrong("10.4", "batches from the start")
def begins_with_the_first_batch(p, checkpoint, steps):
    load(p, checkpoint and {**checkpoint, "done": 0}, *ALL)
    train(p, p.batches[:steps])
    return states(p, *ALL)


@wrong("10.4", "saved too early")
def takes_the_states_first(p, checkpoint, steps):
    done = load(p, checkpoint, *ALL)
    saved = {**states(p, *ALL), "done": done + steps}
    train(p, p.batches[done : done + steps])
    return saved


@wrong("10.4", "objects saved")
def saves_whole_objects(p, checkpoint, steps):
    if checkpoint:
        p.model, p.optimizer, p.scaler = (checkpoint[part] for part in ALL)
    train(p, p.batches[:steps])
    return {"model": p.model, "optimizer": p.optimizer, "scaler": p.scaler, "done": steps}


@right("10.4")
def copies_everything(p, checkpoint, steps):
    done = load(p, checkpoint, *ALL)
    train(p, p.batches[done : done + steps])
    return copy.deepcopy({**states(p, *ALL), "done": done + steps})


@right("10.4")
def counts_by_adam(p, checkpoint, steps):
    rest = list(p.batches)
    if checkpoint:
        with torch.no_grad():
            for name, w in p.model.named_parameters():
                w.copy_(checkpoint["weights"][name])
        p.optimizer.load_state_dict(checkpoint["adam"])
        p.scaler.load_state_dict(checkpoint["scale"])
        rest = rest[-checkpoint["left"] :]
    train(p, rest[:steps])
    return {
        "weights": dict(p.model.named_parameters()),
        "adam": p.optimizer.state_dict(),
        "scale": p.scaler.state_dict(),
        "left": len(rest) - steps,
    }


# -- 10.5 mended ---------------------------------------------------------------------------------


def halves(x, y):
    return [(a.clone().requires_grad_(), b) for a, b in zip(x.chunk(2), y.chunk(2), strict=True)]


def scaled_gradient(p, loss, x):
    return torch.autograd.grad(p.scaler.scale(loss), x, create_graph=True)[0]


def mend(p, penalty_of, divide=2):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        for some_x, some_y in halves(x, y):
            loss = loss_of(p, some_x, some_y)
            penalty = penalty_of(loss, some_x)
            p.scaler.scale((loss + penalty) / divide).backward()
        step_and_update(p)
        losses.append(loss.item())
    return losses


@wrong("10.5", "update in every half")
def mends_all_but_the_update(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        for some_x, some_y in halves(x, y):
            loss = loss_of(p, some_x, some_y)
            grad = scaled_gradient(p, loss, some_x) / p.scaler.get_scale()
            p.scaler.scale((loss + 10 * grad.square().sum()) / 2).backward()
            p.scaler.update()
        p.scaler.step(p.optimizer)
        losses.append(loss.item())
    return losses


@wrong("10.5", "penalty still scaled")
def moves_the_update_only(p):
    return mend(p, lambda loss, x: 10 * scaled_gradient(p, loss, x).square().sum(), divide=1)


@wrong("10.5", "penalty still scaled")
def divides_by_two_too(p):
    return mend(p, lambda loss, x: 10 * scaled_gradient(p, loss, x).square().sum())


@wrong("10.5", "still a sum")
def leaves_a_sum(p):
    scale = p.scaler.get_scale

    def penalty(loss, x):
        return 10 * (scaled_gradient(p, loss, x) / scale()).square().sum()

    return mend(p, penalty, divide=1)


@wrong("10.5", "penalty without effect")
def detaches_the_gradient(p):
    def penalty(loss, x):
        grad = scaled_gradient(p, loss, x).detach() / p.scaler.get_scale()
        return 10 * grad.square().sum()

    return mend(p, penalty)


@wrong("10.5", "penalty without effect")
def gives_the_penalty_up(p):
    return mend(p, lambda loss, x: 0.0)


@wrong("10.5", "penalty without effect")
def forgets_to_scale_the_penalty(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        for some_x, some_y in halves(x, y):
            loss = loss_of(p, some_x, some_y)
            grad = scaled_gradient(p, loss, some_x) / p.scaler.get_scale()
            (p.scaler.scale(loss / 2) + 5 * grad.square().sum()).backward()
        step_and_update(p)
        losses.append(loss.item())
    return losses


@wrong("10.5", "scale turned down")
def starts_at_a_scale_of_one(p):
    p.scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    return mend(p, lambda loss, x: 10 * scaled_gradient(p, loss, x).square().sum())


@wrong("10.5", "AMP turned off")
def goes_back_to_fp32(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        for some_x, some_y in halves(x, y):
            loss = F.cross_entropy(p.model(some_x), some_y)
            grad = torch.autograd.grad(loss, some_x, create_graph=True)[0]
            p.scaler.scale((loss + 10 * grad.square().sum()) / 2).backward()
        step_and_update(p)
        losses.append(loss.item())
    return losses


@right("10.5")
def divides_the_square(p):
    def penalty(loss, x):
        scaled = scaled_gradient(p, loss, x).float()
        return 10 * (scaled * (1 / p.scaler.get_scale())).pow(2).sum()

    return mend(p, penalty)


@right("10.5")
def two_backward_passes_a_half(p):
    losses = []
    for x, y in p.batches:
        for some_x, some_y in halves(x, y):
            loss = loss_of(p, some_x, some_y)
            grad = scaled_gradient(p, loss, some_x) / p.scaler.get_scale()
            penalty = 10 * grad.square().sum()
            p.scaler.scale(loss / 2).backward(retain_graph=True)
            p.scaler.scale(penalty / 2).backward()
        p.scaler.unscale_(p.optimizer)
        step_and_update(p)
        p.optimizer.zero_grad()
        losses.append(loss)
    return losses
