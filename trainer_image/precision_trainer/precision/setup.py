"""What a trainer checks and settles before its first step."""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from ..errors import ConfigError
from ..sentinel.machine import SentinelConfig
from ..telemetry.logs import JsonLog
from .config import FALLBACK_LINE, ExtendedFP16Config, parse_bool
from .modes import PrecisionMode


def start_mode(config: ExtendedFP16Config, device: torch.device, log: JsonLog, allow_cpu: bool | None) -> PrecisionMode:
    """The mode to start in: what the settings say, or FP32, with one warning, on a CPU that was not opted in.

    Raises:
        ConfigError: a cold mode under DDP.
    """
    mode = config.precision_mode if config.enabled else PrecisionMode.FP32
    if not mode.hot and config.use_ddp:
        raise ConfigError(
            f"precision_mode={mode.name} with use_ddp=True: 16-bit weights are for one process; use MIXED_{mode.name}"
        )
    if mode is PrecisionMode.FP32 or device.type == "cuda":
        return mode
    if allow_cpu is None:
        allow_cpu = parse_bool("PRECISION_ALLOW_CPU", os.environ.get("PRECISION_ALLOW_CPU", "")) or False
    if allow_cpu:
        return mode
    log.warning("fallback", f"{FALLBACK_LINE}: no CUDA device; PRECISION_ALLOW_CPU=true allows {mode.wire} on the CPU")
    return PrecisionMode.FP32


def check_parameters(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """Refuse 16-bit master weights; returns the first optimized parameter."""
    for name, parameter in model.named_parameters():
        if parameter.dtype is not torch.float32:
            raise ConfigError(
                f"parameter {name} is {parameter.dtype}: expected torch.float32; call model.float() first"
            )
    for group in optimizer.param_groups:
        for tensor in group["params"]:
            if isinstance(tensor, torch.Tensor):
                return tensor
    raise ConfigError("the optimizer has no parameters; build it with model.parameters()")


def set_tf32(device: torch.device, *, allowed: bool) -> None:
    """Settle for this process whether FP32 on CUDA means TF32; elsewhere there is no TF32, and nothing is touched."""
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = allowed
        torch.backends.cudnn.allow_tf32 = allowed


def on_hardware(settings: SentinelConfig, device: torch.device) -> SentinelConfig:
    """Without BF16 as a way out, where only an emulation has it; a CPU has it in software at worst, and never faults."""
    has_bf16 = device.type != "cuda" or bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return replace(settings, bf16_available=settings.bf16_available and has_bf16)
