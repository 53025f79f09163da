"""A small trainer, and its steps."""

from __future__ import annotations

from typing import Any

import torch

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.models.data import LibraryText
from precision_trainer.models.transformer import ByteTransformer, TransformerConfig, next_byte_loss

FP32, FP16, BF16 = PrecisionMode.FP32, PrecisionMode.MIXED_FP16, PrecisionMode.MIXED_BF16


CONTEXT, BATCH = 16, 4


def make(mode: PrecisionMode, *, fused: bool = True, **settings: Any) -> ExtendedFP16Trainer:  # noqa: ANN401 - of the config
    torch.manual_seed(0)
    model = ByteTransformer(TransformerConfig(width=32, layers=2, context=CONTEXT))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    config = ExtendedFP16Config(precision_mode=mode, **settings)
    return ExtendedFP16Trainer(model, optimizer, config, allow_cpu=True)


def step(trainer: ExtendedFP16Trainer, text: LibraryText, factor: float = 1.0) -> float:
    loss = trainer.training_step(text.batch(trainer.step * BATCH, BATCH), next_byte_loss) * factor
    trainer.backward_and_step(loss)
    return float(loss.detach())


def weights(trainer: ExtendedFP16Trainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]
