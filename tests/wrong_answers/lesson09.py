"""What people really give to exercise 09, and right answers that look unlike the solution."""

import statistics
from itertools import pairwise

import torch
import torch.nn.functional as F

from mptutor.hardware import MemoryMeter
from mptutor.models import mlp
from tests.answers import right, wrong

# -- 09.1 saved_bytes ----------------------------------------------------------------------------


@wrong("09.1", "all is halved")
def half_of_everything(widths, batch, amp):
    return sum(batch * width * (2 if amp else 4) for width in widths[:-1])


@wrong("09.1", "all is halved")
def halves_at_the_end(widths, batch, amp):
    fp32 = 4 * batch * sum(widths[:-1])
    return fp32 // 2 if amp else fp32


@wrong("09.1", "copies of all weights")
def copies_every_weight(widths, batch, amp):
    nbytes = 2 if amp else 4
    saved = 0
    for wide, narrow in pairwise(widths):
        saved += nbytes * batch * wide
        if amp:
            saved += 2 * wide * narrow
    return saved


@wrong("09.1", "ReLU counted twice")
def before_and_after_the_relu(widths, batch, amp):
    nbytes = 2 if amp else 4
    saved = nbytes * batch * widths[0]
    for width in widths[1:-1]:
        saved += 2 * nbytes * batch * width
    if amp:
        saved += sum(2 * a * b for a, b in pairwise(widths[1:]))
    return saved


@wrong("09.1", "outputs for inputs")
def what_each_layer_puts_out(widths, batch, amp):
    saved = (2 if amp else 4) * batch * sum(widths[1:])
    if amp:
        saved += sum(2 * a * b for a, b in pairwise(widths[1:]))
    return saved


@wrong("09.1", "inputs and outputs")
def every_activation(widths, batch, amp):
    saved = (2 if amp else 4) * batch * sum(widths)
    if amp:
        saved += sum(2 * a * b for a, b in pairwise(widths[1:]))
    return saved


@wrong("09.1", "the batch forgotten")
def hidden_layers_only(widths, batch, amp):
    saved = (2 if amp else 4) * batch * sum(widths[1:-1])
    if amp:
        saved += sum(2 * a * b for a, b in pairwise(widths[1:]))
    return saved


@wrong("09.1", "the batch kept in FP32")
def the_batch_stays_fp32(widths, batch, amp):
    saved = 4 * batch * widths[0] + (2 if amp else 4) * batch * sum(widths[1:-1])
    if amp:
        saved += sum(2 * a * b for a, b in pairwise(widths[1:]))
    return saved


@wrong("09.1", "weights counted")
def parameters_too(widths, batch, amp):
    parameters = sum(4 * (a * b + b) for a, b in pairwise(widths))
    saved = (2 if amp else 4) * batch * sum(widths[:-1]) + parameters
    if amp:
        saved += sum(2 * a * b for a, b in pairwise(widths[1:]))
    return saved


@wrong("09.1", "numbers for bytes")
def counts_numbers(widths, batch, amp):
    numbers = batch * sum(widths[:-1])
    if amp:
        numbers += sum(a * b for a, b in pairwise(widths[1:]))
    return numbers


@right("09.1")
def measures_it(widths, batch, amp):
    net = mlp(widths)
    with MemoryMeter(net) as meter, torch.autocast("cpu", torch.float16, enabled=amp):
        logits = net(torch.zeros(batch, widths[0]))
    del logits
    return meter.saved_bytes


@right("09.1")
def layer_by_layer(widths, batch, amp):
    saved = 0
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        x = torch.empty(batch, inputs, dtype=torch.float16 if amp else torch.float32)
        saved += x.nbytes
        if amp and i > 0:
            saved += torch.empty(outputs, inputs, dtype=torch.float16).nbytes
    return float(saved)


# -- 09.2 step_ms --------------------------------------------------------------------------------


