"""What runs, as the labels of genesis_run_info: what a person compares when a run behaves otherwise than the one before."""

from __future__ import annotations

import hashlib
import os
import platform

import torch

from .options import TrainOptions


def run_info(
    options: TrainOptions,
    name: str,
    model: torch.nn.Module,
    *,
    world_size: int,
    device: torch.device,
    allow_tf32: bool = False,
) -> dict[str, str]:
    """Labels, all texts.

    Args:
        options: of the job.
        name: of the task.
        model: FP32, in any state: only names and shapes count.
        world_size: ranks.
        device: of the model.
        allow_tf32: FP32 may be TF32.
    """
    return {
        "torch": torch.__version__,
        "device": device.type,
        "capability": capability(device),
        "model": name,
        "model_hash": model_hash(model),
        "world_size": str(world_size),
        "batch_size": str(options.batch_size),
        "lr": f"{options.learning_rate:g}",
        "clipping": clipping(options),
        "accumulation": str(options.accumulation),
        "fp32": "tf32" if allow_tf32 else "strict",
        "fp8": options.fp8,
    }


def model_hash(model: torch.nn.Module) -> str:
    """12 hexadecimal digits over names and shapes of all parameters and buffers: another architecture, another hash."""
    layout = [(name, tuple(value.shape)) for name, value in model.state_dict().items()]
    return hashlib.sha256(repr(layout).encode()).hexdigest()[:12]


def clipping(options: TrainOptions) -> str:
    """What ``train`` clips to: ``1``, ``adaptive``, ``0.5+adaptive`` or ``off``."""
    fixed = f"{options.max_grad_norm:g}" if options.max_grad_norm > 0 else ""
    return "+".join(filter(None, (fixed, "adaptive" if options.adaptive_clipping else ""))) or "off"


def capability(device: torch.device) -> str:
    """Of a CUDA device, as ``8.0``; empty on a CPU."""
    if device.type != "cuda":
        return ""
    major, minor = torch.cuda.get_device_capability(device)
    return f"{major}.{minor}"


def device_name(device: torch.device) -> str:
    """The GPU's name, or the CPU's kind and number of cores."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} x{os.cpu_count()}"
