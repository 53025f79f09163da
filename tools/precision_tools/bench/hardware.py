"""What a figure was taken on: it stands in every report, since a figure without it says nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import torch

_PACKAGES = ("accelerate", "lightning-fabric", "gymnasium", "numpy")
_FLAGS = ("amx_bf16", "amx_fp16", "amx_tile", "avx512_bf16", "avx512_fp16", "avx512f", "avx2")
_CPUINFO = Path("/proc/cpuinfo")


def describe() -> dict[str, object]:
    """CPU, its matrix units, GPU, versions, and how busy the machine is now."""
    model, flags = _cpu()
    return {
        "cpu": model,
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cpu_flags": [flag for flag in _FLAGS if flag in flags],
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "packages": {name: _version(name) for name in _PACKAGES},
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }


def has_amx() -> bool:
    """Whether this CPU multiplies BF16 matrices in tiles, which is what makes BF16 fast on one."""
    return "amx_bf16" in _cpu()[1]


def _cpu() -> tuple[str, frozenset[str]]:
    """Name and flags of the first CPU; Linux only, elsewhere what Python knows and no flags."""
    model, flags = platform.processor() or platform.machine(), frozenset[str]()
    if not _CPUINFO.exists():
        return model, flags
    for line in _CPUINFO.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            model = value.strip()
        elif key.strip() == "flags":
            return model, frozenset(value.split())
    return model, flags


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
