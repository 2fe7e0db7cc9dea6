"""The machine this runs on: which device, and what it can do in 16 and 8 bits.

`report` answers once, in plain values, what every lesson and `mptutor doctor` show: the device, and
for each format whether the hardware computes in it or torch imitates it (`mptutor.native` has the
rules).  The two instruments, `Timer` and `MemoryMeter`, are reached from here as well.

>>> report().support("FP16").status in ("native", "emulated", "unknown")
True
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from html import escape

import torch

from mptutor import native
from mptutor.devices import pick_device
from mptutor.memory import MemoryMeter, MemoryReading
from mptutor.native import FormatSupport
from mptutor.timing import Timer, Timing

__all__ = [
    "FormatSupport",
    "HardwareReport",
    "MemoryMeter",
    "MemoryReading",
    "Timer",
    "Timing",
    "pick_device",
    "report",
]


@dataclass(frozen=True)
class HardwareReport:
    """What `report` found.

    Attributes
    ----------
    python, torch, system
        Such as ``"3.12.1"``, ``"2.14.1+cu130"`` and ``"Linux x86_64"``.
    device, device_name
        ``"cuda"``, ``"mps"`` or ``"cpu"``, and what the maker calls it.
    threads
        CPU threads that torch uses.
    memory_bytes
        The GPU's memory; None on a CPU.
    compute_capability, tensor_cores
        On NVIDIA's GPUs, such as ``"7.5"`` and ``"2nd-generation Tensor Cores (Turing)"``.
    formats
        FP16, BF16, TF32 and FP8.
    """

    python: str
    torch: str
    system: str
    device: str
    device_name: str
    threads: int
    memory_bytes: int | None
    compute_capability: str | None
    tensor_cores: str | None
    formats: tuple[FormatSupport, ...]

    def support(self, name: str) -> FormatSupport:
        """Return the judgement on ``"FP16"``, ``"BF16"``, ``"TF32"`` or ``"FP8"``."""
        for support in self.formats:
            if support.name == name:
                return support
        raise ValueError(f"name: got {name!r}, allowed are {[f.name for f in self.formats]}")

    def facts(self) -> list[tuple[str, str]]:
        """Return what is not about formats, as lines of a table: what, and the answer."""
        return [
            ("Python", f"{self.python} on {self.system}"),
            ("torch", self.torch),
            ("device", self._device_line()),
        ]

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> HardwareReport:
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        formats = tuple(FormatSupport(**support) for support in fields.pop("formats"))
        return cls(**fields, formats=formats)

    def __str__(self) -> str:
        lines = [f"{what:8}{answer}" for what, answer in self.facts()]
        lines += [f"{f.name:8}{f.status:10}{f.sentence}" for f in self.formats]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [f"<th>{what}</th>{_cell(answer, columns=2)}" for what, answer in self.facts()]
        rows += [f"<th>{f.name}</th>{_cell(f.status)}{_cell(f.sentence)}" for f in self.formats]
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"

    def _device_line(self) -> str:
        if self.device == "cpu":
            threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
            return f"CPU: {self.device_name}, {threads}"
        memory = f", {self.memory_bytes / 2**30:.0f} GiB" if self.memory_bytes else ""
        cores = f", {self.tensor_cores}" if self.tensor_cores else ""
        return f"{self.device.upper()}: {self.device_name}{memory}{cores}"


def report(device: torch.device | str | None = None) -> HardwareReport:
    """Look at the machine; `device` is the one to judge, by default `pick_device()`."""
    device = pick_device() if device is None else torch.device(device)
    name, memory_bytes, capability, tensor_cores = _cpu_name(), None, None, None
    if device.type == "cuda":
        chip = native.look_at_cuda(device)
        name, tensor_cores = chip.name, chip.tensor_cores
        capability = None if chip.is_rocm else ".".join(map(str, chip.capability))
        memory_bytes = torch.cuda.get_device_properties(device).total_memory
        formats = native.cuda_formats(chip)
    elif device.type == "mps":
        memory_bytes = torch.mps.recommended_max_memory()
        formats = native.mps_formats(*native.look_at_mps())
    else:
        formats = native.cpu_formats(native.look_at_cpu())
    return HardwareReport(
        python=platform.python_version(),
        torch=torch.__version__,
        system=f"{platform.system()} {platform.machine()}",
        device=device.type,
        device_name=name,
        threads=torch.get_num_threads(),
        memory_bytes=memory_bytes,
        compute_capability=capability,
        tensor_cores=tensor_cores,
        formats=formats,
    )


def _cell(text: str, columns: int = 1) -> str:
    # JupyterLab aligns cells to the right, which suits numbers and not sentences.
    return f"<td style='text-align:left' colspan={columns}>{escape(text)}</td>"


def _cpu_name() -> str:
    """Return the CPU's name; on a Mac it names the chip, and with it the GPU."""
    if hasattr(torch.cpu, "get_capabilities"):
        name = torch.cpu.get_capabilities().get("cpu_name")
        if name:
            return str(name)
    return platform.processor() or platform.machine()
