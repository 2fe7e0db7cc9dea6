"""Published measurements of memory and step time, to hold the forecasts against.

Every row says where it was published and everything that the forecast needs to know of it.  The
constants of the roofline were searched for on the rows marked `fitted`, all of them ResNet-50, and
rounded with a look at the others.  Rows outside the promised error carry their cause.

Some of a setup is not in its source and is assumed here: that BERT in FP16 ran as apex O2, that
DeiT kept its default average of the weights, and the batch of PyTorch's AMP recipe.

``python -m tests.published`` prints forecast against published; ``--json FILE`` writes it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mptutor.experiments.result import text_table
from mptutor.forecast import MEMORY_ERROR, TIME_ERROR, Forecast, forecast
from tests import published_models as own

Model = str | Callable[[], nn.Module]

NVIDIA = "NVIDIA DeepLearningExamples, PyTorch ResNet50 v1.5 README and configs.yml"
LAMBDA = (
    "github.com/lambdal/deeplearning-benchmark, pytorch-train-throughput-fp16/32.csv, batch sizes "
    "from pytorch-train-bs-fp16/32.csv; ResNet-50 on synthetic data in NCHW"
)
TIMM = "github.com/huggingface/pytorch-image-models, benchmark-train-amp-nhwc-pt112-cu113-rtx3090"
MMACTION = "github.com/open-mmlab/mmaction2, configs/recognition/tsn/README.md (2020)"
MESA = "github.com/ziplab/Mesa README and issue 2: max_memory_allocated, AMP, torch 1.7.1, RTX 3090"
ANATOMY = (
    "huggingface.co transformers, Model training anatomy and Efficient training on a single GPU: "
    "V100, memory by NVML, less 1343 MB before the model"
)
RECIPE = "discuss.pytorch.org/t/134442: PyTorch's AMP recipe on an RTX 3080"

VISION = "github.com/pytorch/vision pull 4994: max mem of references/segmentation on 8 GPUs"

#: DLE's and Lambda's BERT: 384 tokens, apex O2 (FP16 weights, FP32 masters) or TF32.
O2 = "FP16 + master + scaler"

DEPTHWISE = "depthwise convolutions: kernels for them get less of the bandwidth than others"


@dataclass(frozen=True)
class Speed:
    """A published step time: `samples_per_s` of a batch."""

    source: str
    gpu: str
    model: Model
    batch: int
    recipe: str
    samples_per_s: float
    channels_last: bool = False
    train: bool = True
    tf32_products: bool = True
    sample_shape: tuple[int, ...] | None = None
    optimizer: str = "sgd"
    fitted: bool = False
    outlier: str = ""

    @property
    def step_ms(self) -> float:
        return 1e3 * self.batch / self.samples_per_s

    def forecast(self) -> Forecast:
        return forecast(
            self.model,
            batch=self.batch,
            recipe=self.recipe,
            gpu=self.gpu,
            optimizer=self.optimizer,
            sample_shape=self.sample_shape,
            integers=self.sample_shape is not None and len(self.sample_shape) == 1,
            channels_last=self.channels_last,
            tf32_products=self.tf32_products,
            train=self.train,
        )


def nvidia(gpu: str, batch: int, recipe: str, images_per_s: float, train: bool = True) -> Speed:
    """Make a row of NVIDIA's, which has AMP in NHWC and FP32 and TF32 in NCHW."""
    nhwc = recipe == "AMP FP16"
    return Speed(NVIDIA, gpu, "resnet50", batch, recipe, images_per_s, nhwc, train, fitted=True)


def lambda_resnet(gpu: str, fp16: tuple[int, float], fp32: tuple[int, float]) -> list[Speed]:
    """Make two rows from (batch, images/s) each."""
    return [
        Speed(LAMBDA, gpu, "resnet50", fp16[0], "AMP FP16", fp16[1], fitted=True),
        Speed(LAMBDA, gpu, "resnet50", fp32[0], "FP32", fp32[1], fitted=True),
    ]


def lambda_bert(
    gpu: str, model: Model, fp16: tuple[int, float], fp32: tuple[int, float]
) -> list[Speed]:
    """Make two rows from (batch, sequences/s) each."""
    return [
        Speed(LAMBDA, gpu, model, batch, recipe, rate, sample_shape=(384,), optimizer="adam")
        for recipe, (batch, rate) in ((O2, fp16), ("FP32", fp32))
    ]


