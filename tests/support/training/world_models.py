"""A small world model and its trajectories."""

from __future__ import annotations

import asyncio

import torch

from precision_trainer import WorldModel
from precision_trainer.models.replay import ReplayBuffer
from precision_trainer.models.rssm import RssmConfig

SMALL = RssmConfig(observation_size=4, action_size=2, deterministic=24, variables=4, classes=4, hidden=24)


def small_model(buffer: ReplayBuffer) -> WorldModel:
    torch.manual_seed(0)
    model = WorldModel(SMALL, learning_rate=1e-3)
    model.replay_buffer = buffer
    return model


def train(model: WorldModel, epochs: int = 1, batch_size: int = 16) -> list[dict[str, float]]:
    return asyncio.run(model.train(epochs, batch_size))
