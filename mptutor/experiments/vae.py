"""A variational autoencoder that loses a term of its loss in FP16, and looks perfect.

The loss has two terms, ``reconstruction + kl_weight * KL``, the second weak on purpose.  With
means over the batch and the latent numbers, its gradients with respect to the mean ``mu`` and the
logarithm of the variance of a latent number are

    kl_weight / (batch * latents) * mu                  = 1e-4 / (128 * 16) * mu = 2^-24.3 * mu
    kl_weight / (batch * latents) * (variance - 1) / 2                           > -2^-25.3

and FP16 turns into zero what is at or below 2^-25.  So the second is always lost, the first about
half of the time.  Nothing then keeps the variances from shrinking: they end up some hundred times
smaller than in FP32, the KL half as large again, where it also ends in FP32 with ``kl_weight=0``.
The reconstruction is as good as ever, nothing is NaN, no warning appears.  With a scaler, or in
BF16, the term is back.

Be exact about the damage: a term of the loss is off, the model is not ruined.  Nor does the share
of flushed gradients give it away: the other term's gradients survive, and with those added to them
a few per cent are flushed, less than in nets that are none the worse for it.  What matters is not
how many gradients are lost but which.

Pure BF16 shows the other failure here, weights that are too coarse for their updates, as a slightly
worse reconstruction; naive FP16 with Adam is NaN from the second step (see `training`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mptutor.data import ImageData, batches, load
from mptutor.devices import pick_device
from mptutor.experiments.progress import Progress
from mptutor.experiments.race import race
from mptutor.experiments.recipes import RECIPES, Recipe
from mptutor.experiments.tasks import Batch, Task, adam, order_seed, seeded
from mptutor.experiments.training_result import TrainingResult

LATENTS = 16


class VAE(nn.Module):
    """784 -> 256 -> 16 means and 16 log variances; 16 -> 256 -> 784; ReLU between.

    Shapes for a batch of ``b``::

        pixels       b x 784, from 0 to 1       noise   b x 16, standard normal
        mu, log_var  b x 16 each                latent  b x 16
        result       b x 784, mu, log_var
    """

    def __init__(self, pixels: int = 784, hidden: int = 256, latents: int = LATENTS) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latents)
        )
        self.decoder = nn.Sequential(
            nn.Linear(latents, hidden), nn.ReLU(), nn.Linear(hidden, pixels)
        )

    def forward(self, pixels: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode, draw a latent with the noise given, decode."""
        mu, log_var = self.encoder(pixels).chunk(2, dim=1)
        latent = mu + torch.exp(0.5 * log_var) * noise
        return self.decoder(latent), mu, log_var


def run_vae(
    *,
    kl_weight: float = 1e-4,
    recipes: Sequence[Recipe] = tuple(RECIPES.values()),
    seeds: Sequence[int] = (0,),
    epochs: int = 10,
    lr: float = 1e-3,
    quick: bool = False,
    device: torch.device | str | None = None,
    progress: Progress = True,
    stop: Callable[[], bool] | None = None,
) -> TrainingResult:
    """Train the VAE on the shipped images by every recipe, with Adam, batch 128.

    The result's terms are ``"reconstruction"`` and ``"kl"``, both without their weights.  With
    ``kl_weight=0`` it shows what a lost term looks like.  `quick` is four epochs at 2e-3.
    """
    device = pick_device() if device is None else torch.device(device)
    data = load("fashion-mnist-5k", device=device)
    if quick:
        lr, epochs = 2e-3, 4
    task = _task(data, kl_weight, lr, batch_size=128)
    return race(
        task, recipes, seeds=seeds, epochs=epochs, device=device, progress=progress, stop=stop
    )


def _task(data: ImageData, kl_weight: float, lr: float, batch_size: int) -> Task:
    (mean,), (std,) = data.mean, data.std

    def pixels_and_noise(seed: int, epoch: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(order_seed(seed, epoch))
        for images, _ in batches(data.train, batch_size, generator=generator, drop_last=True):
            noise = torch.randn(batch_size, LATENTS, generator=generator)
            yield (images * std + mean).flatten(1), noise.to(images.device)

    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        reconstruction, kl = _terms(model, batch)
        return reconstruction + kl_weight * kl, {"reconstruction": reconstruction, "kl": kl}

    return Task(
        name=f"VAE, KL weight {kl_weight:g}",
        data=data.name,
        batch_size=batch_size,
        steps_per_epoch=len(data.train) // batch_size,
        build=lambda seed: seeded(VAE, seed),
        batches=pixels_and_noise,
        loss=loss,
        optimizer=adam(lr),
    )


def _terms(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return squared error and KL divergence to a standard normal, both means, both in FP32.

    For the KL see Kingma and Welling, *Auto-Encoding Variational Bayes* (2014), appendix B.
    """
    pixels, noise = batch
    output, mu, log_var = model(pixels, noise)
    mu, log_var = mu.float(), log_var.float()
    kl = -0.5 * (1 + log_var - mu**2 - log_var.exp()).mean()
    return F.mse_loss(output.float(), pixels), kl