@wrong("09.2", "waits for nothing")
def times_the_call(step, wait, now):
    for _ in range(5):
        step()
    laps = []
    for _ in range(20):
        start = now()
        step()
        laps.append(now() - start)
    return statistics.median(laps)


@wrong("09.2", "waits for nothing")
def waits_once_at_the_start(step, wait, now):
    for _ in range(5):
        step()
    wait()
    start = now()
    for _ in range(20):
        step()
    return (now() - start) / 20


@wrong("09.2", "waits for nothing")
def waits_before_each_step(step, wait, now):
    for _ in range(5):
        step()
    laps = []
    for _ in range(21):
        wait()
        start = now()
        step()
        laps.append(now() - start)
    return statistics.median(laps)


@wrong("09.2", "seconds")
def divides_by_a_thousand(step, wait, now):
    for _ in range(5):
        step()
    laps = []
    for _ in range(21):
        wait()
        start = now()
        step()
        wait()
        laps.append((now() - start) / 1000)
    return statistics.median(laps)


@wrong("09.2", "all steps for one")
def forgets_to_divide(step, wait, now):
    for _ in range(5):
        step()
    wait()
    start = now()
    for _ in range(20):
        step()
    wait()
    return now() - start


@wrong("09.2", "a single step")
def times_the_first(step, wait, now):
    start = now()
    step()
    wait()
    return now() - start


@wrong("09.2", "a single step")
def times_one_after_warming_up(step, wait, now):
    for _ in range(10):
        step()
    wait()
    start = now()
    step()
    wait()
    return now() - start


@wrong("09.2", "slow first steps counted")
def begins_at_once(step, wait, now):
    start = now()
    for _ in range(20):
        step()
    wait()
    return (now() - start) / 20


@wrong("09.2", "slow first steps counted")
def warms_up_once(step, wait, now):
    step()
    wait()
    laps = []
    for _ in range(10):
        start = now()
        step()
        wait()
        laps.append(now() - start)
    return sum(laps) / len(laps)


@wrong("09.2", "the mean")
def averages(step, wait, now):
    for _ in range(10):
        step()
    wait()
    start = now()
    for _ in range(100):
        step()
    wait()
    return (now() - start) / 100


@wrong("09.2", "the mean")
def averages_laps(step, wait, now):
    for _ in range(5):
        step()
    laps = []
    for _ in range(24):
        wait()
        start = now()
        step()
        wait()
        laps.append(now() - start)
    return statistics.fmean(laps)


@right("09.2")
def takes_the_quickest(step, wait, now):
    quickest = float("inf")
    for _ in range(30):
        wait()
        start = now()
        step()
        wait()
        quickest = min(quickest, now() - start)
    return quickest


@right("09.2")
def median_of_all_laps(step, wait, now):
    times = [now()]
    for _ in range(51):
        step()
        wait()
        times.append(now())
    return torch.tensor(times).diff().median().item()


@right("09.2")
def median_of_short_runs(step, wait, now):
    for _ in range(4):
        step()
    laps = []
    for _ in range(40):
        wait()
        start = now()
        step()
        step()
        wait()
        laps.append((now() - start) / 2)
    return statistics.median(laps)


# -- 09.3 quick_loop -----------------------------------------------------------------------------


def fp16():
    return torch.autocast("cpu", torch.float16)


def loss_of(p, x, y):
    with fp16():
        return F.cross_entropy(p.model["head"](p.model["widen"](x).relu()).mean(1), y)


def loss_by_position(p, x, y):
    logits = 0
    for position in range(16):
        with fp16():
            wide = p.model["widen"](x[:, position]).relu()
            logits = logits + p.model["head"](wide) / 16
    return F.cross_entropy(logits, y)


def step(p, loss):
    p.scaler.scale(loss).backward()
    p.scaler.step(p.optimizer)
    p.scaler.update()


