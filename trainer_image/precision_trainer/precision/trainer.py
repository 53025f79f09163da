"""One training step in any precision, and the switch between precisions at a step boundary.

A *step* is one optimizer update: ``gradient_accumulation_steps`` micro-batches. Everything that changes how training goes on
(precision, stop, checkpoint) happens in :meth:`ExtendedFP16Trainer.begin_step`, between two steps, on all ranks alike.

    boundary t: rank 0 reads a request, writes it into its message -> step t carries it in the gradient bucket
    boundary t + delay: every rank reads the same mean of step t, and applies it (delay 1 on the CPU, 2 on CUDA)

Non-finite gradients never reach the weights, in any mode: in FP16 by the scaler's found_inf, in FP32 and BF16 by the
finiteness of the gradient norm, both handed to the optimizer as a device tensor. With a fused optimizer nothing waits
for the device; any other optimizer costs one wait a step.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch

from ..errors import ConfigError
from ..gang import ddp
from ..gang.agreement import HEADER, WIDTH, decode, encode
from ..gang.mailbox import Mailbox
from ..gang.request import PrecisionRequest
from ..telemetry.logs import JsonLog
from .config import FALLBACK_LINE, ExtendedFP16Config, parse_bool
from .modes import PrecisionMode
from .scaler import LossScaler
from .steps import Boundary, ModeChange, StepRecord, read_record
from .update import GradientUpdate

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

Batch = TypeVar("Batch")
RequestSource = Callable[[int], "PrecisionRequest | None"]
"""Called on rank 0 at a boundary with the last applied generation; returns the waiting request."""

_AUTOCAST = {PrecisionMode.MIXED_FP16: torch.float16, PrecisionMode.MIXED_BF16: torch.bfloat16}
_NOTHING: contextlib.AbstractContextManager[object] = contextlib.nullcontext()


class ExtendedFP16Trainer:
    """Trains an FP32 model in FP32, mixed FP16 or mixed BF16; see the module's text."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        config: ExtendedFP16Config | None = None,
        device: torch.device | str | None = None,
        rank: int = 0,
        world_size: int = 1,
        *,
        log: JsonLog | None = None,
        allow_cpu: bool | None = None,
    ) -> None:
        """Take a model and an optimizer over its parameters.

        Args:
            model: parameters FP32, already on ``device``.
            optimizer: any; a fused one (``AdamW(..., fused=True)``) makes steps free of host waits.
            config: defaults if None.
            device: where the model is; the device of its first parameter if None.
            rank: of this process.
            world_size: processes in the gang; above 1 needs ``config.use_ddp`` and init_distributed().
            log: where a fallback is reported.
            allow_cpu: FP16/BF16 on a CPU; from PRECISION_ALLOW_CPU if None. Without it a CPU trains in FP32, and says so.

        Raises:
            ConfigError: parameters are not FP32, a cold mode, or ranks without DDP.
        """
        self.config = config or ExtendedFP16Config()
        self.model = model
        self.optimizer = optimizer
        self.rank, self.world_size = rank, world_size
        first = _check_parameters(model, optimizer)
        self.device = torch.device(device) if device is not None else first.device
        if world_size > 1 and not self.config.use_ddp:
            raise ConfigError(f"use_ddp=False with world_size={world_size}: gradients would differ; set use_ddp=True")
        self.mode = self._start_mode(log or JsonLog(rank, world_size), allow_cpu)
        self.scaler = LossScaler(self.config, self.device)
        self.step = 0
        self.applied: PrecisionRequest | None = None
        self.request_source: RequestSource | None = None
        self.stop_asked = False

        # Not a parameter of the model: so it is in no optimizer, no clipping, no state_dict.
        self._telemetry = torch.nn.Parameter(torch.zeros(WIDTH, device=self.device))
        self._ddp: DistributedDataParallel | None = None
        if self.config.use_ddp:
            self._ddp = ddp.wrap(model, self._telemetry, self.device)
        self._mailbox: Mailbox[tuple[int, PrecisionMode, int]] = Mailbox(self.device)
        self._one = torch.ones((), device=self.device)
        self._contexts: dict[PrecisionMode, contextlib.AbstractContextManager[object]] = {PrecisionMode.FP32: _NOTHING}
        self._micro_step = 0
        self._begun = False
        self._loss_sum: torch.Tensor | None = None
        self._header_key: tuple[PrecisionRequest | None, bool, PrecisionMode] | None = None
        self._header = torch.zeros(HEADER, device=self.device)
        self._pending: PrecisionRequest | None = None
        self._gradient_update = GradientUpdate(optimizer, self.config.max_grad_norm)
        self._tried = self._overflows = self._nonfinite = 0

    @property
    def generation(self) -> int:
        """Generation of the last applied request; 0 before any."""
        return self.applied.generation if self.applied else 0

    @property
    def module(self) -> torch.nn.Module:
        """What to call for a forward pass: the model, under DDP where it is on."""
        return self._ddp if self._ddp is not None else self.model

    def _start_mode(self, log: JsonLog, allow_cpu: bool | None) -> PrecisionMode:
        mode = self.config.precision_mode if self.config.enabled else PrecisionMode.FP32
        if not mode.hot:
            raise ConfigError(
                f"precision_mode={mode.name}: 16-bit weights are a cold mode and not built yet; use MIXED_{mode.name}"
            )
        if mode is PrecisionMode.FP32 or self.device.type == "cuda":
            return mode
        if allow_cpu is None:
            allow_cpu = parse_bool("PRECISION_ALLOW_CPU", os.environ.get("PRECISION_ALLOW_CPU", "")) or False
        if allow_cpu:
            return mode
        log.warning(
            "fallback", f"{FALLBACK_LINE}: no CUDA device; PRECISION_ALLOW_CPU=true allows {mode.wire} on the CPU"
        )
        return PrecisionMode.FP32

    # --- the boundary -------------------------------------------------------------------------------------------------

    def begin_step(self) -> Boundary:
        """Enter the boundary before a step: read what the gang agreed on, apply it, then take a new request in.

        Calling it again before the step ran is harmless (the loop calls it to see the result, training_step makes sure).

        Raises:
            RankMismatchError: the ranks fell apart.
            RuntimeError: called inside an accumulation window.
        """
        if self._micro_step:
            raise RuntimeError(
                "begin_step() inside an accumulation window; call it only when no micro-batch is pending"
            )
        if self._begun:
            return Boundary(self.step, (), None, checkpoint=False, stop=False)
        boundary = self._read(keep=self._mailbox.delay - 1)
        self._begun = True
        if self.rank == 0 and self.request_source is not None:
            self._pending = self.request_source(self.generation)
        return boundary

    def drain(self) -> Boundary:
        """Wait for all steps tried so far and read them: before a checkpoint or the end. All ranks must call it."""
        return self._read(keep=0)

    def apply(self, request: PrecisionRequest) -> ModeChange:
        """Change the mode here and now, on this rank. Only at a boundary, and only with something all ranks agreed on."""
        before = self.mode
        self.mode = request.mode
        self.applied = request
        if self.mode.uses_scaler and not before.uses_scaler:
            self.scaler.thaw()
        return ModeChange(before, self.mode, request, self.step, time.time())

    def _read(self, keep: int) -> Boundary:
        records: list[StepRecord] = []
        change: ModeChange | None = None
        stop = checkpoint = rewind = False
        while len(self._mailbox) > keep:
            note, values = self._mailbox.get()
            step, mode, generation = note
            agreed = decode(values[:WIDTH], self.world_size, mode)
            record = read_record(step, mode, generation, agreed.loss, values)
            self._tried += 1
            self._overflows += record.overflow
            self._nonfinite += record.nonfinite
            records.append(record)
            stop = stop or agreed.stop
            if agreed.request is not None and agreed.request.generation > self.generation:
                change = self.apply(agreed.request)
                checkpoint = checkpoint or agreed.request.checkpoint
                rewind = rewind or agreed.request.rewind
        return Boundary(self.step, tuple(records), change, checkpoint, stop, rewind)

    # --- the step -----------------------------------------------------------------------------------------------------

    def training_step(self, batch: Batch, loss_fn: Callable[[torch.nn.Module, Batch], torch.Tensor]) -> torch.Tensor:
        """Forward of one micro-batch in the current mode.

        Args:
            batch: handed to ``loss_fn``.
            loss_fn: ``(model, batch) -> loss``, a 0-dim tensor, the mean over the micro-batch.

        Returns:
            The loss, for :meth:`backward_and_step`.
        """
        if not self._micro_step:
            self.begin_step()
        unsynchronised = self._ddp is not None and not self._last_micro_step
        with self._ddp.no_sync() if unsynchronised and self._ddp else _NOTHING, self._autocast():
            loss = loss_fn(self.module, batch)
        if loss.dim() != 0:
            raise ConfigError(
                f"loss_fn returned shape {tuple(loss.shape)}: expected a 0-dim tensor; reduce it with .mean()"
            )
        return loss

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        """The context that a forward pass runs in; made once a mode, since making one costs more than entering it."""
        context = self._contexts.get(self.mode)
        if context is None:
            context = torch.autocast(self.device.type, dtype=_AUTOCAST[self.mode])
            self._contexts[self.mode] = context
        return context

    @property
    def _last_micro_step(self) -> bool:
        return self._micro_step + 1 == self.config.gradient_accumulation_steps

    def backward_and_step(self, loss: torch.Tensor) -> bool:
        """Backward of one micro-batch; after the last one of the window, the optimizer update.

        Returns:
            True if this ended a step (also if the update was skipped).
        """
        last = self._last_micro_step
        steps = self.config.gradient_accumulation_steps
        part = loss.float() if steps == 1 else loss.float() / steps
        seen = part.detach()
        self._loss_sum = seen if self._loss_sum is None else self._loss_sum + seen
        # Backward starts at the scale: what multiplying the loss by it comes to, bit for bit, without the multiplication.
        root = self.scaler.scale_value if self.mode.uses_scaler else self._one
        if not last:
            torch.autograd.backward(part, root)
            self._micro_step += 1
            return False
        message: torch.Tensor | None = torch.cat((self._header_on_device(), self._loss_sum.reshape(1)))
        if self._ddp is None:  # the message of a gang of one is its own mean
            torch.autograd.backward(part, root)
        else:
            self._telemetry.grad = None
            torch.autograd.backward((part, self._telemetry), (root, message))
            message = self._telemetry.grad
        assert message is not None
        self._loss_sum = None
        self._update(message)
        self._micro_step = 0
        self._begun = False
        self.step += 1
        return True

    def _header_on_device(self) -> torch.Tensor:
        """This rank's header; built anew only when it changed, which is rare."""
        key = (self._pending, self.stop_asked, self.mode)
        if key != self._header_key:
            self._header_key = key
            header = encode(self._pending, stop=self.stop_asked, running=self.mode)
            self._header = torch.tensor(header, dtype=torch.float32, device=self.device)
        return self._header

    def _update(self, mean: torch.Tensor) -> None:
        """Update or skip, and send the record off. Nothing here waits for the device (fused optimizer).

        Args:
            mean: the message averaged over the ranks, [WIDTH].
        """
        found_inf, norm = self._gradient_update(self.scaler if self.mode.uses_scaler else None)
        tail = torch.stack((found_inf, self.scaler.scale_value, norm))
        self._mailbox.put((self.step, self.mode, self.generation), torch.cat((mean, tail)))

    # --- what it came to ----------------------------------------------------------------------------------------------

    def get_stats(self) -> dict[str, float | bool | str]:
        """Totals of this process up to the last step tried; waits for the device."""
        overflows, nonfinite, tried = self._overflows, self._nonfinite, self._tried
        scale = float(self.scaler.scale_value.item()) if self.mode.uses_scaler else 1.0
        for (step, mode, generation), values in self._mailbox.peek():
            record = read_record(step, mode, generation, values[HEADER], values)
            tried, overflows, nonfinite = tried + 1, overflows + record.overflow, nonfinite + record.nonfinite
        return {
            "fp16_enabled_runtime": self.mode is not PrecisionMode.FP32,
            "precision_mode": self.mode.wire,
            "generation": self.generation,
            "training_steps": tried,
            "overflow_steps": overflows,
            "overflow_rate": overflows / tried if tried else 0.0,
            "nonfinite_steps": nonfinite,
            "current_scale": scale,
        }


def _check_parameters(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
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
