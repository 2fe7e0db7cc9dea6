"""What to train in a forecast: a model, a batch of nothing, and a loss.

Everything is built inside a fake-tensor mode, where a tensor has a shape, a dtype and no memory, so
a model of any size is built at once.  A workload is named in one of three ways:

* a model of the course, ``small_cnn``, ``mlp`` or ``char_transformer`` (`mptutor.models`);
* a classifier of torchvision, ``resnet50``, ``vit_b_16``;
* ``module:function``, a function of one's own that builds a model, with the shape of one sample.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from mptutor import models

BuildModel = Callable[[], nn.Module]
Loss = Callable[[object, int], Tensor]

_IMAGE = (3, 224, 224)


def classification_loss(output: object, batch: int) -> Tensor:
    """Sum cross entropies over all outputs, b x classes or b x t x classes each.

    A model with auxiliary classifiers, as `inception_v3`, returns several.
    """
    losses = []
    for logits in tree_leaves(output):
        if not isinstance(logits, Tensor) or logits.dim() not in (2, 3):
            raise ValueError(
                "loss: the model's outputs are not b x classes or b x t x classes, "
                "so give the loss that it is trained with"
            )
        flat = logits.flatten(0, -2)
        targets = torch.zeros(len(flat), dtype=torch.long)
        losses.append(F.cross_entropy(flat, targets))
    return torch.stack(losses).sum() if len(losses) > 1 else losses[0]


@dataclass(frozen=True)
class Workload:
    """What is trained, but for batch size, recipe and optimizer.

    Attributes
    ----------
    name
        As given.
    build
        Builds the model.
    sample_shape
        The shape of one input without the batch, ``(3, 224, 224)``.
    integers
        Inputs are integers, such as tokens, rather than FP32.
    loss
        Of the model's output and the batch size, a scalar.
    """

    name: str
    build: BuildModel
    sample_shape: tuple[int, ...]
    integers: bool = False
    loss: Loss = classification_loss

    def batch(self, size: int) -> Tensor:
        """Make a batch: size x `sample_shape`."""
        dtype = torch.long if self.integers else torch.float32
        return torch.zeros(size, *self.sample_shape, dtype=dtype)


#: The models of the course.
COURSE = {
    "small_cnn": Workload("small_cnn", models.small_cnn, (3, 32, 32)),
    "mlp": Workload("mlp", models.mlp, (784,)),
    "char_transformer": Workload("char_transformer", models.char_transformer, (64,), integers=True),
}


def find_workload(
    model: str | BuildModel,
    *,
    sample_shape: tuple[int, ...] | None = None,
    integers: bool = False,
    loss: Loss | None = None,
) -> Workload:
    """Look up what a name stands for.

    Parameters
    ----------
    model
        One of the names above, or a function that builds a model.
    sample_shape
        The shape of one input; needed for models of one's own.
    integers
        Inputs are token numbers.
    loss
        Of the output and the batch size; the default is `classification_loss`.

    Raises
    ------
    ValueError
        If the name is not known, or a model of one's own comes without a shape.
    """
    loss = loss or classification_loss
    if isinstance(model, str) and model in COURSE and sample_shape is None:
        return COURSE[model]
    if isinstance(model, nn.Module):
        raise TypeError(
            "model: got a model, needed is the function that builds it, "
            "so that it can be built without memory"
        )
    if not isinstance(model, str):
        name, build = getattr(model, "__name__", "model"), model
    elif ":" in model:
        name, build = model, _load_function(model)
    else:
        name, build = model, partial(_torchvision_classifier, model)
        _check_torchvision_has(model)
        sample_shape = sample_shape or ((3, 299, 299) if model == "inception_v3" else _IMAGE)
    if sample_shape is None:
        raise ValueError(f"sample_shape: {name} is a model of your own; say the shape of one input")
    return Workload(name, build, tuple(sample_shape), integers, loss)


def _check_torchvision_has(model: str) -> None:
    try:
        from torchvision.models import list_models
    except ImportError as error:
        raise ValueError(
            f"model: {model!r} is none of {', '.join(COURSE)}, and torchvision, which may have it, "
            f"can't be imported: {error}"
        ) from error
    if model not in list_models():
        raise ValueError(
            f"model: got {model!r}, allowed are {', '.join(COURSE)}, a classifier of torchvision "
            f"such as resnet50, and module:function"
        )


def _torchvision_classifier(name: str) -> nn.Module:
    from torchvision.models import get_model, get_model_builder

    # Nothing is downloaded for a forecast, and some models have two kinds of weights.
    kinds = {"weights", "weights_backbone"} & set(signature(get_model_builder(name)).parameters)
    return get_model(name, **dict.fromkeys(kinds))


def _load_function(path: str) -> BuildModel:
    module_name, _, function_name = path.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        function = getattr(import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"model: {path!r} can't be loaded: {error}") from error
    return function
