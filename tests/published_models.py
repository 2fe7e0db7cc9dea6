"""Networks of published measurements that neither torchvision nor the course has, by their papers.

They are written as their authors ran them, which takes more memory than the torch of today: with
attention spelled out, and with a softmax that saves its input for the backward pass beside its
output, as torch did up to 1.10.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class _OldSoftmax(torch.autograd.Function):
    """Softmax over the last dimension, which keeps what it doesn't need."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        y = torch.softmax(x, dim=-1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        _, y = ctx.saved_tensors
        return torch._softmax_backward_data(grad, y, -1, y.dtype)


class _Attention(nn.Module):
    """Self-attention that keeps its b x heads x t x t weights, with dropout on them."""

    def __init__(self, width: int, heads: int, dropout: float, split: bool) -> None:
        super().__init__()
        self.heads = heads
        sizes = [width, width, width] if split else [3 * width]
        self.inputs = nn.ModuleList(nn.Linear(width, size) for size in sizes)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, t, width = x.shape
        parts = [linear(x) for linear in self.inputs]
        parts = parts if len(parts) == 3 else parts[0].chunk(3, dim=-1)
        q, k, v = (p.reshape(b, t, self.heads, -1).transpose(1, 2) for p in parts)
        weights = (q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5
        if mask is not None:
            weights = weights + mask.to(x.dtype)
        if torch.is_autocast_enabled("cpu"):  # which knows torch's softmax, but not this one
            weights = weights.float()
        mixed = self.dropout(_OldSoftmax.apply(weights)) @ v
        return self.out(mixed.transpose(1, 2).reshape(b, t, width))


class _StochasticDepth(nn.Module):
    """Drops a branch for some images; the others are scaled up."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if self.p == 0:
            return x
        keep = torch.rand(len(x), 1, 1, dtype=x.dtype).add(1 - self.p).floor_()
        return x.div(1 - self.p) * keep


class _DeitBlock(nn.Module):
    def __init__(self, width: int, heads: int, drop: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = _Attention(width, heads, dropout=0.0, split=False)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gelu, self.drop = nn.GELU(), _StochasticDepth(drop)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.norm1(x)))
        return x + self.drop(self.narrow(self.gelu(self.wide(self.norm2(x)))))


class Deit(nn.Module):
    """DeiT, Touvron et al. (2021): ViT with patches of 16 on 224 x 224, stochastic depth 0.1."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, kernel_size=16, stride=16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 197, width))
        self.blocks = nn.Sequential(*(_DeitBlock(width, heads, 0.1 * i / 11) for i in range(12)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


def deit_tiny() -> nn.Module:
    return Deit(192, 3)


def deit_small() -> nn.Module:
    return Deit(384, 6)


def deit_base() -> nn.Module:
    return Deit(768, 12)


class _BertLayer(nn.Module):
    """Post-norm: each part adds to x and normalizes the sum."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = _Attention(width, heads, dropout=0.1, split=True)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gelu, self.dropout = nn.GELU(), nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(self.dropout(self.attention(x, mask)) + x)
        return self.norm2(self.dropout(self.narrow(self.gelu(self.wide(x)))) + x)


class Bert(nn.Module):
    """BERT, Devlin et al. (2019), with a head that gives `outputs` numbers a token or a text."""

    def __init__(self, width: int, layers: int, heads: int, outputs: int, *, per_token: bool):
        super().__init__()
        self.per_token = per_token
        self.words = nn.Embedding(30522, width)
        self.positions, self.segments = nn.Embedding(512, width), nn.Embedding(2, width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(0.1)
        self.layers = nn.ModuleList(_BertLayer(width, heads) for _ in range(layers))
        self.pooler, self.head = nn.Linear(width, width), nn.Linear(width, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens.long()  # a recipe of FP16 weights casts whatever goes into the model
        places = torch.arange(tokens.shape[1]).expand_as(tokens)
        x = self.words(tokens) + self.positions(places) + self.segments(torch.zeros_like(tokens))
        x = self.dropout(self.norm(x))
        mask = (1.0 - torch.ones(len(x), 1, 1, tokens.shape[1])) * -10000.0
        for layer in self.layers:
            x = layer(x, mask)
        if self.per_token:
            return self.head(x).transpose(1, 2).flatten(0, 1)  # start and end: 2b x t
        return self.head(self.dropout(torch.tanh(self.pooler(x[:, 0]))))


def bert_large_classifier() -> nn.Module:
    return Bert(1024, 24, 16, 2, per_token=False)


def bert_base_squad() -> nn.Module:
    return Bert(768, 12, 12, 2, per_token=True)


def bert_large_squad() -> nn.Module:
    return Bert(1024, 24, 16, 2, per_token=True)


def amp_recipe_mlp() -> nn.Module:
    """The network of PyTorch's AMP recipe: three linear layers of 4096 with ReLU between."""
    layers = [nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(4096, 4096))


def fcn_resnet50() -> nn.Module:
    """torchvision's FCN with its auxiliary classifier, for the 21 classes of VOC."""
    from torchvision.models.segmentation import fcn_resnet50

    return fcn_resnet50(weights=None, weights_backbone=None, num_classes=21, aux_loss=True)