def timm(model: str, batch: int, images_per_s: float, outlier: str = "") -> Speed:
    return Speed(
        TIMM,
        "RTX 3090",
        model,
        batch,
        "AMP FP16",
        images_per_s,
        channels_last=True,
        outlier=outlier,
    )


SPEEDS: list[Speed] = [
    nvidia("V100", 112, "FP32", 367),
    nvidia("V100", 256, "AMP FP16", 1200),
    nvidia("A100", 256, "FP32", 938),
    nvidia("A100", 256, "AMP FP16", 2470),
    nvidia("T4", 256, "FP32", 428, train=False),
    nvidia("T4", 256, "AMP FP16", 1198, train=False),
    nvidia("V100", 256, "FP32", 1261, train=False),
    nvidia("V100", 256, "AMP FP16", 3382, train=False),
    *lambda_resnet("V100", (256, 833), (128, 369)),
    *lambda_resnet("RTX 3090", (448, 905), (224, 513)),
    *lambda_resnet("A100", (1280, 1582), (640, 1066)),
    *lambda_resnet("RTX 4090", (448, 1301), (224, 721)),
    *lambda_resnet("H100", (1280, 2616), (640, 1753)),
    *lambda_resnet("H100", (1280, 2791), (640, 1898)),
    *lambda_bert("V100", own.bert_base_squad, (48, 189), (24, 42)),
    *lambda_bert("V100", own.bert_large_squad, (16, 57), (8, 12)),
    *lambda_bert("RTX 3090", own.bert_base_squad, (96, 172), (48, 85)),
    *lambda_bert("RTX 3090", own.bert_large_squad, (28, 52), (16, 24)),
    *lambda_bert("A100", own.bert_base_squad, (320, 443), (172, 239)),
    *lambda_bert("A100", own.bert_large_squad, (112, 152), (64, 75)),
    *lambda_bert("RTX 4090", own.bert_base_squad, (96, 297), (48, 137)),
    *lambda_bert("RTX 4090", own.bert_large_squad, (28, 93), (16, 44)),
    *lambda_bert("H100", own.bert_base_squad, (320, 877), (172, 436)),
    *lambda_bert("H100", own.bert_large_squad, (112, 311), (64, 148)),
    timm("resnet18", 512, 3481.78),
    timm("resnet34", 512, 2036.51),
    timm("resnet50", 512, 1218.01),
    timm("resnet101", 256, 747.89),
    timm("resnet152", 192, 501.44),
    timm("wide_resnet50_2", 384, 668.78),
    timm("resnext50_32x4d", 384, 1001.03),
    timm("vgg11", 512, 954.03),
    timm("vgg11_bn", 384, 832.74),
    timm("vgg16", 384, 546.06),
    timm("densenet121", 256, 913.65),
    timm("inception_v3", 384, 782.35),
    timm("vit_b_32", 512, 1708.63),
    timm("vit_b_16", 192, 392.99),
    timm("vit_l_16", 64, 117.2),
    timm("swin_t", 256, 648.69),
    timm("convnext_tiny", 256, 819.24),
    timm("convnext_base", 128, 338.68),
    timm("mobilenet_v2", 512, 2313.1, DEPTHWISE),
    timm("mnasnet1_0", 512, 2929.31, DEPTHWISE),
    timm("efficientnet_b0", 512, 1751.72, DEPTHWISE),
]


@dataclass(frozen=True)
class Memory:
    """A published peak of a training step.

    `held_models` is how often the parameters were in memory beyond what a step of today's torch
    needs: gradients that ``zero_grad`` set to zero and did not free (the default up to 1.13), the
    buckets of DistributedDataParallel, an averaged copy of the weights.  `held_bytes` is other
    data.
    """

    source: str
    model: Model
    batch: int
    recipe: str
    peak_bytes: float
    optimizer: str | Callable = "sgd"
    sample_shape: tuple[int, ...] | None = None
    integers: bool = False
    loss: Callable[[Tensor, int], Tensor] | None = None
    held_models: int = 0
    held_bytes: int = 0
    outlier: str = ""

    def forecast_bytes(self) -> int:
        """Return the forecast peak with what else was in memory."""
        f = forecast(
            self.model,
            batch=self.batch,
            recipe=self.recipe,
            optimizer=self.optimizer,
            sample_shape=self.sample_shape,
            integers=self.integers,
            loss=self.loss,
        )
        return f.peak_bytes + 4 * f.parameters * self.held_models + self.held_bytes


def plain_sgd(weights: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.1, foreach=False)


def momentum_sgd(weights: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.1, momentum=0.9, foreach=False)


