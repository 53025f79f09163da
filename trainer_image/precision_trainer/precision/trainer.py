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
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from ..errors import ConfigError
from ..gang import ddp
from ..gang.request import PrecisionRequest
from ..sentinel.diagnose import AUTOCAST, Replay
from ..sentinel.levels import Level
from ..sentinel.shell import Sentinel
from ..telemetry.logs import JsonLog
from . import single_file
from .channel import Channel
from .cold import ColdWeights
from .config import ExtendedFP16Config
from .modes import PrecisionMode
from .scaler import LossScaler
from .setup import check_parameters, has_bf16, set_tf32, start_mode
from .stats import Totals, TrainingStats
from .steps import Boundary, ModeChange, Sent, StepRecord
from .update import GradientUpdate

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

Batch = TypeVar("Batch")
RequestSource = Callable[[int], "PrecisionRequest | None"]
"""Called on rank 0 at a boundary with the last applied generation; returns the waiting request."""

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
            ConfigError: parameters are not FP32, a cold mode with a used optimizer or under DDP, or ranks without DDP.
        """
        self.config = config or ExtendedFP16Config()
        self.model = model
        self.optimizer = optimizer
        self.rank, self.world_size = rank, world_size
        first = check_parameters(model, optimizer)
        self.device = torch.device(device) if device is not None else first.device
        if world_size > 1 and not self.config.use_ddp:
            raise ConfigError(f"use_ddp=False with world_size={world_size}: gradients would differ; set use_ddp=True")
        log = log or JsonLog(rank, world_size)
        self.mode = self.requested_mode = start_mode(self.config, self.device, log, allow_cpu)
        set_tf32(self.device, allowed=self.config.allow_tf32)
        self.cold = None if self.mode.hot else ColdWeights(model, optimizer, self.mode)
        self.scaler = LossScaler(self.config, self.device)
        self.sentinel = self._make_sentinel(log)
        self.step = 0
        self.applied: PrecisionRequest | None = None
        self.request_source: RequestSource | None = None
        self.stop_asked = False

        self._channel = Channel(world_size, self.device)
        self._ddp: DistributedDataParallel | None = None
        if self.config.use_ddp:
            self._ddp = ddp.wrap(model, self._channel.telemetry, self.device)
        self._one = torch.ones((), device=self.device)
        self._contexts: dict[PrecisionMode, contextlib.AbstractContextManager[object]] = {PrecisionMode.FP32: _NOTHING}
        self._micro_step = 0
        self._begun = False
        self._loss_sum: torch.Tensor | None = None
        self._pending: PrecisionRequest | None = None
        self._gradient_update = GradientUpdate(optimizer, self.config.max_grad_norm)
        self._replays: list[Replay] = []
        self._probing = False
        self._totals = Totals()
        self._last_norms: torch.Tensor | None = None

    def _make_sentinel(self, log: JsonLog) -> Sentinel | None:
        settings = self.config.sentinel
        if not settings.enabled or self.cold is not None:
            return None
        return Sentinel(
            replace(settings, bf16_available=settings.bf16_available and has_bf16(self.device)),
            self.model,
            self.optimizer,
            self.scaler,
            device=self.device,
            rank=self.rank,
            log=log,
            order=lambda: f"{self.requested_mode.wire}@{self.generation}",
        )

    @property
    def generation(self) -> int:
        """Generation of the last applied request; 0 before any."""
        return self.applied.generation if self.applied else 0

    @property
    def module(self) -> torch.nn.Module:
        """What to call for a forward pass: the model, under DDP where it is on."""
        return self._ddp if self._ddp is not None else self.model

    # --- the boundary -------------------------------------------------------------------------------------------------

    def begin_step(self) -> Boundary:
        """Enter the boundary before a step: read what the gang agreed on, apply it, then take a new request in.

        Calling it again before the step ran is harmless (the loop calls it to see the result, training_step makes sure).

        Raises:
            RankMismatchError: the ranks fell apart.
            DivergedError: the sentinel has nothing left to do: the weights are not finite.
            ConfigError: requests for a cold mode.
            RuntimeError: called inside an accumulation window.
        """
        if self._micro_step:
            raise RuntimeError(
                "begin_step() inside an accumulation window; call it only when no micro-batch is pending"
            )
        if self._begun:
            return Boundary(self.step, (), None, checkpoint=False, stop=False)
        boundary = self._read(keep=self._channel.delay - 1)
        self._begun = True
        if self.rank == 0 and self.request_source is not None:
            if self.cold is not None:
                raise ConfigError(
                    f"{self.mode.name} is a cold mode: no request can change it; save a checkpoint and start in a hot one"
                )
            self._pending = self.request_source(self.generation)
        return boundary

    def drain(self) -> Boundary:
        """Wait for all steps tried so far and read them: before a checkpoint or the end. All ranks must call it."""
        return self._read(keep=0)

    def apply(self, request: PrecisionRequest) -> ModeChange:
        """Change the mode here and now, on this rank. Only at a boundary, and only with something all ranks agreed on."""
        self.applied = request
        self.requested_mode = request.mode
        if self.sentinel is not None:
            self.sentinel.requested(self.step)
        change = self._change("request")
        self.tune(request)
        return change

    def tune(self, request: PrecisionRequest) -> None:
        """What a request asks of the loss scaler; nothing in a mode that has none (the reporter says so)."""
        if request.tunes and request.mode.uses_scaler:
            self.scaler.tune(request.loss_scale_factor, request.growth_interval)

    def settle(self) -> ModeChange | None:
        """Enter the mode that the sentinel allows, if another is in force; at boundaries, and after loading its state."""
        if self.sentinel is None or self.sentinel.allowed(self.requested_mode) is self.mode:
            return None
        return self._change("sentinel")

    def _change(self, source: str) -> ModeChange:
        before = self.mode
        self.mode = self.sentinel.allowed(self.requested_mode) if self.sentinel is not None else self.requested_mode
        if self.mode.uses_scaler and not before.uses_scaler:
            self.scaler.thaw()
        return ModeChange(before, self.mode, self.applied, self.step, time.time(), source)

    def _read(self, keep: int) -> Boundary:
        records: list[StepRecord] = []
        change: ModeChange | None = None
        stop = checkpoint = rewind = False
        sentinel = self.sentinel
        for sent, agreed, record in self._channel.read(keep):
            self._totals.observe(record)
            records.append(record)
            self._last_norms = sent.norms
            stop = stop or agreed.stop
            if sentinel is not None:
                sentinel.observe(record, sent)
                if agreed.diagnosis is not None:
                    sentinel.learn(agreed.diagnosis, record)
                if agreed.verdict is not None and sentinel.obey(agreed.verdict, sent):
                    rewind = rewind or agreed.verdict.level is Level.REWIND
            if agreed.request is not None and agreed.request.generation > self.generation:
                change = self.apply(agreed.request)
                checkpoint = checkpoint or agreed.request.checkpoint
                rewind = rewind or agreed.request.rewind
        return Boundary(self.step, tuple(records), self.settle() or change, checkpoint, stop, rewind)

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
        last = self._last_micro_step
        silent = None if last else self._ddp
        if self.sentinel is not None:
            self._replays.append(lambda model: loss_fn(model, batch))
            if last:
                self._probing = self.sentinel.begin_probe(self.mode)
        with silent.no_sync() if silent is not None else _NOTHING, self._autocast():
            loss = loss_fn(self.module, batch)
        if loss.dim() != 0:
            raise ConfigError(
                f"loss_fn returned shape {tuple(loss.shape)}: expected a 0-dim tensor; reduce it with .mean()"
            )
        return loss

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        """The context that a forward pass runs in; made once a mode, since making one costs more than entering it."""
        if self.cold is not None:
            return _NOTHING
        context = self._contexts.get(self.mode)
        if context is None:
            context = torch.autocast(self.device.type, dtype=AUTOCAST[self.mode])
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
        verdict, finding = self.sentinel.message() if self.sentinel is not None else (None, None)
        message: torch.Tensor | None = self._channel.message(
            self._loss_sum,
            request=self._pending,
            stop=self.stop_asked,
            running=self.mode,
            verdict=verdict,
            finding=finding,
        )
        if self._ddp is None:  # the message of a gang of one is its own mean
            torch.autograd.backward(part, root)
        else:
            telemetry = self._channel.telemetry
            telemetry.grad = None
            torch.autograd.backward((part, telemetry), (root, message))
            message = telemetry.grad
        assert message is not None
        self._loss_sum = None
        self._update(message)
        self._micro_step = 0
        self._begun = False
        self.step += 1
        return True

    def _update(self, mean: torch.Tensor) -> None:
        """Update or skip, and send the record off. Nothing here waits for the device (fused optimizer).

        Args:
            mean: the message averaged over the ranks, [WIDTH].
        """
        if self.cold is not None:
            self.cold.gather()
        found_inf, norm, norms = self._gradient_update(self.scaler if self.mode.uses_scaler else None)
        if self.cold is not None:
            self.cold.publish()
        tail = torch.stack((found_inf, self.scaler.scale_value, norm))
        number = 0
        replays: tuple[Replay, ...] = ()
        if self.sentinel is not None:
            number, replays = self.sentinel.sent(), tuple(self._replays)
            self._replays = []
            if self._probing:
                self._probing = False
                self.sentinel.end_probe()
        sent = Sent(number, self.step, self.mode, self.generation, norms, replays)
        self._channel.put(sent, (mean, tail))

    # --- what it came to ----------------------------------------------------------------------------------------------

    def save_checkpoint(self, path: str | Path) -> None:
        """One file with everything this object knows, FP32 in every mode; see single_file.save."""
        single_file.save(self, Path(path))

    def load_checkpoint(self, path: str | Path) -> None:
        """The inverse, in whatever mode; see single_file.load."""
        single_file.load(self, Path(path))

    def layer_norms(self) -> dict[str, float]:
        """Gradient norm by layer in the last step read, unscaled, before clipping; empty before one, or without a sentinel.

        Waits for the device: a tool for a person, not for every step.
        """
        if self._last_norms is None or self.sentinel is None:
            return {}
        return self.sentinel.layers.norms(self._last_norms.tolist()) or {}

    def get_stats(self) -> TrainingStats:
        """Totals of this process up to the last step tried; waits for the device."""
        totals = self._totals.copy()
        for record in self._channel.peek():
            totals.observe(record)
        return {
            "fp16_enabled_runtime": self.mode is not PrecisionMode.FP32,
            "precision_mode": self.mode.wire,
            "requested_mode": self.requested_mode.wire,
            "generation": self.generation,
            "training_steps": totals.tried,
            "fp16_steps": totals.low,
            "overflow_steps": totals.overflows,
            "overflow_rate": totals.overflow_rate,
            "nonfinite_steps": totals.nonfinite,
            "current_scale": float(self.scaler.scale_value.item()) if self.mode.uses_scaler else 1.0,
            "scale_history": list(totals.scale_history),
            "allow_tf32": self.config.allow_tf32,
            "sentinel_level": self.sentinel.level.label if self.sentinel is not None else "off",
            "pinned_layers": self.sentinel.pinned if self.sentinel is not None else [],
        }
