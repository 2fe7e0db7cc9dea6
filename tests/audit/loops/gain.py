"""Examples for the notes on speed and memory."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.audit.loops.examples import fires, silent
from tests.audit.loops.pieces import BF16, amp, batches, mlp, training


def bf16_loop(model, batch=32, inputs=32, after=lambda loss: None, n=256):
    model, optimizer, _ = training(model)
    for x, y in batches(batch=batch, n=n):
        x = x.repeat(1, inputs // 32)
        with amp(BF16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after(loss)


@fires("layers_too_small")
def layers_of_sixteen():
    bf16_loop(nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8)))


@silent("layers_too_small", "sides_not_multiple_of_8", "casts_outweigh_savings")
def layers_of_sixty_four():
    bf16_loop(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), 64, 64)


class _Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.head = nn.Linear(64, 3)

    def forward(self, x):
        return self.head(self.layer(x.view(-1, 8, 64)).mean(1))


@silent("layers_too_small")
def attention_counts_as_a_product():
    """Of four products one is small: those of nn.MultiheadAttention call no layer of their own."""
    bf16_loop(_Encoder(), inputs=512)


@silent("sides_not_multiple_of_8")
def a_layer_that_is_small_anyway():
    """One remark is enough: three classes are too few to gain, so eight would be."""
    bf16_loop(nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 3)), 64, 512)


@fires("sides_not_multiple_of_8")
def vocabulary_of_1001():
    bf16_loop(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1001)), 64, 64)


@fires("sync_every_step", as_accelerator=True)
def loss_read_back_every_step():
    totals = []
    bf16_loop(mlp(64), after=lambda loss: totals.append(loss.item()))


@silent("sync_every_step", as_accelerator=True)
def loss_read_back_at_the_end():
    total = torch.zeros(())
    bf16_loop(mlp(64), after=lambda loss: total.add_(loss.detach()))
    total.item()


def _partly_outside(wide, narrow):
    body, head = wide, narrow
    _, optimizer, _ = training(nn.ModuleList([body, head]))
    for x, y in batches():
        hidden = body(x)
        with amp(BF16):
            loss = F.cross_entropy(head(hidden), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fires("fp32_dominates")
def body_left_outside():
    _partly_outside(
        nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64)), nn.Linear(64, 32)
    )


@silent("fp32_dominates")
def small_part_left_outside():
    _partly_outside(nn.Linear(32, 32), nn.Sequential(nn.Linear(32, 256), nn.Linear(256, 64)))


@fires("casts_outweigh_savings")
def wide_layers_and_a_small_batch():
    wide = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
    bf16_loop(wide, batch=32, inputs=512, n=64)


@fires("memory_grows")
def losses_kept_with_their_graphs():
    kept = []
    bf16_loop(mlp(64), after=kept.append, n=512)


@fires("memory_grows")
def running_loss_not_detached():
    total = 0.0

    def add(loss):
        nonlocal total
        total = total + loss

    bf16_loop(mlp(64), after=add, n=512)


@fires("memory_grows")
def validation_with_its_graphs():
    """No torch.no_grad, and the losses are added up: every graph stays, activations and all."""
    model, optimizer, _ = training()
    total = 0.0
    for x, y in batches(n=512):
        with amp(BF16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with amp(BF16):
            total = total + F.cross_entropy(model(x), y)


@silent("memory_grows")
def losses_kept_as_numbers():
    kept = []
    bf16_loop(mlp(64), after=lambda loss: kept.append(loss.detach()), n=512)