def adamw(weights: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(weights, foreach=False)


def squared_error(output: Tensor, batch: int) -> Tensor:
    return (output - torch.zeros(batch, output.shape[1])).pow(2).mean()


def fcn_loss(output: dict[str, Tensor], batch: int) -> Tensor:
    """Return the loss of torchvision's reference: cross entropy of pixels, half of it auxiliary."""
    targets = torch.zeros(batch, 480, 480, dtype=torch.long)
    main, aux = (F.cross_entropy(output[k], targets, ignore_index=255) for k in ("out", "aux"))
    return main + 0.5 * aux


MB = 2**20


def mmaction(model: str, batch: int, mb: float) -> Memory:
    """Make a row of FP32 frames: zeroed gradients and DistributedDataParallel's buckets."""
    return Memory(MMACTION, model, batch, "FP32", mb * MB, momentum_sgd, held_models=2)


def mesa(model: Model, mb: float) -> Memory:
    """Make a row of DeiT: zeroed gradients and an averaged copy of the weights."""
    return Memory(
        MESA, model, 128, "AMP FP16", mb * MB, adamw, sample_shape=(3, 224, 224), held_models=2
    )


def anatomy(batch: int, recipe: str, mb: float) -> Memory:
    """Make a row of BERT-large, 512 tokens: zeroed gradients."""
    return Memory(
        ANATOMY, own.bert_large_classifier, batch, recipe, (mb - 1343) * MB, adamw,
        sample_shape=(512,), integers=True, held_models=1,
    )  # fmt: skip


def amp_recipe(recipe: str, peak_bytes: float) -> Memory:
    """Make a row of three linear layers of 4096 and 50 batches of 256 on the GPU, two of a kind.

    The post does not say the batch size; 256 is inferred from its FP32 figure, which it meets.
    """
    one = 256 * 4096 * 4
    return Memory(
        RECIPE, own.amp_recipe_mlp, 256, recipe, peak_bytes, plain_sgd,
        sample_shape=(4096,), loss=squared_error, held_bytes=99 * one,
    )  # fmt: skip


MEMORIES: list[Memory] = [
    mmaction("resnet50", 96, 8344),
    mmaction("resnet101", 80, 10467),
    Memory(
        VISION,
        own.fcn_resnet50,
        4,
        "FP32",
        4723 * MB,
        momentum_sgd,
        sample_shape=(3, 480, 480),
        loss=fcn_loss,
        held_models=2,
    ),
    mesa(own.deit_tiny, 4171),
    mesa(own.deit_small, 8459),
    mesa(own.deit_base, 17691),
    anatomy(4, "FP32", 14949),
    anatomy(1, "FP32", 8681),
    anatomy(4, "AMP FP16", 13939),
    amp_recipe("FP32", 826_428_416),
    amp_recipe("AMP FP16", 925.0e6),
]


def name_of(row: Speed | Memory) -> str:
    model = row.model if isinstance(row.model, str) else row.model.__name__
    return f"{model} b{row.batch} {row.recipe}"


def compare_speed(row: Speed) -> dict:
    """Put the forecast of a step time beside it."""
    forecast_ms = row.forecast().step_ms
    return {
        "GPU": row.gpu,
        "model": name_of(row),
        "mode": f"{'train' if row.train else 'infer'} {'NHWC' if row.channels_last else 'NCHW'}",
        "published ms": row.step_ms,
        "forecast ms": forecast_ms,
        "error %": round(100 * (forecast_ms / row.step_ms - 1), 1),
        "fitted": row.fitted,
        "outlier": row.outlier,
    }


def compare_memory(row: Memory) -> dict:
    """Put the forecast of a peak beside it."""
    forecast_bytes = row.forecast_bytes()
    return {
        "model": name_of(row),
        "published MB": row.peak_bytes / MB,
        "forecast MB": forecast_bytes / MB,
        "error %": round(100 * (forecast_bytes / row.peak_bytes - 1), 1),
        "outlier": row.outlier,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Forecast against published measurements.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the two tables")
    arguments = parser.parse_args()
    tables = {
        "memory": [compare_memory(row) for row in MEMORIES],
        "speed": [compare_speed(row) for row in SPEEDS],
    }
    for name, rows in tables.items():
        bound = 100 * (TIME_ERROR if name == "speed" else MEMORY_ERROR)
        inside = sum(abs(row["error %"]) <= bound for row in rows)
        print(text_table(rows), f"\n{inside} of {len(rows)} within {bound:.0f} %\n", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(tables, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
