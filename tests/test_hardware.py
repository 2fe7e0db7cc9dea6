"""The report: which formats are native, on this machine and on machines that aren't here."""

import json
import os
import subprocess
import sys
from html import unescape

import pytest
import torch

from mptutor import devices, hardware, native
from mptutor.hardware import HardwareReport, pick_device, report
from mptutor.native import CpuChip, CudaChip, cpu_formats, cuda_formats, mps_formats


def statuses(formats):
    assert all(f.status in native.STATUSES and f.sentence.endswith(".") for f in formats)
    return {f.name: f.status for f in formats}


# --- devices


def test_picks_the_best_device_that_is_available(monkeypatch):
    for available, expected in [
        ({"cuda", "mps", "cpu"}, "cuda"),
        ({"mps", "cpu"}, "mps"),
        ({"cpu"}, "cpu"),
    ]:
        monkeypatch.setattr(devices, "_is_available", available.__contains__)
        assert pick_device() == torch.device(expected)


def test_insisting_on_a_device():
    assert pick_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="prefer: got 'tpu', allowed are"):
        pick_device("tpu")


def test_insisting_on_a_device_that_is_not_here(monkeypatch):
    monkeypatch.setattr(devices, "_is_available", {"cpu"}.__contains__)
    with pytest.raises(RuntimeError, match=r"prefer: got 'cuda', but torch .* finds none here"):
        pick_device("cuda")


# --- CUDA, from NVIDIA's tables


@pytest.mark.parametrize(
    ("name", "capability", "cores", "expected"),
    [
        ("GeForce GTX 970", (5, 2), None, "emulated absent absent emulated"),
        ("GeForce GTX 1080", (6, 1), None, "native emulated absent emulated"),
        ("Tesla V100-SXM2-16GB", (7, 0), "1st", "native emulated absent emulated"),
        ("Tesla T4", (7, 5), "2nd", "native emulated absent emulated"),
        ("GeForce RTX 2080", (7, 5), "2nd", "native emulated absent emulated"),
        ("NVIDIA GeForce GTX 1660 Ti", (7, 5), None, "native emulated absent emulated"),
        ("NVIDIA T1000", (7, 5), None, "native emulated absent emulated"),
        ("NVIDIA GeForce MX450", (7, 5), None, "native emulated absent emulated"),
        ("NVIDIA A100-SXM4-80GB", (8, 0), "3rd", "native native native emulated"),
        ("NVIDIA GeForce RTX 3090", (8, 6), "3rd", "native native native emulated"),
        ("NVIDIA L4", (8, 9), "4th", "native native native native"),
        ("NVIDIA H100 80GB HBM3", (9, 0), "4th", "native native native native"),
        ("NVIDIA B200", (10, 0), "5th", "native native native native"),
        ("NVIDIA GeForce RTX 5090", (12, 0), "5th", "native native native native"),
    ],
)
def test_cuda_generations(name, capability, cores, expected):
    bf16 = expected.split()[1]
    chip = CudaChip(name, capability, bf16_native=bf16 == "native", bf16_runs=bf16 != "absent")
    assert (chip.tensor_cores or "")[:3] == (cores or "")
    found = statuses(cuda_formats(chip))
    assert [found[f] for f in ("FP16", "BF16", "TF32", "FP8")] == expected.split()


def test_tf32_says_whether_it_is_on():
    off, on = (
        cuda_formats(CudaChip("A100", (8, 0), True, True, matmul_uses_tf32=used))[2].sentence
        for used in (False, True)
    )
    assert "set_float32_matmul_precision('high')" in off
    assert "now" in on


def test_rocm_is_not_judged_by_nvidias_capabilities():
    chip = CudaChip("AMD Instinct MI300X", (9, 4), True, True, is_rocm=True)
    assert chip.tensor_cores is None
    assert statuses(cuda_formats(chip)) == {
        "FP16": "native",
        "BF16": "native",
        "TF32": "absent",
        "FP8": "unknown",
    }


# --- CPU and MPS


