"""Fine-tuning, where 16-bit weights stand still.

An update changes a weight only if it is larger than about half the distance to the weight's next
neighbour, which in BF16 is between a 512th and a 256th of the weight.  From scratch, with a large
learning rate and weights near zero, enough updates are, and pure BF16 trains as well as FP32.  Late
in training and in fine-tuning they are not: the learning rate is small and the weights are what
they are.

Here the course CNN is trained on upright images, in FP32, and then fine-tuned with Adam on the
same images turned upside down.  At a learning rate of 3e-5 pure BF16 is left far behind, at 1e-4
less so; FP32, AMP and BF16 with an FP32 master copy agree.  `Run.share_moved` tells why.

FP16 has three mantissa bits more than BF16 and hardly stalls here.  What kills naive FP16 is
Adam's ``eps``, 1e-8, which is 0 in FP16; with ``eps=1e-4`` it keeps up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

from mptutor.data import ImageData, Split, batches, load
from mptutor.devices import pick_device
from mptutor.experiments.progress import Progress
from mptutor.experiments.race import race
from mptutor.experiments.recipes import (
    AMP_FP16,
    BF16_MASTER,
    FP16_MASTER,
    FP32,
    PURE_BF16,
    Recipe,
)
from mptutor.experiments.tasks import adam, classify, order_seed, seeded, shorten
from mptutor.experiments.training_result import TrainingResult
from mptutor.models import small_cnn

_RECIPES = (FP32, PURE_BF16, BF16_MASTER, FP16_MASTER, AMP_FP16)


def run_fine_tuning(
    *,
    lr: float = 3e-5,
    recipes: Sequence[Recipe] | None = None,
    seeds: Sequence[int] = (0,),
    epochs: int = 2,
    eps: float = 1e-8,
    quick: bool = False,
    device: torch.device | str | None = None,
    progress: Progress = True,
    stop: Callable[[], bool] | None = None,
) -> TrainingResult:
    """Fine-tune a trained CNN on upside-down images by every recipe, with Adam, batch 64.

    Unless named, the recipes are FP32, pure BF16, BF16 and FP16 with a master copy, and AMP FP16.
    `eps` is Adam's.  `quick` is half of the images and, unless named, the first three recipes.
    """
    device = pick_device() if device is None else torch.device(device)
    upright = load("fashion-mnist-5k", size=32, channels=3, device=device)
    if quick:
        upright = shorten(upright, 2500)
    if recipes is None:
        recipes = _RECIPES[:3] if quick else _RECIPES
    task = classify(
        f"fine-tuning at {lr:g}", _turned(upright), small_cnn, adam(lr, eps), batch_size=64
    )
    pretrained = cache(lambda seed: _pretrain(upright, seed, device))

    def build(seed: int) -> nn.Module:
        model = small_cnn()
        model.load_state_dict(pretrained(seed))
        return model

    return race(
        replace(task, build=build),
        recipes,
        seeds=seeds,
        epochs=epochs,
        device=device,
        progress=progress,
        stop=stop,
    )


def _pretrain(data: ImageData, seed: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Train the CNN in FP32 for two epochs and return its weights."""
    model = seeded(small_cnn, seed).to(device)
    optimizer = adam(1e-3)(model.parameters())
    for epoch in range(2):
        for images, labels in batches(data.train, 64, seed=order_seed(seed, epoch)):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
    return model.state_dict()


def _turned(data: ImageData) -> ImageData:
    """Turn all images upside down."""
    train, test = (Split(s.images.flip(-2), s.labels) for s in (data.train, data.test))
    return replace(data, name=f"{data.name}, upside down", train=train, test=test)
