"""What the figures are taken on: the two models the trainer ships with, on real data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from precision_trainer.models.data import LibraryText
from precision_trainer.models.environments import collect
from precision_trainer.models.rssm import RSSM, RssmConfig, world_model_loss
from precision_trainer.models.task import Task, make_task
from precision_trainer.models.transformer import ByteTransformer, TransformerConfig, next_byte_loss


@dataclass(frozen=True, slots=True)
class Workload:
    """A task that can be made again with the same initial weights."""

    name: str
    batch_size: int
    make: Callable[[int], Task]
    """Seed -> task; the data is the same for every seed."""


def transformer(*, width: int = 384, layers: int = 6, context: int = 256, batch_size: int = 4) -> Workload:
    """The byte-level transformer; by default 10.9 M parameters, 1024 tokens a step."""
    text = LibraryText(context)
    sizes = TransformerConfig(width=width, layers=layers, context=context)

    def make(seed: int) -> Task:
        torch.manual_seed(seed)
        return make_task("transformer", ByteTransformer(sizes), text.batch, next_byte_loss, text.fingerprint)

    return Workload(f"transformer-d{width}-l{layers}-t{context}-b{batch_size}", batch_size, make)


def world_model(*, width: int = 256, length: int = 32, batch_size: int = 16) -> Workload:
    """The RSSM on CartPole."""
    buffer = collect("CartPole-v1", 50, length=length)
    observation_size, action_size = buffer.sizes
    sizes = RssmConfig(observation_size=observation_size, action_size=action_size, deterministic=width, hidden=width)

    def make(seed: int) -> Task:
        torch.manual_seed(seed)
        return make_task("world-model", RSSM(sizes), buffer.batch, world_model_loss, buffer.fingerprint)

    return Workload(f"world-model-d{width}-t{length}-b{batch_size}", batch_size, make)
