"""WorldModel: the RSSM with its data, its optimizer and its precision, as one object to train from a script.

    model = WorldModel()
    model.replay_buffer = collect("CartPole-v1", 50)
    await model.train(num_epochs=1, batch_size=16)

Precision is what the request file says, also while it trains, or else the environment (docs/contract.md):
ENABLE_FP16_TRAINING, PRECISION_MODE, FEATURE_FLAGS, FP16_*.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from ..errors import CheckpointError, ConfigError
from ..precision.boot import Requests, Start
from ..precision.trainer import ExtendedFP16Trainer
from ..step.steps import Boundary, StepRecord
from ..telemetry.changes import tell_change
from ..values.config import DISABLED_LINE, read_boot
from ..values.logs import JsonLog, from_env
from ..values.modes import PrecisionMode
from . import world_state
from .replay import ReplayBuffer, Sequences
from .rssm import RSSM, Losses, Reading, RssmConfig, RssmState, losses, symexp, symlog, world_model_loss
from .task import to_device

LEARNING_RATE = 3e-4
MAX_GRAD_NORM = 1.0
"""Of the global gradient norm: rewards and falls make single batches of trajectories much steeper than the rest."""


class WorldModel:
    """A latent-dynamics model of one environment; trains in one process."""

    def __init__(
        self,
        config: RssmConfig | None = None,
        *,
        learning_rate: float = LEARNING_RATE,
        device: torch.device | str | None = None,
        log: JsonLog | None = None,
    ) -> None:
        """Read the precision to start in; the network is built at the first training or loading.

        Args:
            config: sizes; observation and action sizes of the replay buffer, and the defaults, if None.
            learning_rate: of AdamW.
            device: CUDA where there is one, if None.
            log: where the start decision is said.
        """
        self.replay_buffer = ReplayBuffer()
        self.training_history: list[dict[str, float]] = []
        """One entry a step: epoch, step, loss, its parts, and whether the update was left out (``skipped``, 0 or 1)."""
        self._config, self._learning_rate = config, learning_rate
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._log = log or from_env()
        boot = read_boot(os.environ, has_cuda=self.device.type == "cuda")
        self._requests = Requests(boot, self._refused, os.environ)
        self._start = self._requests.start(self._log)
        self._scaling = boot.scaling
        self._trainer: ExtendedFP16Trainer | None = None
        self._seen: torch.Tensor | None = None
        self._samples = 0
        """Sequences drawn: position in the buffer's stream."""

    @property
    def fp16_enabled(self) -> bool:
        """True if this process trains in FP16 or BF16 now."""
        return (self._trainer or self._start).mode is not PrecisionMode.FP32

    @property
    def _fp16_stats(self) -> Mapping[str, object] | None:
        """``get_stats()`` of the trainer; None in FP32 and before the first step."""
        if self._trainer is None or not self.fp16_enabled:
            return None
        return self._trainer.get_stats()

    @property
    def rssm(self) -> RSSM:
        """The network. Raises ConfigError before the first training or loading."""
        if self._trainer is None or not isinstance(self._trainer.model, RSSM):
            raise ConfigError("the world model is not built yet: fill replay_buffer and train, or load a checkpoint")
        return self._trainer.model

    async def train(self, num_epochs: int = 1, batch_size: int = 16) -> list[dict[str, float]]:
        """Train for some epochs; the event loop goes on meanwhile.

        An epoch is as many steps as it takes to draw as many observations as the buffer holds. Cancelling ends after the
        step under way.

        Returns:
            The entries added to :attr:`training_history`.

        Raises:
            ConfigError: too little data, or data of another size than the model's.
        """
        if num_epochs < 1 or batch_size < 1:
            raise ConfigError(f"num_epochs={num_epochs}, batch_size={batch_size}: expected whole numbers from 1 up")
        trainer = self._build(*self.replay_buffer.sizes)
        before = len(self.training_history)
        steps = max(1, math.ceil(self.replay_buffer.steps / (batch_size * self.replay_buffer.length)))
        stop = threading.Event()
        work = asyncio.create_task(asyncio.to_thread(self._train, trainer, (num_epochs, steps, batch_size), stop))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            # The thread cannot be cancelled; who asked must not find it still at work afterwards.
            stop.set()
            await work
            raise
        if not self.fp16_enabled:
            self._log.event("world_model", message=DISABLED_LINE)
        self._log.event(
            "complete", message="training complete", step=trainer.step, loss=self.training_history[-1]["loss"]
        )
        return self.training_history[before:]

    def _train(self, trainer: ExtendedFP16Trainer, size: tuple[int, int, int], stop: threading.Event) -> None:
        epochs, steps, batch_size = size
        done = {int(entry["epoch"]) for entry in self.training_history}
        for epoch in range(max(done, default=-1) + 1, max(done, default=-1) + 1 + epochs):
            first, started = trainer.step, time.monotonic()
            records: list[StepRecord] = []
            parts: list[torch.Tensor] = []
            while trainer.step < first + steps and not stop.is_set():
                records += self._boundary(trainer, trainer.begin_step())
                batch = self.replay_buffer.batch(self._samples, batch_size)
                self._samples += batch_size
                loss = trainer.training_step(to_device(batch, self.device), self._loss, world_model_loss)
                assert self._seen is not None
                parts.append(self._seen)
                trainer.backward_and_step(loss)
            records += self._boundary(trainer, trainer.drain())
            self._record(records, parts, epoch)
            if stop.is_set():
                return
            entries = self.training_history[-steps:]
            self._log.event(
                "epoch",
                epoch=epoch,
                step=trainer.step,
                mode=trainer.mode.wire,
                loss=sum(entry["loss"] for entry in entries) / steps,
                seconds=round(time.monotonic() - started, 3),
            )

    def _loss(self, model: torch.nn.Module, batch: Sequences) -> torch.Tensor:
        parts = losses(model, batch)
        # Kept on the device: reading them here would make every step wait.
        self._seen = torch.stack((parts.total, *parts)).detach()
        return parts.total

    def _boundary(self, trainer: ExtendedFP16Trainer, boundary: Boundary) -> tuple[StepRecord, ...]:
        """Say what was agreed; returns what was read."""
        if boundary.change is not None:
            tell_change(self._log, boundary.change, loss_scale=float(trainer.scaler.scale_value.item()))
        if boundary.checkpoint or boundary.rewind:
            self._log.warning(
                "request_part_ignored",
                "a world model keeps no checkpoints by itself: call save_checkpoint and load_checkpoint, or train it with "
                "precision-trainer train world-model",
                step=boundary.step,
            )
        return boundary.records

    def _refused(self, reason: str, message: str) -> None:
        self._log.warning("request_refused", message, reason=reason)

    def _record(self, records: list[StepRecord], seen: list[torch.Tensor], epoch: int) -> None:
        """Note what the epoch's steps came to; waits for the device once."""
        names = ("loss", *Losses._fields)
        values = torch.stack(seen).tolist() if seen else []
        for record, parts in zip(records, values, strict=True):
            entry = {"epoch": float(epoch), "step": float(record.step), "skipped": float(record.skipped)}
            self.training_history.append(entry | dict(zip(names, parts, strict=True)))

    @torch.no_grad()
    def predict(self, seen: Sequences, actions: torch.Tensor) -> Reading:
        """Watch ``seen`` [T, B, ...], then foresee what ``actions`` [H, B, A] lead to.

        Returns:
            Observations [H, B, O] and rewards [H, B] as the environment counts them, and the probability to continue.
        """
        rssm = self.rssm
        seen = Sequences(*(part.to(self.device) for part in seen))
        states, _ = rssm.observe(rssm.encoder(symlog(seen.observations)), seen)
        reading = rssm.imagine(RssmState(states.h[-1], states.z[-1]), actions.to(self.device))
        return Reading(symexp(reading.observations), symexp(reading.rewards), torch.sigmoid(reading.continues))

    def save_checkpoint(self, path: str | Path) -> None:
        """Write one file in the layout of all checkpoints (world_state.py), FP32 in every mode. Complete, or not there.

        Raises:
            CheckpointError: the disk refuses, or the weights are not finite.
        """
        rssm = self.rssm
        assert self._trainer is not None
        fingerprint = self.replay_buffer.fingerprint if self.replay_buffer.steps else ""
        world_state.save(
            Path(path),
            self._trainer,
            rssm.config,
            history=self.training_history,
            samples=self._samples,
            fingerprint=fingerprint,
        )

    def load_checkpoint(self, path: str | Path) -> None:
        """Read a file that :meth:`save_checkpoint` wrote, in whatever mode; a checkpoint directory of ``train world-model``;
        or an old file with weights and optimizer only.

        Raises:
            CheckpointError: it is missing, damaged, holds anything but tensors and plain values, or is of another model.
                Then this model is what it was.
        """
        saved = world_state.read(Path(path))
        if saved.state is None or saved.config is None:
            self._log.warning(
                "old_checkpoint",
                f"{path} says no sizes (not a world model's own): taking this model's, or the buffer's",
            )
        before = self._config, self._trainer
        if saved.config is not None and saved.config != self._config:
            if self._trainer is not None:
                self._start = Start(self._trainer.requested_mode, self._start.source, self._trainer.applied)
            self._config, self._trainer = saved.config, None
        sizes = (self._config.observation_size, self._config.action_size) if self._config else self.replay_buffer.sizes
        try:
            trainer = self._build(*sizes)
            world_state.apply(saved, trainer)
        except CheckpointError:
            self._config, self._trainer = before
            raise
        if saved.state is not None and trainer.applied is not None and saved.state["generation"] < trainer.generation:
            trainer.modes.tune(trainer.applied)  # the scaler's state is from before that request
        self._samples = saved.state["samples"] if saved.state is not None else 0
        self.training_history = saved.history

    def _build(self, observation_size: int, action_size: int) -> ExtendedFP16Trainer:
        """The trainer over the network; built once, then checked to be for these sizes."""
        config = self._config or RssmConfig(observation_size=observation_size, action_size=action_size)
        if (config.observation_size, config.action_size) != (observation_size, action_size):
            raise ConfigError(
                f"observation and action sizes ({observation_size}, {action_size}): expected "
                f"({config.observation_size}, {config.action_size}), this model's; make a new WorldModel for other data"
            )
        self._config = config
        if self._trainer is None:
            model = RSSM(config).to(self.device)
            optimizer = torch.optim.AdamW(model.parameters(), lr=self._learning_rate, fused=True)
            mode = self._start.mode
            settings = replace(
                self._scaling,
                precision_mode=mode,
                enabled=mode is not PrecisionMode.FP32,
                max_grad_norm=MAX_GRAD_NORM,
            )
            trainer = ExtendedFP16Trainer(model, optimizer, settings, self.device, log=self._log, allow_cpu=True)
            trainer.modes.applied = self._start.request
            if self._start.request is not None:
                trainer.modes.tune(self._start.request)
            trainer.request_source = self._requests.source(lambda: trainer.applied)
            self._trainer = trainer
        return self._trainer
