"""The benchmarks of the production guide: the world model in every mode, on trajectories that anyone can make again.

Modes take turns epoch by epoch, so that a busy machine hurts all alike. Every row says which mode was asked for and which
one really ran, from the step records: a run that fell back to FP32 is not a measurement of FP16.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from precision_trainer.models.replay import ReplayBuffer, Sequences, Trajectory
from precision_trainer.models.rssm import RSSM, RssmConfig, world_model_loss
from precision_trainer.models.task import to_device
from precision_trainer.step.steps import StepRecord
from precision_trainer.values.modes import PrecisionMode

from .rounds import Tick
from .speed import kept_bytes, trainer_in

OBSERVATIONS, ACTIONS, LENGTH, BATCH = 8, 2, 32, 16
HELD_OUT = 32
"""Trajectories that no scenario trains on."""
LEARNING_RATE = 1e-3


@dataclass(frozen=True, slots=True)
class Scenario:
    """So many trajectories, so many times."""

    name: str
    trajectories: int
    epochs: int

    @property
    def steps_per_epoch(self) -> int:
        """Steps that draw as many observations as there are."""
        return math.ceil(self.trajectories * (LENGTH + 1) / (BATCH * LENGTH))


WARM_UP, STANDARD, STRESS = Scenario("warmup", 128, 1), Scenario("standard", 256, 3), Scenario("stress", 512, 5)
BASIC, COMPREHENSIVE = (WARM_UP, STANDARD), (WARM_UP, STANDARD, STRESS)
QUICK_DIVISOR = 8
MODES = (PrecisionMode.FP32, PrecisionMode.MIXED_FP16, PrecisionMode.MIXED_BF16)


def quick(scenarios: Sequence[Scenario]) -> tuple[Scenario, ...]:
    """The same with an eighth of the trajectories, for a machine that has no hour; every row shows how many there were."""
    return tuple(replace(one, trajectories=one.trajectories // QUICK_DIVISOR) for one in scenarios)


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario in one mode."""

    scenario: str
    trajectories: int
    epochs: int
    asked: str
    ran: str
    """Modes of the step records, joined by ``+`` where there were several."""
    device: str
    seconds: float
    samples_per_second: float
    """Sequences."""
    speedup: float
    """FP32's seconds over these."""
    final_loss: float
    """Mean over the last epoch, as trained."""
    held_out_loss: float
    """In FP32, on trajectories not trained on."""
    degradation_percent: float
    """Of the held-out loss against FP32's; below 0 is better than FP32."""
    overflow_percent: float
    activation_bytes: int
    state_bytes: int
    losses: tuple[float, ...] = field(repr=False)
    """Of every step."""


def trajectories(count: int, seed: int) -> list[Trajectory]:
    """A damped linear system pushed by random actions: the same trajectories for the same seed, on every machine."""
    generator = torch.Generator().manual_seed(seed)
    system = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(OBSERVATIONS, OBSERVATIONS, generator=system))[0] * 0.97
    push = torch.randn(ACTIONS, OBSERVATIONS, generator=system) * 0.3
    made: list[Trajectory] = []
    for _ in range(count):
        state = torch.randn(OBSERVATIONS, generator=generator)
        actions = torch.randn(LENGTH, ACTIONS, generator=generator)
        seen = [state]
        for action in actions:
            state = state @ turn + action @ push + 0.02 * torch.randn(OBSERVATIONS, generator=generator)
            seen.append(state)
        observations = torch.stack(seen)
        made.append(Trajectory(observations, actions, -observations[1:].square().mean(1), terminated=False))
    return made


def buffer(count: int, seed: int) -> ReplayBuffer:
    """``count`` trajectories, ready to draw from."""
    filled = ReplayBuffer(LENGTH)
    for trajectory in trajectories(count, seed):
        filled.add(trajectory)
    return filled


class _Run:
    """One mode of one scenario under way."""

    def __init__(self, scenario: Scenario, mode: PrecisionMode, data: ReplayBuffer, device: torch.device) -> None:
        torch.manual_seed(0)
        model = RSSM(RssmConfig(observation_size=OBSERVATIONS, action_size=ACTIONS)).to(device)
        self.scenario, self.mode, self.data, self.device = scenario, mode, data, device
        self.trainer = trainer_in(mode, model, LEARNING_RATE)
        # A trainer of its own: this forward pass is never followed by a backward pass.
        other = trainer_in(mode, model, LEARNING_RATE)
        self.activation_bytes = kept_bytes(model, lambda: other.training_step(self.batch(0), world_model_loss))
        self.records: list[StepRecord] = []
        self.seconds = 0.0

    def batch(self, position: int) -> Sequences:
        batch = to_device(self.data.batch(position, BATCH), self.device)
        assert isinstance(batch, Sequences)
        return batch

    def epoch(self) -> None:
        # The same noise in every mode: the model samples its latent state.
        torch.manual_seed(1 + self.trainer.step)
        started = time.perf_counter()
        for _ in range(self.scenario.steps_per_epoch):
            self.records += self.trainer.begin_step().records
            loss = self.trainer.training_step(self.batch(self.trainer.step * BATCH), world_model_loss)
            self.trainer.backward_and_step(loss)
        self.records += self.trainer.drain().records  # waits for the device
        self.seconds += time.perf_counter() - started


def measure(scenarios: Sequence[Scenario], tick: Tick, *, modes: Sequence[PrecisionMode] = MODES) -> list[Row]:
    """Train every scenario in every mode, FP32 among them; ``tick`` is called after every epoch of every mode."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    held_out = to_device(buffer(HELD_OUT, seed=1).batch(0, HELD_OUT), device)
    assert isinstance(held_out, Sequences)
    rows: list[Row] = []
    for scenario in scenarios:
        data = buffer(scenario.trajectories, seed=2)
        runs = [_Run(scenario, mode, data, device) for mode in modes]
        for number in range(scenario.epochs):
            for run in runs if number % 2 == 0 else reversed(runs):
                run.epoch()
                tick()
        rows += _rows(scenario, runs, held_out)
    return rows


def _rows(scenario: Scenario, runs: Sequence[_Run], held_out: Sequences) -> list[Row]:
    losses = {run.mode: _loss(run, held_out) for run in runs}
    fp32 = next(run for run in runs if run.mode is PrecisionMode.FP32)
    base = losses[PrecisionMode.FP32]
    rows: list[Row] = []
    for run in runs:
        tried, seen = len(run.records), tuple(record.loss for record in run.records)
        rows.append(
            Row(
                scenario=scenario.name,
                trajectories=scenario.trajectories,
                epochs=scenario.epochs,
                asked=run.mode.wire,
                ran="+".join(sorted({record.mode.wire for record in run.records})),
                device=run.device.type,
                seconds=run.seconds,
                samples_per_second=tried * BATCH / run.seconds,
                speedup=fp32.seconds / run.seconds,
                final_loss=sum(seen[-scenario.steps_per_epoch :]) / scenario.steps_per_epoch,
                held_out_loss=losses[run.mode],
                degradation_percent=100 * (losses[run.mode] - base) / abs(base),
                overflow_percent=100 * sum(record.overflow for record in run.records) / tried,
                activation_bytes=run.activation_bytes,
                state_bytes=sum(16 * parameter.numel() for parameter in run.trainer.model.parameters()),
                losses=seen,
            )
        )
    return rows


def _loss(run: _Run, held_out: Sequences) -> float:
    torch.manual_seed(0)
    with torch.no_grad():
        return float(world_model_loss(run.trainer.model, held_out))
