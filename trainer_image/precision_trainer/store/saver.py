"""Rank 0's side of saving: snapshots go to disk in a thread, checkpoints are tagged once they have proven themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import cast

from ..checkpoint.background import Background, Outcome, failure
from ..checkpoint.format import TrainingState
from ..checkpoint.health import HealthTracker
from ..checkpoint.snapshot import Staging
from ..errors import CheckpointError
from ..step.steps import StepRecord
from ..telemetry.metrics import Metrics
from ..values.logs import JsonLog
from .checkpoints import CheckpointStore

PATIENCE_SECONDS = 30.0
"""How long a requested checkpoint, or a rewind, waits for the one that is being written."""
CLOSE_SECONDS = 300.0
"""How long a process that failed waits for what is being written: for a large checkpoint, not for a volume that hangs."""
_SAVE, _TAG = "save", "tag"


class Saver:
    """Writes one checkpoint at a time. Its errors end up in log and metrics, and stop nothing."""

    def __init__(self, store: CheckpointStore, healthy_after_steps: int, log: JsonLog, metrics: Metrics) -> None:
        """Write to ``store``, and tag as healthy what ``healthy_after_steps`` good steps followed."""
        self._store, self._log, self._metrics = store, log, metrics
        self._background, self._staging = Background(), Staging()
        self._health = HealthTracker(healthy_after_steps)
        self._last = threading.Lock()
        """Held while the last checkpoint is written."""
        self.on_disk = -1
        """Step of the newest complete checkpoint; -1 if none is known."""

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written, or a tag."""
        return self._background.busy

    def begin(self, state: TrainingState) -> None:
        """Copy ``state`` and let the thread write the copy; ``state`` may change as soon as this returns."""
        # The same nest comes out that goes in: only the tensors are other ones.
        copy = cast(TrainingState, self._staging.take(state))
        on_probation = self._health.oldest()
        self._health.saved(state["step"])

        def write() -> list[int]:
            self._staging.wait()
            self._store.save(copy, on_probation)
            return [step for step in self._store.steps() if step not in self._store.unproven]

        self._background.submit(_SAVE, state["step"], write)

    def holds(self, step: int) -> bool:
        """Whether the checkpoint of ``step`` is in its place. Waits for the volume."""
        return self._store.path(step).is_dir()

    def observe(self, records: Sequence[StepRecord]) -> None:
        """After each boundary: count good steps, and pick up what the thread finished. Never waits."""
        for record in records:
            self._health.observe(overflow=record.overflow, nonfinite=record.nonfinite)
        self.collect(0.0)
        step = self._health.proven()
        if step is None or self.busy:
            return
        proven, good_steps = step, self._health.good_steps

        def tag() -> list[int]:
            self._store.tag_healthy(proven, good_steps)
            return self._store.steps()

        self._background.submit(_TAG, proven, tag)

    def collect(self, wait_seconds: float | None) -> None:
        """Take in what became of the thread's work, if it ends within ``wait_seconds`` (None: whenever it ends)."""
        outcome = self._background.poll(wait_seconds)
        if outcome is None:
            return
        if outcome.error is not None:
            self.failed(outcome.step, outcome.error)
        elif outcome.name == _TAG:
            self._health.tagged(outcome.step)
            self._metrics.set({"genesis_last_healthy_checkpoint_step": float(outcome.step)})
            self._log.event("checkpoint_healthy", at=outcome.time, step=outcome.step)
        else:
            self._health.only(outcome.steps)
            self._saved(outcome)

    def failed(self, step: int, error: Exception) -> None:
        """The checkpoint of ``step`` is not there, or not tagged; training goes on."""
        self._metrics.add({"genesis_checkpoint_failures": 1.0})
        self._log.error("checkpoint_failed", str(failure(_SAVE, step, error)), step=step)
        self._health.forget(step)

    def write_now(self, state: TrainingState) -> None:
        """Write ``state``, complete on disk when this returns.

        Raises:
            CheckpointError: the disk refuses, or the weights are not finite.
        """
        started = time.monotonic()
        try:
            with self._last:
                self._store.save(state, self._health.oldest())
        except Exception as error:
            self._metrics.add({"genesis_checkpoint_failures": 1.0})
            raise failure(_SAVE, state["step"], error) from error
        self._saved(Outcome(_SAVE, state["step"], [], None, time.time(), time.monotonic() - started))

    def _saved(self, outcome: Outcome) -> None:
        self.on_disk = outcome.step
        self._log.event("checkpoint", at=outcome.time, step=outcome.step, seconds=round(outcome.seconds, 4))
        self._metrics.set(
            {
                "genesis_checkpoint_last_success_timestamp_seconds": outcome.time,
                "genesis_checkpoint_step": float(outcome.step),
                "genesis_checkpoint_seconds": outcome.seconds,
            }
        )

    def resumed(self, step: int, healthy: Sequence[int] | None = None) -> None:
        """Training goes on from the checkpoint of ``step``, which may yet have to prove itself.

        ``healthy``: steps of those that are tagged, newest first; None: look for them, however long the volume takes.
        """
        self.on_disk = step
        self._health.restart(step)
        try:
            healthy = self._store.healthy_steps() if healthy is None else healthy
        except CheckpointError as error:
            healthy = []
            self.failed(step, error)
        if healthy:
            self._metrics.set({"genesis_last_healthy_checkpoint_step": float(healthy[0])})
        if step not in healthy and step not in self._store.unproven:
            self._health.saved(step)

    def close(self) -> None:
        """Wait for what is being written, for CLOSE_SECONDS at most."""
        if self._background.close(CLOSE_SECONDS) and self._last.acquire(timeout=CLOSE_SECONDS):
            self._last.release()
            return
        message = f"it is still being written after {CLOSE_SECONDS:g} s, and left behind; check the volume"
        self._log.error("checkpoint_failed", message)
