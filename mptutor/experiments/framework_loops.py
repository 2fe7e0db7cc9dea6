"""The same small training inside Lightning Fabric, Lightning's Trainer and Accelerate.

Listings like those of `mptutor.experiments.raw_loops`: a framework's own way to write the loop
`plain`, with its switch for the precision, and where the switch does not do what it says, with the
repair. The frameworks are imported inside the loops: an import is a line that one has to write,
and so this module loads without them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mptutor.experiments.raw_loops import Batches, sgd

#: Keeps Lightning's Trainer from writing logs, checkpoints and progress bars.
QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def fabric(
    model: nn.Module,
    loss_fn: nn.Module,
    batches: Batches,
    device: torch.device,
    precision: str,
) -> list[float]:
    """Train with Lightning Fabric."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator=device.type, devices=1, precision=precision)
    model, optimizer = fabric.setup(model, sgd(model))
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def fabric_with_plugin(
    model: nn.Module, loss_fn: nn.Module, batches: Batches, device: torch.device
) -> list[float]:
    """Train with Lightning Fabric and a precision plugin made by hand, so that it is FP16."""
    from lightning.fabric import Fabric
    from lightning.fabric.plugins.precision import MixedPrecision

    scaler = torch.amp.GradScaler(device.type)
    precision = MixedPrecision("16-mixed", device.type, scaler=scaler)
    fabric = Fabric(accelerator=device.type, devices=1, plugins=[precision])
    model, optimizer = fabric.setup(model, sgd(model))
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def trainer(
    model: nn.Module,
    loss_fn: nn.Module,
    batches: Batches,
    device: torch.device,
    precision: str,
) -> list[float]:
    """Train with Lightning's Trainer."""
    from lightning.pytorch import LightningModule, Trainer
    from torch.utils.data import DataLoader

    class Classifier(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self.model)

        def training_step(self, batch: tuple[Tensor, Tensor], step: int) -> Tensor:
            x, y = batch
            loss = loss_fn(self.model(x), y)
            losses.append(loss.item())
            return loss

    losses = []
    one_epoch = {"devices": 1, "max_epochs": 1, **QUIET}
    trainer = Trainer(accelerator=device.type, precision=precision, **one_epoch)
    trainer.fit(Classifier(), DataLoader(batches, batch_size=None))
    return losses


def trainer_with_plugin(
    model: nn.Module, loss_fn: nn.Module, batches: Batches, device: torch.device
) -> list[float]:
    """Train with Lightning's Trainer and a precision plugin made by hand, so that it is FP16."""
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.plugins.precision import MixedPrecision
    from torch.utils.data import DataLoader

    class Classifier(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self.model)

        def training_step(self, batch: tuple[Tensor, Tensor], step: int) -> Tensor:
            x, y = batch
            loss = loss_fn(self.model(x), y)
            losses.append(loss.item())
            return loss

    losses = []
    scaler = torch.amp.GradScaler(device.type)
    precision = MixedPrecision("16-mixed", device.type, scaler=scaler)
    one_epoch = {"devices": 1, "max_epochs": 1, **QUIET}
    trainer = Trainer(accelerator=device.type, plugins=[precision], **one_epoch)
    trainer.fit(Classifier(), DataLoader(batches, batch_size=None))
    return losses


def accelerate(
    model: nn.Module,
    loss_fn: nn.Module,
    batches: Batches,
    device: torch.device,
    precision: str,
) -> list[float]:
    """Train with Hugging Face Accelerate."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision=precision)
    model, optimizer = accelerator.prepare(model, sgd(model))
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses
