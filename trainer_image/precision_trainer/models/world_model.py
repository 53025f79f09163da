"""WorldModel: the RSSM with its data, its optimizer and its precision, as one object to train from a script.

    model = WorldModel()
    model.replay_buffer = collect("CartPole-v1", 50)
    await model.train(num_epochs=1, batch_size=16)

Precision is what the environment says (docs/contract.md): ENABLE_FP16_TRAINING, PRECISION_MODE, FEATURE_FLAGS, FP16_*.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import torch

from ..errors import CheckpointError, ConfigError
from ..precision.config import DISABLED_LINE, FALLBACK_LINE, ExtendedFP16Config, read_boot
from ..precision.modes import PrecisionMode
from ..precision.steps import StepRecord
from ..precision.trainer import ExtendedFP16Trainer
from ..state import plain
from ..telemetry.logs import JsonLog, from_env
from .replay import ReplayBuffer, Sequences
from .rssm import RSSM, Losses, Reading, RssmConfig, State, losses, symexp, symlog
from .task import to_device

LEARNING_RATE = 3e-4


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
        """Read the environment's precision; the network is built at the first training or loading.

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
        self._scaling, self._mode, self._allow = _start(self._log, has_cuda=self.device.type == "cuda")
        self._trainer: ExtendedFP16Trainer | None = None
        self._parts: list[torch.Tensor] = []

    @property
    def fp16_enabled(self) -> bool:
        """True if this process trains in FP16 or BF16."""
        return self._mode is not PrecisionMode.FP32

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
            self._parts.clear()
            while trainer.step < first + steps and not stop.is_set():
                records += trainer.begin_step().records
                batch = self.replay_buffer.batch(trainer.step * batch_size, batch_size)
                trainer.backward_and_step(trainer.training_step(to_device(batch, self.device), self._loss))
            records += trainer.drain().records
            self._record(records, epoch)
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

    def _loss(self, model: torch.nn.Module, batch: object) -> torch.Tensor:
        assert isinstance(batch, Sequences)
        parts = losses(model, batch)
        # Kept on the device: reading them here would make every step wait.
        self._parts.append(torch.stack((parts.total, *parts)).detach())
        return parts.total

    def _record(self, records: list[StepRecord], epoch: int) -> None:
        """Note what the epoch's steps came to; waits for the device once."""
        names = ("loss", *Losses._fields)
        values = torch.stack(self._parts).tolist() if self._parts else []
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
        reading = rssm.imagine(State(states.h[-1], states.z[-1]), actions.to(self.device))
        return Reading(symexp(reading.observations), symexp(reading.rewards), torch.sigmoid(reading.continues))

    def save_checkpoint(self, path: str | Path) -> None:
        """Write one file: weights, optimizer, scaler and sizes, FP32 in every mode. Complete, or not there at all."""
        path, rssm = Path(path), self.rssm
        assert self._trainer is not None
        state = {
            "model_state_dict": rssm.state_dict(),
            "optimizer_state_dict": self._trainer.optimizer.state_dict(),
            "scaler": self._trainer.scaler.state_dict(),
            "config": asdict(rssm.config),
            "step": self._trainer.step,
            "training_history": self.training_history,
        }
        plain.write(path, state)

    def load_checkpoint(self, path: str | Path) -> None:
        """Read a file that :meth:`save_checkpoint` wrote, in whatever mode; or an old one with weights and optimizer only.

        Raises:
            CheckpointError: it is missing, damaged, holds anything but tensors and plain values, or is of another model.
        """
        state = _read(Path(path), self.device)
        config = state.get("config")
        if isinstance(config, dict):
            try:
                self._config = RssmConfig(**config)
            except TypeError as error:
                raise CheckpointError(f"{path}: sizes {config!r} are not this version's: {error}") from None
            self._trainer = None
        else:
            self._log.warning(
                "old_checkpoint", f"{path} says no sizes (an old file): taking those of the replay buffer"
            )
        sizes = (self._config.observation_size, self._config.action_size) if self._config else self.replay_buffer.sizes
        trainer = self._build(*sizes)
        try:
            trainer.model.load_state_dict(state["model_state_dict"])  # type: ignore[arg-type]  # load_state_dict checks it
            trainer.optimizer.load_state_dict(state["optimizer_state_dict"])  # type: ignore[arg-type]
        except (RuntimeError, TypeError, ValueError, KeyError) as error:
            raise CheckpointError(f"{path} does not fit this world model: {error}") from None
        scaler, step, history = state.get("scaler"), state.get("step"), state.get("training_history")
        if isinstance(scaler, dict):
            trainer.scaler.load_state_dict(scaler)
        trainer.step = step if isinstance(step, int) else 0
        self.training_history = list(history) if isinstance(history, list) else []

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
            self._trainer = ExtendedFP16Trainer(
                model, optimizer, self._scaling, self.device, log=self._log, allow_cpu=self._allow
            )
        return self._trainer


def _start(log: JsonLog, *, has_cuda: bool) -> tuple[ExtendedFP16Config, PrecisionMode, bool]:
    """What the environment comes to: configuration, mode, and whether a CPU may train in 16 bits."""
    boot = read_boot(os.environ, has_cuda=has_cuda)
    for message in boot.errors:
        log.error("bad_setting", f"{message}. {FALLBACK_LINE}")
    mode = boot.mode
    if mode is not PrecisionMode.FP32 and boot.low_precision_refused is not None:
        log.warning("fallback", f"{FALLBACK_LINE}: {boot.low_precision_refused}")
        mode = PrecisionMode.FP32
    enabled = mode is not PrecisionMode.FP32
    log.event("settings", message=f"fp16_enabled: {enabled}", mode=mode.wire, source=boot.source)
    return replace(boot.scaling, precision_mode=mode, enabled=enabled), mode, enabled


def _read(path: Path, device: torch.device) -> dict[str, object]:
    try:
        state: object = torch.load(path, map_location=device, weights_only=True)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}; check the path") from error
    except Exception as error:  # noqa: BLE001  (torch raises many kinds for a damaged or hostile file; all mean: refused)
        raise CheckpointError(
            f"{path} is not a checkpoint of tensors and plain values ({str(error).splitlines()[0]}); nothing was loaded"
        ) from None
    for name in ("model_state_dict", "optimizer_state_dict"):
        if not isinstance(state, dict) or not isinstance(state.get(name), dict):
            raise CheckpointError(f"{path}: expected the key {name}, found none; it is no checkpoint of this trainer")
    assert isinstance(state, dict)
    return {str(key): value for key, value in state.items()}
