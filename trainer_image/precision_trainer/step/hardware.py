"""What this machine computes fast in, asked of the machine."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

import torch

_FP8_ON_ROCM = (
    "not here, because this GPU's FP8 formats are the FNUZ variants, or were not tried on ROCm; train in bf16"
)
_CPU_FLAGS = ("amx_tile", "amx_bf16", "amx_fp16", "avx512_fp16", "avx512_bf16", "avx512f", "avx2")


@dataclass(frozen=True, slots=True)
class Hardware:
    """The device that training would use here."""

    device: str
    """``cuda`` or ``cpu``."""
    name: str
    capability: str | None
    """CUDA compute capability; None on a CPU."""
    memory_bytes: int | None
    """Of the device; None where nobody said."""
    tensor_cores: bool
    tf32: bool
    bf16: bool
    """The hardware multiplies in BF16, not only emulates it."""
    fp16: bool
    fp8_missing: str | None
    """Why FP8 training does not run here; None if it can."""
    cpu_flags: tuple[str, ...] | None
    """Those of AMX, AVX-512 and AVX2 that there are; None where the system does not tell."""
    torch: str

    @property
    def preferred(self) -> tuple[str, ...]:
        """Reduced modes worth trying here, best first."""
        return tuple(mode for mode, there in (("bf16", self.bf16), ("fp16", self.fp16)) if there)


def detect() -> Hardware:
    """Look at this machine; starts nothing on a GPU."""
    flags, capability = _cpu_flags(), cuda_capability()
    if capability is not None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        return Hardware(
            "cuda",
            properties.name,
            f"{properties.major}.{properties.minor}",
            properties.total_memory,
            tensor_cores=capability >= (7, 0),
            tf32=capability >= (8, 0),
            bf16=capability >= (8, 0),
            fp16=capability >= (7, 0),
            fp8_missing=fp8_missing(capability) if torch.version.hip is None else _FP8_ON_ROCM,
            cpu_flags=flags,
            torch=torch.__version__,
        )
    found = set(flags or ())
    return Hardware(
        "cpu",
        _cpu_name(),
        None,
        None,
        tensor_cores=bool({"amx_bf16", "amx_fp16"} & found),
        tf32=False,
        bf16=bool({"amx_bf16", "avx512_bf16"} & found),
        fp16=bool({"amx_fp16", "avx512_fp16"} & found),
        fp8_missing=fp8_missing(None),
        cpu_flags=flags,
        torch=torch.__version__,
    )


def cuda_capability() -> tuple[int, int] | None:
    """Compute capability of the GPU in use; None: there is none."""
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return properties.major, properties.minor


def fp8_missing(capability: tuple[int, int] | None) -> str | None:
    """Why FP8 training does not run on a GPU of this ``capability`` (None: a CPU); None if it can."""
    if capability is None:
        return "not here, because FP8 matrix products need a CUDA GPU of capability 8.9 or newer, and this is a CPU"
    if capability < (8, 9):
        return (
            "not here, because FP8 matrix products need CUDA capability 8.9 or newer (RTX 40, H100), and this GPU has "
            f"{capability[0]}.{capability[1]}"
        )
    return None


def _proc_cpuinfo() -> dict[str, str]:
    """The first processor's entries; empty where the system has no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _cpu_flags() -> tuple[str, ...] | None:
    flags = _proc_cpuinfo().get("flags")
    return None if flags is None else tuple(flag for flag in _CPU_FLAGS if flag in flags.split())


def _cpu_name() -> str:
    return _proc_cpuinfo().get("model name") or platform.processor() or platform.machine()
