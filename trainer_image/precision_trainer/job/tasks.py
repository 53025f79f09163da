"""From ``precision-trainer train MODEL`` to the task it names."""

from __future__ import annotations

from ..models.data import LibraryText
from ..models.task import Task, load_task, make_task
from ..models.transformer import ByteTransformer, TransformerConfig, next_byte_loss
from .options import TrainOptions


def build_task(options: TrainOptions) -> Task:
    """The task; its initial weights come from torch's random state.

    Raises:
        ConfigError: with what is wrong about the model or its data.
    """
    if options.model == "transformer":
        text = LibraryText(options.context)
        sizes = TransformerConfig(width=options.width, layers=options.layers, context=options.context)
        name = f"transformer-d{options.width}-l{options.layers}-t{options.context}"
        return make_task(name, ByteTransformer(sizes), text.batch, next_byte_loss, text.fingerprint)
    return load_task(options.model)
