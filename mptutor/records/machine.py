"""The GPU that a record is made on, as far as its numbers depend on it."""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass

import torch


class NoGpuError(RuntimeError):
    """There is no GPU to record."""


@dataclass(frozen=True)
class Machine:
    """Where a record was made.

    Attributes
    ----------
    gpu, memory_bytes, compute_capability
        Such as ``"NVIDIA A100-SXM4-80GB"``, and ``"8.0"``.
    driver, cuda, cudnn
        Versions; None if not to be had.
    torch, python, system
        Versions, and such as ``"Linux x86_64"``.
    """

    gpu: str
    memory_bytes: int
    compute_capability: str
    driver: str | None
    cuda: str | None
    cudnn: str | None
    torch: str
    python: str
    system: str


def look_at_gpu(device: torch.device | None = None) -> Machine:
    """Describe the CUDA device, the current one if none is given.

    Raises
    ------
    NoGpuError
        If torch finds none; the message says what is needed.
    """
    if not torch.cuda.is_available():
        raise NoGpuError(
            f"a record needs an NVIDIA GPU, and torch {torch.__version__} finds none here; "
            f"`mptutor doctor` says what this machine has, `mptutor forecast` forecasts without one"
        )
    properties = torch.cuda.get_device_properties(device)
    cudnn = torch.backends.cudnn.version()
    return Machine(
        gpu=properties.name,
        memory_bytes=properties.total_memory,
        compute_capability=f"{properties.major}.{properties.minor}",
        driver=_driver(),
        cuda=torch.version.cuda,
        cudnn=None if cudnn is None else str(cudnn),
        torch=torch.__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
    )


def _driver() -> str | None:
    """Ask NVIDIA's tool for the driver, as torch does not know it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    query = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    asked = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    lines = asked.stdout.split()
    return lines[0] if asked.returncode == 0 and lines else None
