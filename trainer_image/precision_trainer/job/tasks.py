"""From ``precision-trainer train MODEL`` to the task it names."""

from __future__ import annotations

from ..errors import ConfigError
from ..models.data import LibraryText
from ..models.task import Task, load_task, make_task
from ..models.transformer import ByteTransformer, TransformerConfig, next_byte_loss
from .options import TrainOptions

TRAJECTORIES = 50
"""Episodes the world model trains on; every rank plays the same ones."""


def build_task(options: TrainOptions) -> Task:
    """The task; its initial weights come from torch's random state.

    Raises:
        ConfigError: with what is wrong about the model or its data, or why FP8 does not run here.
    """
    if options.fp8 == "off":
        return _task(options)
    from ..step import fp8
    from ..step.hardware import cuda_capability, fp8_missing
    from ..values import logs

    missing = fp8_missing(None if options.backend == "gloo" else cuda_capability())
    if missing is not None:
        raise ConfigError(f"--fp8 {options.fp8}: {missing}; leave it out to train in BF16")
    task = _task(options)
    layers = fp8.install(task.model, options.fp8)
    logs.from_env().event("fp8", scaling=options.fp8, layers=len(layers), message="FP8 where the mode is bf16")
    return task


def _task(options: TrainOptions) -> Task:
    if options.model == "transformer":
        text = LibraryText(options.context)
        sizes = TransformerConfig(
            width=options.width, layers=options.layers, context=options.context, vocabulary=options.vocabulary
        )
        name = f"transformer-d{options.width}-l{options.layers}-t{options.context}"
        return make_task(
            name, ByteTransformer(sizes), text.batch, next_byte_loss, text.fingerprint, replay=next_byte_loss
        )
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
    return make_task(name, RSSM(sizes), buffer.batch, world_model_loss, buffer.fingerprint, replay=world_model_loss)
