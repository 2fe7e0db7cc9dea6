"""The oracle is the header torch ships, which has CUDA's lists as macros."""

import re
from pathlib import Path

import pytest
import torch

from mptutor.dispatcher import registered
from mptutor.policy import CastClass, cast_classes

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
MACROS = {
    "AT_FORALL_LOWER_PRECISION_FP": CastClass.LOWER,
    "AT_FORALL_FP32": CastClass.FP32,
    "AT_FORALL_FP32_SET_OPT_DTYPE": CastClass.FP32_DTYPE,
    "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE": CastClass.FP32_APPEND,
    "AT_FORALL_PROMOTE": CastClass.PROMOTE,
}


def lists_in_header():
    """Read ``#define AT_FORALL_X(_) _(op) _(op, overload) ...``."""
    text = HEADER.read_text().replace("\\\n", " ")
    for macro, cast_class in MACROS.items():
        (body,) = re.findall(rf"#define {macro}\(_\)(.*)", text)
        if cast_class is CastClass.FP32_APPEND:
            names = re.findall(r'"([\w.]+)"', body)
        else:
            names = [a + (b and f".{b}") for a, b in re.findall(r"_\((\w+)(?:, *(\w+))?\)", body)]
        yield cast_class, names


@pytest.mark.skipif(not HEADER.exists(), reason="this torch comes without its headers")
def test_cudas_classes_are_the_headers_lists():
    classes = cast_classes("cuda")
    seen = 0
    for cast_class, names in lists_in_header():
        for name in names:
            assert classes[name] is cast_class, name
            seen += 1
    assert seen > 100


def test_every_registered_op_has_a_class():
    for device in ("cuda", "cpu"):
        classes = cast_classes(device)
        assert sorted(classes) == registered(f"Autocast{device.upper()}")


def test_only_two_of_cudas_kernels_do_not_tell():
    silent = {
        n: c for n, c in cast_classes("cuda").items() if c in (CastClass.REFUSED, CastClass.OWN)
    }
    assert silent == {"binary_cross_entropy": CastClass.REFUSED, "_cudnn_rnn": CastClass.OWN}


def test_the_cpu_has_other_lists():
    cuda, cpu = cast_classes("cuda"), cast_classes("cpu")
    assert cuda["softmax.int"] is CastClass.FP32_DTYPE
    assert "softmax.int" not in cpu
    assert cpu["avg_pool3d"] is CastClass.FP32
    assert "avg_pool3d" not in cuda
    assert cuda["mm"] is cpu["mm"] is CastClass.LOWER


def test_asking_with_either_dtype_gives_the_same():
    for device in ("cuda", "cpu"):
        assert cast_classes(device, torch.bfloat16) == cast_classes(device, torch.float16)


def test_asking_leaves_no_trace():
    tracer = registered("Tracer")
    cast_classes("cuda")
    assert registered("Tracer") == tracer
    assert not torch.is_autocast_enabled("cuda")
    assert torch.jit.trace(lambda x: x.exp(), torch.ones(2))(torch.zeros(2)).tolist() == [1, 1]
    assert not torch.cuda.is_initialized()


def test_wrong_arguments_say_what_is_allowed():
    with pytest.raises(ValueError, match="device: must be 'cuda' or 'cpu', got 'mps'"):
        cast_classes("mps")
    with pytest.raises(ValueError, match=r"dtype: .*got torch.float32"):
        cast_classes("cuda", torch.float32)
