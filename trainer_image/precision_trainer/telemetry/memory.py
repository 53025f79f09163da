"""How much memory training may still take: a switch to FP32 needs more of it (docs/contract.md)."""

from __future__ import annotations

from pathlib import Path

import torch

CGROUP = Path("/sys/fs/cgroup")


def peak_bytes(device: torch.device) -> int | None:
    """Most device memory allocated since :func:`begin_stretch`; None on a CPU, which has none of its own. Does not wait."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def begin_stretch(device: torch.device) -> None:
    """Count the peak anew: what one mode takes is compared with what another took."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def headroom_bytes(device: torch.device, cgroup: Path = CGROUP) -> int | None:
    """Bytes that may be allocated beyond the peak: of the device, what is free and what the allocator holds unused.

    On a CPU what the container's limit leaves. None where there is no limit, or it cannot be read.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return max(0, free + torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device))
    try:
        limit, used = ((cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:  # no cgroup v2 here
        return None
    return int(limit) - int(used) if limit.isdigit() and used.isdigit() else None
