"""The basic trainer: mixed FP16 on one device, nothing to configure but the loss scale."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from ..step.stats import TrainingStats
from ..values.config import ExtendedFP16Config
from ..values.modes import PrecisionMode
from .trainer import ExtendedFP16Trainer

Batch = TypeVar("Batch")


class FP16Trainer:
    """FP32 weights, forward and backward in FP16 with dynamic loss scaling; FP32 where there is no CUDA and no opt-in.

    A narrow door to :class:`ExtendedFP16Trainer`, which it drives: the same step, the same scaler, the same files.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        enabled: bool = True,
        loss_scale: float = 65536.0,
        device: torch.device | str | None = None,
        allow_cpu: bool | None = None,
    ) -> None:
        """Take a model and an optimizer over its parameters.

        Args:
            model: parameters FP32, already on ``device``.
            optimizer: any; a fused one makes steps free of host waits.
            enabled: False: train in FP32.
            loss_scale: to start with; (0, 2^127].
            device: where the model is; that of its first parameter if None.
            allow_cpu: FP16 on a CPU; from PRECISION_ALLOW_CPU if None.

        Raises:
            ConfigError: parameters are not FP32, or the loss scale is out of range.
        """
        config = ExtendedFP16Config(
            precision_mode=PrecisionMode.MIXED_FP16,
            enabled=enabled,
            loss_scale=loss_scale,
            min_loss_scale=min(1.0, loss_scale) if loss_scale > 0 else 0.0,
        )
        self._trainer = ExtendedFP16Trainer(model, optimizer, config, device, allow_cpu=allow_cpu)

    @property
    def fp16_enabled(self) -> bool:
        """Whether training runs in FP16 now."""
        return self._trainer.mode is PrecisionMode.MIXED_FP16

    def training_step(self, batch: Batch, loss_fn: Callable[[torch.nn.Module, Batch], torch.Tensor]) -> torch.Tensor:
        """Forward; see :meth:`ExtendedFP16Trainer.training_step`."""
        return self._trainer.training_step(batch, loss_fn)

    def backward_and_step(self, loss: torch.Tensor) -> bool:
        """Backward and update, or a skipped update after an overflow; True, since every call ends a step."""
        return self._trainer.backward_and_step(loss)

    def get_stats(self) -> TrainingStats:
        """Totals; see :class:`TrainingStats`."""
        return self._trainer.get_stats()

    def save_checkpoint(self, path: str | Path) -> None:
        """Write one file; see :meth:`ExtendedFP16Trainer.save_checkpoint`."""
        self._trainer.save_checkpoint(path)

    def load_checkpoint(self, path: str | Path) -> None:
        """Read one file; see :meth:`ExtendedFP16Trainer.load_checkpoint`."""
        self._trainer.load_checkpoint(path)
