"""Training steps in FP32 and BF16, in turns; and what a forward pass keeps for its backward pass."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from precision_trainer.precision.trainer import ExtendedFP16Trainer
from precision_trainer.values.config import ExtendedFP16Config
from precision_trainer.values.modes import PrecisionMode

from .ours import QuietLog
from .rounds import Step, Tick, interleave
from .workloads import Workload

ROUNDS, STEPS, WARM_UP = 7, 1, 2
MODES = {"fp32": PrecisionMode.FP32, "bf16": PrecisionMode.MIXED_BF16}


def trainer_in(mode: PrecisionMode, model: torch.nn.Module, learning_rate: float = 1e-3) -> ExtendedFP16Trainer:
    """A trainer over ``model`` with fused AdamW; FP16 and BF16 are allowed on a CPU."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, fused=True)
    return ExtendedFP16Trainer(
        model, optimizer, ExtendedFP16Config(precision_mode=mode, allow_tf32=False), log=QuietLog(), allow_cpu=True
    )


@dataclass(frozen=True, slots=True)
class Speeds:
    """Step times of one workload in several modes, taken in turns."""

    workload: str
    threads: int
    seconds: dict[str, list[float]]
    """Mode -> seconds a step, one value a round."""

    def speedup(self, mode: str) -> float:
        """Median over the rounds of FP32's step time over that of ``mode``: above 1 is faster than FP32."""
        return round(statistics.median(self._ratios(mode)), 3)

    def _ratios(self, mode: str) -> list[float]:
        return [fp32 / mine for fp32, mine in zip(self.seconds["fp32"], self.seconds[mode], strict=True)]

    def to_wire(self) -> dict[str, object]:
        """For a report."""
        others = [mode for mode in self.seconds if mode != "fp32"]
        return {
            "workload": self.workload,
            "threads": self.threads,
            "speedup_low_high": {
                mode: [round(min(self._ratios(mode)), 3), round(max(self._ratios(mode)), 3)] for mode in others
            },
            "rounds_seconds": {mode: [round(value, 5) for value in values] for mode, values in self.seconds.items()},
        }


def measure(
    workload: Workload, tick: Tick, *, modes: Mapping[str, PrecisionMode] = MODES, rounds: int = ROUNDS
) -> Speeds:
    """Time steps on the CPU, with as many threads as torch has now; ``tick`` is called after every round."""
    contenders = {name: _step(workload, mode) for name, mode in modes.items()}
    timed = interleave(contenders, rounds=rounds, steps=STEPS, warm_up=WARM_UP, tick=tick)
    return Speeds(workload.name, torch.get_num_threads(), timed.wall)


def _step(workload: Workload, mode: PrecisionMode) -> Step:
    task = workload.make(0)
    trainer = trainer_in(mode, task.model)

    def step() -> None:
        batch = task.batches(trainer.step * workload.batch_size, workload.batch_size)
        trainer.backward_and_step(trainer.training_step(batch, task.loss))

    return step


def activation_bytes(workload: Workload, mode: PrecisionMode) -> int:
    """Bytes that a forward pass in ``mode`` keeps for the backward pass, each storage once, parameters left out."""
    task = workload.make(0)
    trainer = trainer_in(mode, task.model)
    return kept_bytes(task.model, lambda: trainer.training_step(task.batches(0, workload.batch_size), task.loss))


def kept_bytes(model: torch.nn.Module, forward: Callable[[], object]) -> int:
    """Bytes that ``forward`` saves for the backward pass, each storage once, the model's parameters left out."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    # The storages are held until the end: a freed one's address would be given out again and counted once.
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(storage.nbytes() for storage in kept.values())


def state_bytes(workload: Workload) -> int:
    """Bytes of parameters, gradients and AdamW's two moments: FP32 in every mode, 16 a parameter."""
    return sum(16 * parameter.numel() for parameter in workload.make(0).model.parameters())
