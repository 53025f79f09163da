"""Does training in 16 bits end where FP32 ends? Judged against how far two FP32 runs end from each other.

The same data in the same order, the same initial weights a seed, in every mode. What is compared is the loss on text that
is not in the training data, computed in FP32 from the final weights.
"""

from __future__ import annotations

import statistics
import sysconfig
from pathlib import Path

import torch

from precision_trainer.models.data import LibraryText
from precision_trainer.models.transformer import next_byte_loss
from precision_trainer.values.modes import PrecisionMode

from .rounds import Tick
from .speed import trainer_in
from .workloads import Workload, transformer

SEEDS, STEPS = 5, 200
MARGIN = 0.05
"""Allowed relative difference, where FP32's own seeds are closer to each other than this."""
MODES = {"fp32": PrecisionMode.FP32, "fp16": PrecisionMode.MIXED_FP16, "bf16": PrecisionMode.MIXED_BF16}
_CONTEXT, _LEARNING_RATE = 32, 3e-3
_HELD_OUT_BATCH = 256


def measure(tick: Tick, *, seeds: int = SEEDS, steps: int = STEPS) -> dict[str, object]:
    """Train every seed in every mode; ``tick`` is called after each run.

    Returns:
        For ``fp16`` and ``bf16``: ``delta`` (the worst seed's |relative difference| to FP32's loss of the same seed),
        ``mean_difference`` (signed), ``fp32_seed_spread`` ((max - min) / median over seeds), ``seeds``, ``within``
        (delta <= max(5 %, spread)); and the losses.
    """
    workload = transformer(width=64, layers=2, context=_CONTEXT, batch_size=8)
    held_out = LibraryText(_CONTEXT, root=str(Path(sysconfig.get_path("stdlib")) / "unittest")).batch(
        0, _HELD_OUT_BATCH
    )
    losses: dict[str, list[float]] = {name: [] for name in MODES}
    for seed in range(seeds):
        for name, mode in MODES.items():
            losses[name].append(_train(workload, mode, seed=seed, steps=steps, held_out=held_out))
            tick()
    fp32 = losses["fp32"]
    spread = (max(fp32) - min(fp32)) / statistics.median(fp32)
    result: dict[str, object] = {}
    for name in ("fp16", "bf16"):
        differences = [(mine - base) / base for mine, base in zip(losses[name], fp32, strict=True)]
        delta = max(map(abs, differences))
        result[name] = {
            "delta": round(delta, 5),
            "mean_difference": round(statistics.fmean(differences), 5),
            "fp32_seed_spread": round(spread, 5),
            "seeds": seeds,
            "within": delta <= max(MARGIN, spread),
        }
    return {
        **result,
        "steps": steps,
        "workload": workload.name,
        "held_out_losses": {name: [round(value, 5) for value in values] for name, values in losses.items()},
    }


def _train(workload: Workload, mode: PrecisionMode, *, seed: int, steps: int, held_out: torch.Tensor) -> float:
    task = workload.make(seed)
    trainer = trainer_in(mode, task.model, _LEARNING_RATE)
    for step in range(steps):
        batch = task.batches(step * workload.batch_size, workload.batch_size)
        trainer.backward_and_step(trainer.training_step(batch, task.loss))
    if trainer.mode is not mode:
        raise RuntimeError(
            f"the sentinel left {mode.wire} for {trainer.mode.wire}: this run says nothing of {mode.wire}"
        )
    with torch.no_grad():
        return float(next_byte_loss(task.model, held_out))
