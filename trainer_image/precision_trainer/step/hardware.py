"""What this machine computes fast in, asked of the machine; and what is known of others, from their makers' data sheets."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path

import torch

_FP8_ON_ROCM = (
    "not here, because this GPU's FP8 formats are the FNUZ variants, or were not tried on ROCm; train in bf16"
)
_CPU_FLAGS = ("amx_tile", "amx_bf16", "amx_fp16", "avx512_fp16", "avx512_bf16", "avx512f", "avx2")


@dataclass(frozen=True, slots=True)
class Known:
    """One kind of hardware."""

    name: str
    recommended: str
    why: str
    peak_tflops: dict[str, float]
    """Dense peak by format, FP32 accumulation, from the data sheet; never the figure for sparse matrices."""


KNOWN = (
    Known("V100", "fp16", "first tensor cores: FP16 only, so with loss scaling; no BF16, no TF32",
          {"fp32": 15.7, "fp16": 125}),
    Known("T4", "fp16", "FP16 only; little power and bandwidth: measure before you believe the peak",
          {"fp32": 8.1, "fp16": 65}),
    Known("A100", "bf16", "BF16 as fast as FP16 and no loss scaling", {"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312}),
    Known("RTX 30", "bf16", "as the A100, at half the rate with FP32 sums (RTX 3090)",
          {"fp32": 35.6, "tf32": 35.6, "bf16": 71, "fp16": 71}),
    Known("RTX 40", "bf16", "as RTX 30; FP8 is there, for inference first (RTX 4090)",
          {"fp32": 82.6, "tf32": 82.6, "bf16": 165, "fp16": 165, "fp8": 330}),
    Known("H100", "bf16", "BF16; FP8 for large matrix products, after it was proven on the model (SXM)",
          {"fp32": 67, "tf32": 495, "bf16": 989, "fp16": 989, "fp8": 1979}),
    Known("H200", "bf16", "computes as the H100; more and faster memory",
          {"fp32": 67, "tf32": 495, "bf16": 989, "fp16": 989, "fp8": 1979}),
    Known("B200", "bf16", "BF16; FP8 (MXFP8) for large matrix products, after it was proven on the model (HGX)",
          {"fp32": 75, "tf32": 1100, "bf16": 2250, "fp16": 2250, "fp8": 4500}),
    Known("L4", "bf16", "little power and bandwidth: measure before you believe the peak; FP8 for inference first",
          {"fp32": 30.3, "tf32": 60, "bf16": 121, "fp16": 121, "fp8": 242}),
    Known("L40S", "bf16", "BF16; FP8 for large matrix products, after it was proven on the model",
          {"fp32": 91.6, "tf32": 183, "bf16": 362, "fp16": 362, "fp8": 733}),
    Known("RTX 50", "bf16", "as RTX 40 (RTX 5090)",
          {"fp32": 104.8, "tf32": 104.8, "bf16": 209.5, "fp16": 209.5, "fp8": 419}),
    Known("MI300", "bf16", "BF16 as fast as FP16; its FP8 formats (FNUZ) are not those of train --fp8 (MI300X)",
          {"fp32": 163.4, "tf32": 653.7, "bf16": 1307, "fp16": 1307, "fp8": 2615}),
    Known("CPU with AMX", "bf16", "matrix units for BF16; FP16 only on those with AMX-FP16. Small models gain nothing", {}),
)  # fmt: skip


def known(device_name: str) -> Known | None:
    """The entry for a device, by the name that its driver gives it; None for one that is not in the table."""
    text = device_name.upper().replace("GEFORCE ", "")
    numbered = re.search(r"\bRTX (30|40|50)[5-9]0\b", text)
    family = f"RTX {numbered.group(1)}" if numbered else None
    # Longest first, and as a whole word: an L40S is no L4.
    for item in sorted(KNOWN, key=lambda item: -len(item.name)):
        if item.name == family or re.search(rf"\b{re.escape(item.name.upper())}[AX]?\b", text):
            return item
    return None


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
    flags = _cpu_flags()
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        capability = (properties.major, properties.minor)
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
