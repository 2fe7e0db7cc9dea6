"""Data, models and small helpers of the loops: all tiny, all seeded."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FP16, BF16 = torch.float16, torch.bfloat16


def amp(dtype=FP16):
    return torch.autocast("cpu", dtype=dtype)


def batches(n=256, batch=32, images=False):
    """Three classes that a small model can tell apart."""
    generator = torch.Generator().manual_seed(0)
    shape = (n, 1, 12, 12) if images else (n, 32)
    x = torch.randn(shape, generator=generator)
    flat = x.flatten(1)
    y = (flat[:, :4].sum(1) > 0).long() + (flat[:, 4:8].sum(1) > 0).long()
    order = torch.Generator().manual_seed(0)
    return DataLoader(TensorDataset(x, y), batch, shuffle=True, generator=order, drop_last=True)


def mlp(outputs=3, inputs=32):
    return nn.Sequential(
        nn.Linear(inputs, 48),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(48, 48),
        nn.GELU(),
        nn.Linear(48, outputs),
    )


def training(model=None, lr=1e-3, **scaler_options):
    """A model, its optimizer and a scaler."""
    torch.manual_seed(0)
    model = model if model is not None else mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    return model, optimizer, torch.amp.GradScaler("cpu", **scaler_options)


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(2),
        )
        self.head = nn.Linear(64, 3)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


class Attention(nn.Module):
    """Masked both ways people do it: minus infinity and the dtype's own minimum."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, future, padding):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q / math.sqrt(d // self.heads)) @ k.transpose(-2, -1)
        scores = scores.masked_fill(future, float("-inf"))
        lowest = torch.finfo(scores.dtype).min
        scores = scores.masked_fill(padding[:, None, None, :], lowest)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x, future, padding):
        x = x + self.attention(self.norm1(x), future, padding)
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    """Two blocks, weights of the embedding tied to the head."""

    def __init__(self, words=40, width=32, length=16):
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=0)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList([Block(width), Block(width)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        length = tokens.shape[1]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        x = self.embedding(tokens) + self.positions[:length]
        for block in self.blocks:
            x = block(x, future, tokens == 0)
        return self.head(self.norm(x))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.lstm = nn.LSTM(16, 24, batch_first=True, bidirectional=True)
        self.out = nn.Linear(48, 5)

    def forward(self, tokens):
        hidden, _ = self.lstm(self.embedding(tokens))
        return self.out(hidden)