@pytest.mark.parametrize(
    ("instructions", "onednn_bf16", "onednn_fp16", "fp16", "bf16"),
    [
        (["avx2"], False, False, "emulated", "emulated"),
        (["avx512_f"], True, False, "emulated", "emulated"),
        (["avx512_bf16"], True, False, "emulated", "native"),
        (["amx_bf16", "amx_tile", "avx512_fp16"], True, True, "native", "native"),
        (["avx512_bf16"], False, False, "emulated", "unknown"),
        (["neon", "fp16_arith", "bf16"], False, False, "unknown", "unknown"),
        (["neon", "fp16_arith", "bf16"], True, True, "native", "native"),
    ],
    ids=["avx2", "avx512", "zen4", "sapphire_rapids", "no_onednn", "arm_mac", "arm_server"],
)
def test_cpus(instructions, onednn_bf16, onednn_fp16, fp16, bf16):
    found = statuses(cpu_formats(CpuChip(frozenset(instructions), onednn_bf16, onednn_fp16)))
    assert (found["FP16"], found["BF16"]) == (fp16, bf16)
    assert found["TF32"] == "absent"
    assert found["FP8"] == "emulated"


def test_far_slower_and_slower_are_told_apart():
    """AVX-512 without BF16 instructions is emulated by oneDNN; AVX2 by torch's own loops."""
    with_onednn = cpu_formats(CpuChip(frozenset(), True, False))[1]
    without = cpu_formats(CpuChip(frozenset(), False, False))[1]
    assert "far slower" in without.sentence
    assert "far slower" not in with_onednn.sentence


def test_onednn_capped_to_avx2_makes_bf16_not_native():
    """The real probes in a real process, on a CPU whose 16-bit kernels are switched off."""
    code = "from mptutor import hardware; print(hardware.report('cpu').support('BF16').status)"
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    capped = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert capped.stdout.strip() in ("emulated", "unknown")


def test_older_torch_without_get_capabilities(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert native.look_at_cpu().instructions == {"avx512_bf16"}
    assert report("cpu").device_name


@pytest.mark.parametrize(
    ("bf16", "fp8", "expected"),
    [(True, True, ("unknown", "emulated")), (False, False, ("absent", "absent"))],
)
def test_mps(bf16, fp8, expected):
    found = statuses(mps_formats(bf16, fp8))
    assert found["FP16"] == "native"
    assert (found["BF16"], found["FP8"]) == expected


def test_mps_report_with_what_torch_would_say(monkeypatch):
    monkeypatch.setattr(native, "look_at_mps", lambda: (True, False))
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 12 << 30)
    found = report("mps")
    assert found.device == "mps"
    assert "12 GiB" in str(found)


# --- the report


def test_report_of_this_machine():
    found = report()
    assert found.torch == torch.__version__
    assert found.device == pick_device().type
    assert [f.name for f in found.formats] == ["FP16", "BF16", "TF32", "FP8"]


def test_report_survives_json():
    found = report("cpu")
    assert HardwareReport.from_json(found.to_json()) == found
    assert json.loads(found.to_json())["device"] == "cpu"


def test_report_shows_itself():
    found = report("cpu")
    for text in (str(found), unescape(found._repr_html_())):
        assert found.torch in text
        assert all(f.sentence in text for f in found.formats)


def test_asking_for_another_format_names_the_known_ones():
    with pytest.raises(ValueError, match=r"name: got 'FP4', allowed are \['FP16', 'BF16'"):
        report("cpu").support("FP4")


def test_instruments_are_reached_from_hardware():
    assert hardware.Timer("cpu").device == torch.device("cpu")
    assert hardware.MemoryMeter(device="cpu").device == torch.device("cpu")


@pytest.mark.gpu
def test_report_of_a_gpu():
    found = report("cuda")
    major, minor = torch.cuda.get_device_capability()
    if torch.version.hip is None:
        assert found.compute_capability == f"{major}.{minor}"
    assert found.memory_bytes == torch.cuda.get_device_properties(0).total_memory
    native_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    assert (found.support("BF16").status == "native") == native_bf16
    assert torch.cuda.get_device_name() in str(found)
