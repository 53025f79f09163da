"""From ``precision-trainer train MODEL`` to the task it names."""

from __future__ import annotations

from ..models.data import LibraryText
from ..models.task import Task, load_task, make_task
from ..models.transformer import ByteTransformer, TransformerConfig, next_byte_loss
from .options import TrainOptions

TRAJECTORIES = 50
"""Episodes the world model trains on; every rank plays the same ones."""


def build_task(options: TrainOptions) -> Task:
    """The task; its initial weights come from torch's random state.

    Raises:
        ConfigError: with what is wrong about the model or its data.
    """
    if options.model == "transformer":
        text = LibraryText(options.context)
        sizes = TransformerConfig(
            width=options.width, layers=options.layers, context=options.context, vocabulary=options.vocabulary
        )
        name = f"transformer-d{options.width}-l{options.layers}-t{options.context}"
        return make_task(name, ByteTransformer(sizes), text.batch, next_byte_loss, text.fingerprint)
    if options.model == "world-model":
        return _world_model(options)
    return load_task(options.model)


def _world_model(options: TrainOptions) -> Task:
    from ..models.environments import collect
    from ..models.rssm import RSSM, RssmConfig, world_model_loss

    buffer = collect(options.environment, TRAJECTORIES, length=options.context, seed=options.seed)
    observation_size, action_size = buffer.sizes
    sizes = RssmConfig(
        observation_size=observation_size, action_size=action_size, deterministic=options.width, hidden=options.width
    )
    name = f"world-model-{options.environment}-d{options.width}-t{options.context}"
    return make_task(name, RSSM(sizes), buffer.batch, world_model_loss, buffer.fingerprint)
