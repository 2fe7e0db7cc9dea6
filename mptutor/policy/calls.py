"""Sample calls of torch's floating-point ops, to see what autocast does to each.

A call takes an `Operands` and asks it for tensors by shape: ``t(8, 8)`` is an operand whose dtype
is the one under test, ``t.fp32(8)`` a parameter that stays FP32 (the weight of a norm), and
``t.index(8)`` has integers.  Calls are grouped into families and named as in torch, and no shape
matters beyond being legal.  Values lie between 0.1 and 0.9, where every op here is defined.

Factorizations (``qr``, ``svd``, ``solve``) are not among them: fake tensors accept 16 bits there,
while real GPUs, like CPUs, have no such kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Operands:
    """Makes the tensors of a call on one device, with dtypes taken in turn."""

    def __init__(self, device: str, dtypes: Sequence[torch.dtype]) -> None:
        self.device = device
        self._dtypes = cycle(dtypes)

    def __call__(self, *shape: int) -> Tensor:
        """Make an operand of the dtype whose turn it is."""
        return self.fp32(*shape).to(next(self._dtypes))

    def fp32(self, *shape: int) -> Tensor:
        """Make an operand that is FP32 whatever is under test."""
        return torch.rand(*shape, device=self.device).mul(0.8).add(0.1)

    def index(self, *shape: int) -> Tensor:
        """Make integers in 0..3."""
        return (
            torch.arange(4, device=self.device).repeat(16)[: torch.Size(shape).numel()].view(shape)
        )

    def layer(self, module: type[nn.Module], *sizes: int) -> nn.Module:
        """Build a layer with FP32 parameters."""
        return module(*sizes, device=self.device)


Call = Callable[[Operands], object]


def _of_one(namespace: object, names: str) -> dict[str, Call]:
    """Make calls of functions that take one tensor."""
    return {name: partial(_call, getattr(namespace, name), 1) for name in names.split()}


def _of_two(namespace: object, names: str) -> dict[str, Call]:
    """Make calls of functions that take two tensors of one shape."""
    return {name: partial(_call, getattr(namespace, name), 2) for name in names.split()}


def _call(function: Callable[..., object], operands: int, t: Operands) -> object:
    return function(*[t(8, 8) for _ in range(operands)])


def _interpolate(mode: str, *shape: int) -> Call:
    return lambda t: F.interpolate(t(*shape), scale_factor=2, mode=mode)


PRODUCTS: dict[str, Call] = {
    **_of_two(torch, "mm matmul chain_matmul"),
    "bmm": lambda t: torch.bmm(t(2, 8, 8), t(2, 8, 8)),
    "addmm": lambda t: torch.addmm(t(8, 8), t(8, 8), t(8, 8)),
    "baddbmm": lambda t: torch.baddbmm(t(2, 8, 8), t(2, 8, 8), t(2, 8, 8)),
    "addbmm": lambda t: torch.addbmm(t(8, 8), t(2, 8, 8), t(2, 8, 8)),
    "mv": lambda t: torch.mv(t(8, 8), t(8)),
    "addmv": lambda t: torch.addmv(t(8), t(8, 8), t(8)),
    "addr": lambda t: torch.addr(t(8, 8), t(8), t(8)),
    "dot": lambda t: torch.dot(t(8), t(8)),
    "vdot": lambda t: torch.vdot(t(8), t(8)),
    "outer": lambda t: torch.outer(t(8), t(8)),
    "einsum": lambda t: torch.einsum("ij,jk->ik", t(8, 8), t(8, 8)),
    "tensordot": lambda t: torch.tensordot(t(8, 8), t(8, 8), 1),
    "linalg.multi_dot": lambda t: torch.linalg.multi_dot([t(8, 8), t(8, 8), t(8, 8)]),
    "linalg.vecdot": lambda t: torch.linalg.vecdot(t(8, 8), t(8, 8)),
    "linear": lambda t: F.linear(t(4, 8), t(8, 8), t(8)),
    "bilinear": lambda t: F.bilinear(t(4, 8), t(4, 8), t(8, 8, 8)),
    "scaled_dot_product_attention": lambda t: F.scaled_dot_product_attention(
        t(2, 2, 8, 8), t(2, 2, 8, 8), t(2, 2, 8, 8)
    ),
}

CONVOLUTIONS: dict[str, Call] = {
    "conv1d": lambda t: F.conv1d(t(2, 4, 8), t(4, 4, 3)),
    "conv2d": lambda t: F.conv2d(t(2, 4, 8, 8), t(4, 4, 3, 3)),
    "conv3d": lambda t: F.conv3d(t(2, 4, 8, 8, 8), t(4, 4, 3, 3, 3)),
    "conv2d, padding='same'": lambda t: F.conv2d(t(2, 4, 8, 8), t(4, 4, 3, 3), padding="same"),
    "conv_transpose1d": lambda t: F.conv_transpose1d(t(2, 4, 8), t(4, 4, 3)),
    "conv_transpose2d": lambda t: F.conv_transpose2d(t(2, 4, 8, 8), t(4, 4, 3, 3)),
    "conv_transpose3d": lambda t: F.conv_transpose3d(t(2, 4, 8, 8, 8), t(4, 4, 3, 3, 3)),
    "conv_tbc": lambda t: torch.conv_tbc(t(8, 2, 4), t(3, 4, 4), t(4)),
}

LAYERS: dict[str, Call] = {
    "nn.RNNCell": lambda t: t.layer(nn.RNNCell, 8, 8)(t(2, 8), t(2, 8)),
    "nn.GRUCell": lambda t: t.layer(nn.GRUCell, 8, 8)(t(2, 8), t(2, 8)),
    "nn.LSTMCell": lambda t: t.layer(nn.LSTMCell, 8, 8)(t(2, 8), (t(2, 8), t(2, 8))),
    "nn.RNN": lambda t: t.layer(nn.RNN, 8, 8)(t(3, 2, 8)),
    "nn.GRU": lambda t: t.layer(nn.GRU, 8, 8)(t(3, 2, 8)),
    "nn.LSTM": lambda t: t.layer(nn.LSTM, 8, 8)(t(3, 2, 8)),
    "nn.MultiheadAttention": lambda t: _attend(t, need_weights=False)[0],
    "nn.MultiheadAttention, weights": lambda t: _attend(t, need_weights=True)[1],
    "embedding": lambda t: F.embedding(t.index(2, 3), t(8, 8)),
}


def _attend(t: Operands, need_weights: bool) -> tuple[Tensor, Tensor | None]:
    x = t(2, 4, 8)
    return t.layer(nn.MultiheadAttention, 8, 2)(x, x, x, need_weights=need_weights)


POINTWISE: dict[str, Call] = {
    **_of_one(torch, "exp exp2 expm1 log log2 log10 log1p reciprocal sqrt rsqrt square"),
    **_of_one(torch, "sin cos tan asin acos atan sinh cosh tanh erf erfinv sigmoid"),
    **_of_one(torch, "abs neg sign floor round clone"),
    "pow, tensor and number": lambda t: torch.pow(t(8, 8), 2.5),
    "pow, number and tensor": lambda t: torch.pow(2.0, t(8, 8)),
    "pow, two tensors": lambda t: torch.pow(t(8, 8), t(8, 8)),
    "x ** 2": lambda t: t(8, 8) ** 2,
    "2 * x": lambda t: 2 * t(8, 8),
    "clamp": lambda t: torch.clamp(t(8, 8), 0, 1),
    **_of_two(torch, "add sub mul div maximum minimum fmod hypot atan2 copysign"),
    "addcmul": lambda t: torch.addcmul(t(8, 8), t(8, 8), t(8, 8)),
    "addcdiv": lambda t: torch.addcdiv(t(8, 8), t(8, 8), t(8, 8)),
    "lerp": lambda t: torch.lerp(t(8, 8), t(8, 8), 0.5),
    "where": lambda t: torch.where(t.index(8, 8) > 1, t(8, 8), t(8, 8)),
    "masked_fill": lambda t: t(8, 8).masked_fill(t.index(8, 8) > 1, 0.0),
    "cross": lambda t: torch.cross(t(8, 3), t(8, 3), dim=1),
    "linalg.cross": lambda t: torch.linalg.cross(t(8, 3), t(8, 3)),
}

ACTIVATIONS: dict[str, Call] = {
    **_of_one(F, "relu relu6 leaky_relu elu selu celu gelu silu mish softplus softsign"),
    **_of_one(F, "hardtanh hardswish hardsigmoid logsigmoid tanhshrink glu dropout"),
    "prelu": lambda t: F.prelu(t(8, 8), t(1)),
    "softmax": lambda t: F.softmax(t(8, 8), dim=-1),
    "log_softmax": lambda t: F.log_softmax(t(8, 8), dim=-1),
    "softmin": lambda t: F.softmin(t(8, 8), dim=-1),
    "gumbel_softmax": lambda t: F.gumbel_softmax(t(8, 8), dim=-1),
}

REDUCTIONS: dict[str, Call] = {
    **_of_one(torch, "sum mean prod var std norm amax median trace nansum"),
    "sum, over a dimension": lambda t: t(8, 8).sum(0),
    "mean, over a dimension": lambda t: t(8, 8).mean(0),
    "prod, over a dimension": lambda t: t(8, 8).prod(0),
    "max, over a dimension": lambda t: t(8, 8).max(0),
    "cumsum": lambda t: t(8, 8).cumsum(0),
    "cumprod": lambda t: t(8, 8).cumprod(0),
    "logsumexp": lambda t: t(8, 8).logsumexp(0),
    "logcumsumexp": lambda t: t(8, 8).logcumsumexp(0),
    "quantile": lambda t: torch.quantile(t(64), 0.5),
    "norm, over a dimension": lambda t: torch.norm(t(8, 8), dim=1),
    "norm, nuclear": lambda t: torch.norm(t(8, 8), "nuc"),
    "Tensor.norm": lambda t: t(8, 8).norm(1),
    "linalg.vector_norm": lambda t: torch.linalg.vector_norm(t(8, 8)),
    "linalg.matrix_norm": lambda t: torch.linalg.matrix_norm(t(8, 8)),
    "linalg.matrix_norm, ord=1": lambda t: torch.linalg.matrix_norm(t(8, 8), ord=1),
    "frobenius_norm": lambda t: torch.functional.norm(t(8, 8), "fro", dim=(0, 1)),
    "renorm": lambda t: torch.renorm(t(8, 8), 2, 0, 1.0),
    "normalize": lambda t: F.normalize(t(8, 8)),
    **_of_two(torch, "dist cdist"),
    **_of_two(F, "cosine_similarity pairwise_distance"),
    "pdist": lambda t: F.pdist(t(8, 8)),
}

NORMALIZATION: dict[str, Call] = {
    "batch_norm": lambda t: F.batch_norm(
        t(4, 8, 4), t.fp32(8), t.fp32(8), t.fp32(8), t.fp32(8), training=True
    ),
    "instance_norm": lambda t: F.instance_norm(t(2, 8, 4)),
    "layer_norm": lambda t: F.layer_norm(t(8, 8), (8,), t.fp32(8), t.fp32(8)),
    "native_layer_norm": lambda t: torch.native_layer_norm(
        t(8, 8), (8,), t.fp32(8), t.fp32(8), 1e-5
    ),
    "rms_norm": lambda t: F.rms_norm(t(8, 8), (8,), t.fp32(8)),
    "group_norm": lambda t: F.group_norm(t(2, 8, 4), 2, t.fp32(8), t.fp32(8)),
    "local_response_norm": lambda t: F.local_response_norm(t(2, 4, 4, 4), 2),
}

IMAGES: dict[str, Call] = {
    "max_pool1d": lambda t: F.max_pool1d(t(2, 4, 8), 2),
    "max_pool2d": lambda t: F.max_pool2d(t(2, 4, 8, 8), 2),
    "max_pool3d": lambda t: F.max_pool3d(t(2, 4, 8, 8, 8), 2),
    "avg_pool1d": lambda t: F.avg_pool1d(t(2, 4, 8), 2),
    "avg_pool2d": lambda t: F.avg_pool2d(t(2, 4, 8, 8), 2),
    "avg_pool3d": lambda t: F.avg_pool3d(t(2, 4, 8, 8, 8), 2),
    "adaptive_avg_pool2d": lambda t: F.adaptive_avg_pool2d(t(2, 4, 8, 8), 2),
    "adaptive_avg_pool3d": lambda t: F.adaptive_avg_pool3d(t(2, 4, 8, 8, 8), 2),
    "adaptive_max_pool2d": lambda t: F.adaptive_max_pool2d(t(2, 4, 8, 8), 2),
    "interpolate, nearest 1d": _interpolate("nearest", 2, 4, 8),
    "interpolate, nearest 2d": _interpolate("nearest", 2, 4, 8, 8),
    "interpolate, nearest 3d": _interpolate("nearest", 2, 4, 4, 4, 4),
    "interpolate, nearest-exact 1d": _interpolate("nearest-exact", 2, 4, 8),
    "interpolate, nearest-exact 2d": _interpolate("nearest-exact", 2, 4, 8, 8),
    "interpolate, nearest-exact 3d": _interpolate("nearest-exact", 2, 4, 4, 4, 4),
    "interpolate, linear": _interpolate("linear", 2, 4, 8),
    "interpolate, bilinear": _interpolate("bilinear", 2, 4, 8, 8),
    "interpolate, bicubic": _interpolate("bicubic", 2, 4, 8, 8),
    "interpolate, trilinear": _interpolate("trilinear", 2, 4, 4, 4, 4),
    "interpolate, bilinear antialias": lambda t: F.interpolate(
        t(2, 4, 8, 8), size=4, mode="bilinear", antialias=True
    ),
    "interpolate, bicubic antialias": lambda t: F.interpolate(
        t(2, 4, 8, 8), size=4, mode="bicubic", antialias=True
    ),
    "grid_sample": lambda t: F.grid_sample(t(2, 4, 8, 8), t(2, 8, 8, 2), align_corners=False),
    "pad, constant": lambda t: F.pad(t(2, 4, 8), (1, 1)),
    "pad, reflect": lambda t: F.pad(t(2, 4, 8), (1, 1), mode="reflect"),
    "pad, replicate": lambda t: F.pad(t(2, 4, 8), (1, 1), mode="replicate"),
    "pixel_shuffle": lambda t: F.pixel_shuffle(t(2, 4, 8, 8), 2),
    "unfold": lambda t: F.unfold(t(2, 4, 8, 8), 3),
}

MOVEMENT: dict[str, Call] = {
    "cat": lambda t: torch.cat([t(8, 8), t(8, 8)]),
    "stack": lambda t: torch.stack([t(8, 8), t(8, 8)]),
    "index_put": lambda t: torch.index_put(t(8, 8), (t.index(2),), t(2, 8)),
    "index_add": lambda t: torch.index_add(t(8, 8), 0, t.index(2), t(2, 8)),
    "index_copy": lambda t: torch.index_copy(t(8, 8), 0, t.index(2), t(2, 8)),
    "index_select": lambda t: torch.index_select(t(8, 8), 0, t.index(2)),
    "gather": lambda t: torch.gather(t(8, 8), 0, t.index(8, 8)),
    "scatter_add": lambda t: torch.scatter_add(t(8, 8), 0, t.index(8, 8), t(8, 8)),
    "sort": lambda t: torch.sort(t(8, 8)),
    "topk": lambda t: torch.topk(t(8, 8), 2),
}

LOSSES: dict[str, Call] = {
    "cross_entropy": lambda t: F.cross_entropy(t(8, 8), t.index(8)),
    "cross_entropy, soft targets": lambda t: F.cross_entropy(t(8, 8), t(8, 8)),
    "nll_loss": lambda t: F.nll_loss(t(8, 8), t.index(8)),
    "nll_loss, images": lambda t: F.nll_loss(t(2, 8, 4, 4), t.index(2, 4, 4)),
    **_of_two(F, "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy"),
    **_of_two(F, "binary_cross_entropy_with_logits poisson_nll_loss"),
    "kl_div": lambda t: F.kl_div(t(8, 8), t(8, 8), reduction="batchmean"),
    "gaussian_nll_loss": lambda t: F.gaussian_nll_loss(t(8, 8), t(8, 8), t.fp32(8, 8)),
    "ctc_loss": lambda t: F.ctc_loss(t(8, 2, 5), t.index(2, 3) + 1, (8, 8), (3, 3)),
    "cosine_embedding_loss": lambda t: F.cosine_embedding_loss(t(8, 8), t(8, 8), t.fp32(8)),
    "margin_ranking_loss": lambda t: F.margin_ranking_loss(t(8), t(8), t.fp32(8)),
    "hinge_embedding_loss": lambda t: F.hinge_embedding_loss(t(8), t.fp32(8)),
    "soft_margin_loss": lambda t: F.soft_margin_loss(t(8, 8), t.fp32(8, 8)),
    "triplet_margin_loss": lambda t: F.triplet_margin_loss(t(8, 8), t(8, 8), t(8, 8)),
    "multi_margin_loss": lambda t: F.multi_margin_loss(t(8, 8), t.index(8)),
    "multilabel_margin_loss": lambda t: F.multilabel_margin_loss(t(8, 8), t.index(8, 8)),
    "multilabel_soft_margin_loss": lambda t: F.multilabel_soft_margin_loss(t(8, 8), t.fp32(8, 8)),
}

TRANSFORMS: dict[str, Call] = {
    "fft.rfft": lambda t: torch.fft.rfft(t(8, 8)),
    "stft": lambda t: torch.stft(t(64), 16, window=t.fp32(16), return_complex=True),
}

#: The families in the order of the table, from what autocast is for to what it leaves alone.
FAMILIES: dict[str, dict[str, Call]] = {
    "products": PRODUCTS,
    "convolutions": CONVOLUTIONS,
    "layers": LAYERS,
    "losses": LOSSES,
    "normalization": NORMALIZATION,
    "reductions": REDUCTIONS,
    "activations": ACTIVATIONS,
    "pointwise": POINTWISE,
    "images": IMAGES,
    "movement": MOVEMENT,
    "transforms": TRANSFORMS,
}
