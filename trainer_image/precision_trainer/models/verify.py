"""The check behind ``precision-trainer verify-fp32``: what the layers computed in, not what a setting says."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import asdict, dataclass

import torch

from ..errors import ConfigError
from ..values.logs import JsonLog
from .environments import collect
from .world_model import WorldModel


@dataclass(frozen=True, slots=True)
class Verification:
    """What was seen."""

    fp16_enabled: bool
    stats_enabled: bool
    """``_fp16_stats`` says that FP16 or BF16 ran."""
    output_dtypes: dict[str, int]
    """Outputs of layers by dtype, counted while it trained."""
    parameter_dtypes: dict[str, int]
    steps: int
    nonfinite_steps: int
    final_loss: float

    @property
    def failures(self) -> list[str]:
        """Why it is not FP32; empty if it is."""
        failures = []
        if self.fp16_enabled or self.stats_enabled:
            failures.append("FP16 or BF16 is switched on in this process")
        for what, dtypes in (("layers computed in", self.output_dtypes), ("weights are", self.parameter_dtypes)):
            if set(dtypes) != {"float32"}:
                failures.append(
                    f"{what} {', '.join(f'{name} ({count})' for name, count in dtypes.items()) or 'nothing'}"
                )
        if self.nonfinite_steps:
            failures.append(f"{self.nonfinite_steps} of {self.steps} losses were not finite")
        return failures

    @property
    def passed(self) -> bool:
        """FP32 throughout, and it trains."""
        return not self.failures

    def text(self) -> str:
        """For a person, one line."""
        if not self.passed:
            return f"NOT FP32: {'; '.join(self.failures)}. Start the workload with ENABLE_FP16_TRAINING=false and look again"
        outputs = sum(self.output_dtypes.values())
        return (
            f"FP32 mode verified: {self.steps} steps, {outputs} layer outputs and {sum(self.parameter_dtypes.values())} "
            f"weights, all float32; last loss {self.final_loss:.4f}"
        )

    def to_wire(self) -> dict[str, object]:
        """For a program."""
        return {"passed": self.passed, "failures": self.failures, **asdict(self)}


def verify_fp32(environment: str, trajectories: int, *, epochs: int, batch_size: int) -> Verification:
    """Train the world model with the process' settings and look at what it computed in.

    Raises:
        ConfigError: too few trajectories for one batch of sequences.
    """
    if trajectories < 1:
        raise ConfigError(f"trajectories={trajectories}: expected a whole number from 1 up")
    model = WorldModel(log=_Silent())
    model.replay_buffer = collect(environment, trajectories)
    outputs: Counter[str] = Counter()

    def seen(module: torch.nn.Module, _: object, output: object) -> None:
        if isinstance(output, torch.Tensor) and not list(module.children()):
            outputs[_name(output.dtype)] += 1

    with torch.nn.modules.module.register_module_forward_hook(seen):
        history = asyncio.run(model.train(epochs, batch_size))
    stats = model._fp16_stats
    return Verification(
        model.fp16_enabled,
        bool(stats and stats["fp16_enabled_runtime"]),
        dict(outputs),
        dict(Counter(_name(parameter.dtype) for parameter in model.rssm.parameters())),
        len(history),
        sum(not math.isfinite(entry["loss"]) for entry in history),
        history[-1]["loss"],
    )


class _Silent(JsonLog):
    """The command prints its own result; warnings and errors still show."""

    def event(self, event: str, *, at: float | None = None, **fields: object) -> None:
        """Nothing."""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
