"""The networks the lessons train, small enough for two CPU cores and ordinary in every part.

Mixed precision is a story about *kinds of layers*: matrix products run in 16 bits, normalization
and losses in 32, most pointwise layers in whatever they are given.  So each network here is the
smallest one that has all the kinds its family has:

* `small_cnn`: convolution, batch norm, pooling, one linear layer;
* `mlp`: linear layers and nothing else, where the cost of casting the weights shows;
* `char_transformer`: embedding, layer norm, attention, GELU;
* `resnet`: torchvision's ResNet, for a GPU to whom the others are too small to be timed.

All but `resnet` are plain `nn.Sequential`s of standard modules, so a hook, a census by layer or
a dtype trace finds every layer under a short name.  Parameters are FP32 on the default device:
build under ``with torch.device("cuda"):`` to have them elsewhere, and seed before building.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def small_cnn(image_shape: tuple[int, int, int] = (3, 32, 32), classes: int = 10) -> nn.Sequential:
    """Build conv16 - BN - ReLU - pool - conv32 - BN - ReLU - pool - linear.

    With images of 3x32x32 it has 25,674 parameters; shapes for a batch of ``b``::

        input          b x  3 x 32 x 32
        conv1, norm1   b x 16 x 32 x 32      pool1  b x 16 x 16 x 16
        conv2, norm2   b x 32 x 16 x 16      pool2  b x 32 x  8 x  8
        flatten        b x 2048              head   b x 10

    Parameters
    ----------
    image_shape
        Channels, height and width: ``(3, 32, 32)`` or, say, ``(1, 28, 28)``.  Height and width
        must be multiples of 4, since two poolings halve them.
    classes
        Number of logits.
    """
    channels, height, width = image_shape
    if height % 4 or width % 4:
        raise ValueError(
            f"image_shape: height and width must be multiples of 4, got {height} x {width}"
        )
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 16, kernel_size=3, padding=1),
            norm1=nn.BatchNorm2d(16),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(16, 32, kernel_size=3, padding=1),
            norm2=nn.BatchNorm2d(32),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            head=nn.Linear(32 * (height // 4) * (width // 4), classes),
        )
    )


def mlp(widths: Sequence[int] = (784, 512, 512, 10)) -> nn.Sequential:
    """Build linear layers with ReLU between them, taking images or flat vectors.

    ``widths`` names the sizes from input to logits; the default has 669,706 parameters::

        input    b x 1 x 28 x 28  or  b x 784
        linear1  b x 512
        linear2  b x 512
        linear3  b x 10
    """
    if len(widths) < 2:
        raise ValueError(f"widths: needs an input and an output size, got {tuple(widths)}")
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    last = len(widths) - 1
    for i in range(1, len(widths)):
        layers[f"linear{i}"] = nn.Linear(widths[i - 1], widths[i])
        if i < last:
            layers[f"relu{i}"] = nn.ReLU()
    return nn.Sequential(layers)


def char_transformer(
    vocabulary: int = 96, width: int = 128, heads: int = 4, layers: int = 2, context: int = 64
) -> nn.Sequential:
    """Build a pre-norm, causal transformer that predicts the next character.

    The default has 429,664 parameters; shapes for a batch of ``b``::

        input    b x 64  int64, character codes below `vocabulary`
        embed    b x 64 x 128
        block1   b x 64 x 128   attention over 4 heads of 32, then 128 -> 512 -> 128
        block2   b x 64 x 128
        norm     b x 64 x 128
        head     b x 64 x 96    logits of the character that follows

    Shorter sequences than `context` may be given, longer ones may not.
    """
    if width % heads:
        raise ValueError(f"width: must be a multiple of heads ({heads}), got {width}")
    blocks = {f"block{i}": TransformerBlock(width, heads) for i in range(1, layers + 1)}
    return nn.Sequential(
        OrderedDict(
            embed=CharEmbedding(vocabulary, width, context),
            **blocks,
            norm=nn.LayerNorm(width),
            head=nn.Linear(width, vocabulary),
        )
    )


class CharEmbedding(nn.Module):
    """A learned vector for the character, plus one for its position."""

    def __init__(self, vocabulary: int, width: int, context: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(context, width))

    def forward(self, codes: Tensor) -> Tensor:
        """Map b x t codes to b x t x width."""
        return self.characters(codes) + self.positions[: codes.shape[1]]


class TransformerBlock(nn.Module):
    """Causal self-attention, then two linear layers; each part normalizes x and adds to x."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map b x t x width to the same shape."""
        x = x + self.attention(self.norm1(x))
        return x + self.narrow(F.gelu(self.widen(self.norm2(x))))


class CausalAttention(nn.Module):
    """Attention in which a position sees itself and what came before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map b x t x width to the same shape."""
        batch, length, width = x.shape
        # b x t x 3w -> 3 x b x heads x t x (width of a head)
        split = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def resnet(depth: int = 50, classes: int = 1000) -> nn.Module:
    """Build torchvision's ResNet of the given depth (18, 34, 50, 101 or 152), untrained.

    Shapes for a batch of ``b`` at depth 50::

        input   b x    3 x 224 x 224
        conv1   b x   64 x 112 x 112     maxpool  b x 64 x 56 x 56
        layer1  b x  256 x  56 x  56     layer2   b x  512 x 28 x 28
        layer3  b x 1024 x  14 x  14     layer4   b x 2048 x  7 x  7
        fc      b x `classes`
    """
    if depth not in (18, 34, 50, 101, 152):
        raise ValueError(f"depth: must be 18, 34, 50, 101 or 152, got {depth!r}")
    from torchvision import models

    return getattr(models, f"resnet{depth}")(weights=None, num_classes=classes)