@wrong("09.3", "nothing mended")
def the_slow_loop(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        loss = loss_by_position(p, x, y)
        if torch.isnan(loss):
            break
        step(p, loss)
        losses.append(loss.item())
    return losses


@wrong("09.3", "losses read in every step")
def drops_the_question(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        loss = loss_of(p, x, y)
        step(p, loss)
        losses.append(loss.item())
    return losses


@wrong("09.3", "losses read in every step")
def float_is_no_item(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        loss = loss_of(p, x, y)
        step(p, loss)
        losses.append(float(loss.detach().cpu()))
    return losses


@wrong("09.3", "the question kept")
def keeps_the_question(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        loss = loss_of(p, x, y)
        if not torch.isfinite(loss):
            continue
        step(p, loss)
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


@wrong("09.3", "waits, but casts once")
def all_positions_at_once(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        loss = loss_of(p, x, y)
        if torch.isnan(loss):
            break
        step(p, loss)
        losses.append(loss.item())
    return losses


@wrong("09.3", "casts at every position")
def drops_the_reading(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        loss = loss_by_position(p, x, y)
        step(p, loss)
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


@wrong("09.3", "one block for the training")
def one_block_around_all(p):
    losses = []
    with torch.autocast("cpu", torch.float16):
        for x, y in p.batches:
            p.optimizer.zero_grad()
            wide = p.model["widen"](x).relu()
            loss = F.cross_entropy(p.model["head"](wide).mean(1), y)
            step(p, loss)
            losses.append(loss.detach())
    return torch.stack(losses).tolist()


@wrong("09.3", "AMP and scaler turned off")
def without_autocast(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        loss = F.cross_entropy(p.model["head"](p.model["widen"](x).relu()).mean(1), y)
        loss.backward()
        p.optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


@wrong("09.3", "AMP turned off")
def fp32_with_the_scaler(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        loss = F.cross_entropy(p.model["head"](p.model["widen"](x).relu()).mean(1), y)
        step(p, loss)
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


@wrong("09.3", "the scaler left out")
def without_the_scaler(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        loss = loss_of(p, x, y)
        loss.backward()
        p.optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


@wrong("09.3", "the model in FP16")
def half_the_model(p):
    p.model.half()
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        wide = p.model["widen"](x.half()).relu()
        loss = F.cross_entropy(p.model["head"](wide).mean(1), y)
        step(p, loss)
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


@wrong("09.3", "losses given up")
def returns_nothing_to_read(p):
    for x, y in p.batches:
        p.optimizer.zero_grad()
        step(p, loss_of(p, x, y))
    return []


@wrong("09.3", "the last loss alone")
def returns_the_last(p):
    for x, y in p.batches:
        p.optimizer.zero_grad()
        loss = loss_of(p, x, y)
        step(p, loss)
    return [loss.item()]


@wrong("09.3", "the sum over positions")
def sums_the_positions(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with fp16():
            logits = p.model["head"](p.model["widen"](x).relu()).sum(1)
            loss = F.cross_entropy(logits, y)
        step(p, loss)
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


@right("09.3")
def a_block_around_the_positions(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with fp16():
            rows = [p.model["head"](p.model["widen"](x[:, t]).relu()) for t in range(16)]
            loss = F.cross_entropy(torch.stack(rows).mean(0), y)
        step(p, loss)
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


@right("09.3")
def loss_outside_and_written_into_a_tensor(p):
    losses = torch.zeros(len(p.batches))
    for i, (x, y) in enumerate(p.batches):
        for w in p.model.parameters():
            w.grad = None
        with fp16():
            logits = p.model["head"](p.model["widen"](x.flatten(0, 1)).relu())
        loss = F.cross_entropy(logits.float().view(*x.shape[:2], -1).mean(1), y)
        step(p, loss)
        losses[i] = loss.detach()
    return losses


@right("09.3")
def looks_once_in_a_while(p):
    losses = []
    for i, (x, y) in enumerate(p.batches):
        p.optimizer.zero_grad()
        loss = loss_of(p, x, y)
        step(p, loss)
        losses.append(loss.detach())
        if i % 5 == 0:
            print(f"{loss.item():.2f}")
    return losses
