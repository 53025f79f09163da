"""The two loops: plain PyTorch, and the trainer's class put in its place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lab.harmless.script import Loop, Setting
from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.values.request import PrecisionRequest
from precision_trainer.values.sentinel import SentinelConfig

Batch = TypeVar("Batch")
_EAGER = SentinelConfig(window_steps=8, patience_windows=1024)
"""The sentinel judges often, and never changes the mode."""
_LOOKS_EVERY_STEPS = 4
"""Oftener than a user may ask for: these trainings are over in some twenty steps."""
_AUTOCAST = {PrecisionMode.MIXED_FP16: torch.float16, PrecisionMode.MIXED_BF16: torch.bfloat16}


class Plain:
    """What a script does by hand: autocast, GradScaler, no_sync, clip_grad_norm_."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, setting: Setting) -> None:
        self._model, self._optimizer, self._setting = model, optimizer, setting
        self._mode = setting.trained_in or setting.mode
        self._micro = 0
        self._scaler = torch.amp.GradScaler("cpu", init_scale=setting.loss_scale)
        if setting.compile_backend:
            model.compile(backend=setting.compile_backend)
        self._ddp: DistributedDataParallel | None = None
        if dist.is_initialized():
            self._ddp = DistributedDataParallel(
                model,
                find_unused_parameters=setting.find_unused_parameters,
                static_graph=setting.static_graph,
            )

    @property
    def module(self) -> torch.nn.Module:
        return self._model if self._ddp is None else self._ddp

    def switch(self, mode: PrecisionMode) -> None:
        self._mode = mode

    def step(self, batch: Batch, loss_of: Callable[[torch.nn.Module, Batch], torch.Tensor]) -> float:
        if not self._micro:
            self._optimizer.zero_grad()
        last = self._micro + 1 == self._setting.accumulation
        scaled = self._mode.uses_scaler
        with contextlib.nullcontext() if last or self._ddp is None else self._ddp.no_sync():
            with self._autocast():
                loss = loss_of(self.module, batch)
            part = loss / self._setting.accumulation
            torch.autograd.backward(self._scaler.scale(part) if scaled else part)
        self._micro = 0 if last else self._micro + 1
        if last:
            self._update(scaled=scaled)
        return loss.item()

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        dtype = _AUTOCAST.get(self._mode)
        return contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype)

    def _update(self, *, scaled: bool) -> None:
        if self._setting.max_grad_norm:
            if scaled:
                self._scaler.unscale_(self._optimizer)
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._setting.max_grad_norm)
        if scaled:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        else:
            self._optimizer.step()


class Ours:
    """The same through the public class."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, setting: Setting) -> None:
        joined = dist.is_initialized()
        config = ExtendedFP16Config(
            precision_mode=setting.mode,
            gradient_accumulation_steps=setting.accumulation,
            max_grad_norm=setting.max_grad_norm,
            loss_scale=setting.loss_scale,
            find_unused_parameters=setting.find_unused_parameters,
            static_graph=setting.static_graph,
            compile_backend=setting.compile_backend,
            use_ddp=joined,
            sentinel=SentinelConfig() if setting.usual_sentinel else _EAGER,
        )
        rank, world = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
        self._replay = setting.replay
        self._requests = 0
        self.low = setting.mode is not PrecisionMode.FP32
        """It was to train in 16 bits from the start."""
        self.trainer = ExtendedFP16Trainer(model, optimizer, config, "cpu", rank, world, allow_cpu=True)
        if self.trainer.sentinel is not None and not setting.usual_sentinel:
            measurements = self.trainer.sentinel.measurements
            measurements._every = measurements._probe._every = measurements._probe._due = _LOOKS_EVERY_STEPS

    @property
    def module(self) -> torch.nn.Module:
        return self.trainer.module

    @property
    def looked(self) -> bool:
        """The sentinel measured activation gradients, or computed a step once more."""
        measurements = self.trainer.sentinel.measurements if self.trainer.sentinel is not None else None
        return measurements is not None and (measurements.reading is not None or measurements.shadow is not None)

    def switch(self, mode: PrecisionMode) -> None:
        self._requests += 1
        self.trainer.apply(PrecisionRequest(self._requests, mode))

    def step(self, batch: Batch, loss_of: Callable[[torch.nn.Module, Batch], torch.Tensor]) -> float:
        loss = self.trainer.training_step(batch, loss_of, loss_of if self._replay else None)
        self.trainer.backward_and_step(loss)
        return loss.item()


def plain(model: torch.nn.Module, optimizer: torch.optim.Optimizer, setting: Setting | None = None) -> Loop:
    """Without us."""
    return Plain(model, optimizer, setting or Setting())


def ours(model: torch.nn.Module, optimizer: torch.optim.Optimizer, setting: Setting | None = None) -> Ours:
    """With us."""
    return Ours(model, optimizer, setting or Setting())
