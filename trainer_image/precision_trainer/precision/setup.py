"""What a trainer checks and settles before its first step."""

from __future__ import annotations

import inspect
import os
import sys
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from ..distributed import ddp
from ..errors import ConfigError
from ..values.config import FALLBACK_LINE, ExtendedFP16Config, parse_bool
from ..values.logs import JsonLog
from ..values.modes import PrecisionMode
from ..values.sentinel import SentinelConfig


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
        try:
            allow_cpu = parse_bool("PRECISION_ALLOW_CPU", os.environ.get("PRECISION_ALLOW_CPU", "")) or False
        except ConfigError as error:
            log.error("bad_setting", str(error))
    if allow_cpu:
        return mode
    log.warning("fallback", f"{FALLBACK_LINE}: no CUDA device; PRECISION_ALLOW_CPU=true allows {mode.wire} on the CPU")
    return PrecisionMode.FP32


def check_parameters(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """Refuse what cannot be trained rightly; returns the first optimized parameter.

    Frozen parameters may have any dtype: they have no gradient and no update (adapters over a BF16 model).

    Raises:
        ConfigError: sharded or 16-bit parameters that are trained, or on several devices, sparse gradients, or an optimizer
            whose step needs a closure.
    """
    lazy = next((name for name, parameter in model.named_parameters() if is_lazy(parameter)), None)
    if lazy is not None:
        raise ConfigError(
            f"parameter {lazy} has no shape yet: expected an initialised model; compute one batch with it first"
        )
    devices = sorted({str(parameter.device) for parameter in model.parameters() if parameter.requires_grad})
    if len(devices) > 1:
        raise ConfigError(
            f"trained parameters are on {', '.join(devices)}: expected one device, on which gradients are unscaled, clipped "
            "and checked together; move the model with model.to(device), or freeze a part with requires_grad_(False)"
        )
    for name, parameter in model.named_parameters():
        if _is_of(parameter, "tensor", "DTensor"):
            raise ConfigError(
                f"parameter {name} is sharded (DTensor; FSDP2 or tensor parallel): expected whole tensors on each rank; "
                "sharded models are not supported yet; train it without this trainer, or pass the model before fully_shard()"
            )
        if parameter.requires_grad and parameter.dtype is not torch.float32:
            how = (
                "keep torch.view_as_real() of it as the parameter, and use torch.view_as_complex() of that in forward()"
                if parameter.is_complex()
                else "call model.float() first"
            )
            raise ConfigError(
                f"parameter {name} is {parameter.dtype}: expected torch.float32; {how}, or freeze it with "
                "requires_grad_(False)"
            )
    for name, module in model.named_modules():
        _check_module(module, f"module {name}" if name else "the model")
    if _needs_closure(optimizer):
        raise ConfigError(
            f"{type(optimizer).__name__}.step() needs a closure, which computes the loss several times a step: expected an "
            "optimizer that steps once on the gradients there are, such as AdamW or SGD; use one of these"
        )
    for group in optimizer.param_groups:
        for tensor in group["params"]:
            if isinstance(tensor, torch.Tensor):
                return tensor
    raise ConfigError("the optimizer has no parameters; build it with model.parameters()")


def _check_module(module: torch.nn.Module, named: str) -> None:
    if _is_of(module, "fsdp", "FullyShardedDataParallel"):
        raise ConfigError(
            f"{named} is wrapped in FullyShardedDataParallel: expected whole tensors on each rank; sharded models are not "
            "supported yet; train it without this trainer, or pass the bare model"
        )
    if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse:
        raise ConfigError(
            f"{named} has sparse gradients: expected dense ones, unscaled and clipped without a wait; make it with "
            "sparse=False"
        )
    if type(module).get_extra_state is torch.nn.Module.get_extra_state:
        return
    extra: object = module.get_extra_state()
    if not isinstance(extra, torch.Tensor):
        raise ConfigError(
            f"{named} keeps an extra state of type {type(extra).__name__}: expected a tensor, which a checkpoint can hold "
            "and check; let its get_extra_state() return one, or keep the values in buffers"
        )


def check_ranks(model: torch.nn.Module, *, use_ddp: bool, rank: int, world_size: int) -> None:
    """Refuse a model or a process group that the arguments contradict: gradients would differ, or be averaged twice.

    Raises:
        ConfigError: with the arguments to use.
    """
    for name, module in model.named_modules():
        where = "the model" if not name else f"its module {name}"
        if _is_of(module, "_composable.replicate", "DDP"):
            raise ConfigError(
                f"{where} was given to replicate() already: expected the bare model, whose gradients this trainer averages "
                "itself; pass it without replicate(), and set use_ddp=True, rank=dist.get_rank(), "
                "world_size=dist.get_world_size()"
            )
        if isinstance(module, DistributedDataParallel):
            raise ConfigError(
                f"{where} is wrapped in DistributedDataParallel already: expected the bare model, which this trainer wraps "
                "itself; pass model.module, and set use_ddp=True, rank=dist.get_rank(), world_size=dist.get_world_size()"
            )
    joined = dist.is_available() and dist.is_initialized()
    if joined and (rank, world_size) != (dist.get_rank(), dist.get_world_size()):
        raise ConfigError(
            f"rank={rank}, world_size={world_size} in a process group of {dist.get_world_size()} where this is rank "
            f"{dist.get_rank()}: expected the group's own; pass rank=dist.get_rank(), world_size=dist.get_world_size()"
        )
    if world_size > 1 and not use_ddp:
        raise ConfigError(f"use_ddp=False with world_size={world_size}: gradients would differ; set use_ddp=True")
    ignored = ddp.ignored(model) if world_size > 1 else frozenset()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and name in ignored:
            # Clipping and the decision to skip a step would look at another gradient on each rank.
            raise ConfigError(
                f"parameter {name} is trained and DDP is told to ignore it: expected gradients that all ranks share; freeze "
                "it with requires_grad_(False), take it out of the list of names given to "
                "_set_params_and_buffers_to_ignore_for_model, or train this model without this trainer"
            )
    if use_ddp and not joined:
        raise ConfigError(
            "use_ddp=True without a process group: expected one that all ranks have joined; call init_distributed() first"
        )


def _is_of(value: object, package: str, name: str) -> bool:
    """Whether ``value`` is of the class ``name`` of torch.distributed's ``package``.

    Importing that takes seconds, or it is not public; where there is such a value, it was imported.
    """
    kind: object = getattr(sys.modules.get(f"torch.distributed.{package}"), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    if all(callable(getattr(optimizer, name, None)) for name in ("first_step", "second_step")):
        return True  # SAM: step() asserts its closure, and has a default for it
    try:
        parameters = inspect.signature(optimizer.step).parameters
    except (TypeError, ValueError):  # written in C, or without a signature: it is asked in the first step
        return False
    closure = parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def untried(config: ExtendedFP16Config, mode: PrecisionMode, *, cold: bool) -> tuple[PrecisionMode, ...]:
    """Modes that need no trial where training starts in ``mode``: nothing could be gone back to, or nothing can be tried."""
    # DDP's own forward pass comes first over a static graph. Ranks would wait in it for the buffers of one that has failed.
    blind = config.static_graph and config.broadcast_buffers
    return (mode,) if mode is PrecisionMode.FP32 or cold or blind else ()


def set_tf32(device: torch.device, *, allowed: bool | None) -> None:
    """Settle for this process whether FP32 on CUDA means TF32; None, or no CUDA: nothing is touched."""
    if device.type == "cuda" and allowed is not None:
        torch.backends.cuda.matmul.allow_tf32 = allowed
        torch.backends.cudnn.allow_tf32 = allowed


def tf32_in_force(device: torch.device) -> bool:
    """Whether FP32 matrix products or convolutions may run as TF32 now."""
    return device.type == "cuda" and (_allows(torch.backends.cuda.matmul) or _allows(torch.backends.cudnn))


def _allows(backend: object) -> bool:
    try:
        return bool(getattr(backend, "allow_tf32", False))
    except RuntimeError:  # a script set it by torch's newer name for it, which forbids the older one
        return bool(getattr(backend, "fp32_precision", "") == "tf32")


def on_hardware(settings: SentinelConfig, device: torch.device) -> SentinelConfig:
    """Without BF16 as a way out, where only an emulation has it; a CPU has it in software at worst, and never faults."""
    has_bf16 = device.type != "cuda" or bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return replace(settings, bf16_available=settings.bf16_available and has_bf16)
