"""Saving, resuming and rewinding the whole process group: every rank takes part, rank 0 writes.

A checkpoint is a copy of the state in host memory, made at a step boundary; a thread writes it while training goes on. What
became of it shows at a later boundary, and never stops training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from ..checkpoint.format import FORMAT, ModeEntry, TrainingState
from ..checkpoint.optimizer import load_optimizer
from ..checkpoint.rng import as_random_state, random_state, set_random_state
from ..checkpoint.tensors import load_weights, untrained
from ..distributed import process_group
from ..errors import MAX_ERROR, CheckpointError
from ..precision.trainer import ExtendedFP16Trainer
from ..step.steps import StepRecord
from ..telemetry.metrics import Metrics
from ..telemetry.progress import Progress
from ..values.logs import JsonLog
from ..values.modes import PrecisionMode
from . import choice
from .agree import Limit, load_together, wait_together, work_together
from .checkpoints import CheckpointStore, Loaded
from .saver import PATIENCE_SECONDS, Saver

_HISTORY = 200
"""Mode changes kept; the oldest go first."""
HEALTHY_AFTER_STEPS = 50
REWIND_SECONDS = 300.0
"""How long a rewind waits for the volume, for each thing it does there: for a large checkpoint, not for one that hangs."""


class CheckpointPart(Protocol):
    """Something that keeps its own state beside the weights (sentinel, baseline…)."""

    def state_dict(self) -> dict[str, object]:
        """Plain values only: numbers, texts, lists, dictionaries, tensors."""

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take over what :meth:`state_dict` gave."""


class Checkpointer:
    """Knows what belongs into a checkpoint besides the weights. All methods are called by all ranks at the same step."""

    def __init__(
        self,
        trainer: ExtendedFP16Trainer,
        store: CheckpointStore | None,
        fingerprint: str,
        samples_per_step: int,
        *,
        log: JsonLog,
        metrics: Metrics | None = None,
        healthy_after_steps: int = HEALTHY_AFTER_STEPS,
        collective_seconds: float = 120.0,
    ) -> None:
        """Keep ``trainer``'s state in ``store`` (None: nothing outlives the process, and there is nothing to rewind to).

        A rank waits ``collective_seconds`` in a collective for the others before it gives up.
        """
        self._trainer, self._store, self._log = trainer, store, log
        self._collective_seconds = collective_seconds
        self._metrics = metrics or Metrics()
        self._fingerprint = fingerprint
        self._samples_per_step = samples_per_step
        self._offset = 0
        writes = store is not None and trainer.rank == 0
        self._saver = Saver(store, healthy_after_steps, log, self._metrics) if writes and store is not None else None
        self._parts: dict[str, CheckpointPart] = {}
        self._rewind_limit = Limit(REWIND_SECONDS)
        self._begun_at = -1
        """Step of the checkpoint this process went on from last; -1 if none."""
        self.progress = Progress()
        self.history: list[ModeEntry] = []
        self.saved_step = 0
        """Step of the last checkpoint begun or resumed from; 0 if none. The same on all ranks."""

    @property
    def samples(self) -> int:
        """Position in the data stream of the step about to begin: samples that went before it."""
        return self._offset + self._trainer.step * self._samples_per_step

    def attach(self, name: str, part: CheckpointPart) -> None:
        """Keep ``part`` with every checkpoint, as rank 0 has it; before :meth:`resume`, which gives it back to all ranks.

        A rewind leaves parts as they are: what was learned about the fault must not be unlearned.
        """
        self._parts[name] = part

    def remember(self, mode: PrecisionMode, generation: int, source: str, at: float) -> None:
        """Add ``mode``, in force from the step about to begin on, to the history; ``source`` decided it."""
        step = self._trainer.step
        self.history.append({"step": step, "mode": mode.wire, "generation": generation, "source": source, "time": at})

    # --- from disk ----------------------------------------------------------------------------------------------------

    def resume(self, *, resume_from: str = "", rewind_generation: int = 0) -> int:
        """Load the newest good checkpoint, the same on all ranks, and say so; nothing if there is none.

        Args:
            resume_from: a checkpoint, or a plain file of another program, to begin from where the directory has none.
            rewind_generation: of a request to rewind that waits at start; it is carried out if the newest checkpoint was
                made before it. 0: none.

        Returns:
            Generation under which the checkpoint was made: requests up to it are in its state. 0 without one.

        Raises:
            CheckpointError: none can be used, or a rank cannot read the one that rank 0 chose.
        """
        store = self._store
        loaded = None
        if store is not None:
            loaded = load_together(
                store,
                self._trainer,
                lambda: choice.to_start(store, self._trainer, rewind_generation, self._log),
                collective_seconds=self._collective_seconds,
            )
        if loaded is None:
            if resume_from:
                choice.begin_from(Path(resume_from), self._trainer, self._log)
            return 0
        state = loaded.state
        self._apply(state)
        self.history = list(state["mode_history"])
        self._give_back(state.get("parts", {}))
        choice.tell_differences(state, self._trainer, self._fingerprint, self._log)
        self._log.event(
            "resumed",
            step=state["step"],
            path=str(loaded.path),
            saved_mode=state["mode"],
            mode=self._trainer.mode.wire,
        )
        return state["generation"]

    def _give_back(self, kept: Mapping[str, dict[str, object]]) -> None:
        """What others kept with the checkpoint. Each begins anew where its own is unreadable: training does not need it."""
        for name, part in self._parts.items():
            if name in kept:
                try:
                    part.load_state_dict(kept[name])
                except Exception as error:  # noqa: BLE001  (whatever the content makes it raise)
                    self._log.warning(
                        "checkpoint_part_unreadable",
                        f"expected what {name} keeps in a checkpoint, found something else ({type(error).__name__}: "
                        f"{str(error)[:MAX_ERROR]}); {name} begins anew",
                    )

    def _apply(self, state: TrainingState, *, rewind: bool = False) -> None:
        trainer = self._trainer
        load_weights(trainer.model, state["model_state_dict"])
        load_optimizer(trainer.optimizer, state["optimizer_state_dict"], keep_learning_rate=True)
        (trainer.scaler.rewind if rewind else trainer.scaler.load_state_dict)(state["scaler"])
        trainer.step = step = state["step"]
        self._offset = state["samples"] - step * self._samples_per_step
        self.progress.load_state_dict(state["progress"])
        self.saved_step = self._begun_at = step
        if self._saver is not None:
            # The rewind has just looked: here the volume might hang.
            self._saver.resumed(step, [step] if rewind else None)
        if trainer.rank < len(state["rng"]):
            set_random_state(state["rng"][trainer.rank])

    def rewind(self, reason: str, *, skip_data: bool = False) -> int | None:
        """Go back, in this process, to the newest checkpoint tagged healthy: weights, optimizer, scaler, data, random state.

        All ranks call it at the same boundary, after ``trainer.drain()``; a mode change agreed there comes first and stays.
        Checkpoints after that step are put aside. Attached parts, mode, generation and the history stay as they are.

        Args:
            reason: for log and history, e.g. ``request`` or ``sentinel``.
            skip_data: go on with the data after those that led here, instead of going through them again.

        Returns:
            The step that comes next; None (and ``rewind_failed`` in the log) if there is nothing to go back to. Then
            nothing was changed.
        """
        store, trainer, started = self._store, self._trainer, time.monotonic()
        before, samples = trainer.step, self.samples
        try:
            if store is None:
                raise CheckpointError("there is no checkpoint directory; set --checkpoint-dir")
            loaded = self._load_healthy(store, reason)
        except CheckpointError as error:
            self._log.error("rewind_failed", str(error), step=before, reason=reason)
            self._metrics.add({"genesis_rewind_failures": 1.0})
            return None
        self._apply(loaded.state, rewind=True)
        trainer.rewound()
        if skip_data:
            self._offset += samples - self.samples
        step, now = trainer.step, time.time()
        self.remember(trainer.mode, trainer.generation, f"rewind: {reason}", now)
        self._metrics.add({"genesis_rewinds": 1.0}, {"genesis_training_step": float(step)})
        self._log.event(
            "rewound",
            at=now,
            step=step,
            reason=reason,
            path=str(loaded.path),
            seconds=round(time.monotonic() - started, 4),
            **{"from": before},
        )
        return step

    def _load_healthy(self, store: CheckpointStore, reason: str) -> Loaded:
        """What a rewind does on the volume. Raises CheckpointError, on all ranks."""
        trainer, saver, seconds = self._trainer, self._saver, self._collective_seconds
        message = f"training waits for the newest healthy checkpoint, for {REWIND_SECONDS:g} s where the volume hangs"
        self._log.event("rewinding", step=trainer.step, reason=reason, message=message)
        if any(one["hangs"] for one in process_group.exchange({"hangs": self._rewind_limit.hangs})):
            raise CheckpointError(
                "the volume has not answered since the rewind before; check that it is mounted and responds"
            )
        limit = self._rewind_limit = Limit(REWIND_SECONDS, self._metrics.starting)
        limit.begin(None)
        if not wait_together(partial(_rests, saver, math.inf), seconds, limit):
            # It would land after the others were put aside, as the newest.
            raise CheckpointError(f"a checkpoint is still being written after {REWIND_SECONDS:g} s; check the volume")
        loaded = load_together(
            store,
            trainer,
            lambda: choice.to_rewind(store, trainer),
            collective_seconds=seconds,
            settle=lambda step: store.reject_after(step, limit.permit),
            limit=limit,
        )
        assert loaded is not None
        return loaded

    # --- to disk ------------------------------------------------------------------------------------------------------

    def save(self, *, patient: bool = False) -> None:
        """Begin a checkpoint of the current step: copy the state, and let a thread write it.

        Args:
            patient: somebody asked for this one, so wait (for PATIENCE_SECONDS) while another is written. Otherwise it is
                left out then, so that a slow disk never holds training up.
        """
        trainer, saver, started = self._trainer, self._saver, time.monotonic()
        if self._store is None:
            return
        if patient:
            wait_together(partial(_rests, saver, started + PATIENCE_SECONDS), self._collective_seconds)
        elif saver is not None:
            saver.collect(0.0)
        everyone = process_group.exchange({"rng": random_state(), "busy": saver is not None and saver.busy})
        if everyone[0]["busy"]:
            if saver is not None:
                message = "left out: the one before is still being written; check the volume, or save less often"
                self._log.warning("checkpoint_skipped", message, step=trainer.step)
            return
        self.saved_step = trainer.step
        if saver is not None:
            try:
                saver.begin(self._state(everyone))
            except Exception as error:  # noqa: BLE001  (no memory for the copy, a state_dict that fails: training goes on)
                saver.failed(trainer.step, error)
            self._metrics.set({"genesis_checkpoint_step_added_seconds": time.monotonic() - started})

    def observe(self, records: Sequence[StepRecord]) -> None:
        """After each boundary, with what was read there. Never waits."""
        if self._saver is not None:
            self._saver.observe(records)

    def finish(self) -> None:
        """At a stop: no rank goes on, or exits, before the current step is complete on disk.

        Raises:
            CheckpointError: it cannot be saved.
        """
        trainer, saver, started = self._trainer, self._saver, time.monotonic()
        step = trainer.step
        if self._store is None or step == self._begun_at:
            return
        everyone = process_group.exchange({"rng": random_state()})

        def write() -> str | None:
            assert saver is not None
            saver.collect(None)
            try:
                # Where it was, the directory may be gone, or have been put aside.
                if saver.on_disk != step or not saver.holds(step):
                    saver.write_now(self._state(everyone))
            except Exception as error:  # noqa: BLE001  (the other ranks wait to be told)
                return str(error)
            return None

        error = work_together(write if saver is not None else None, self._collective_seconds)
        refused = process_group.exchange({"error": error})[0]["error"]
        if refused is not None:
            raise CheckpointError(str(refused))
        self.saved_step = step
        if saver is None:
            self._log.event("checkpoint", step=step, seconds=round(time.monotonic() - started, 4))

    def _state(self, everyone: Sequence[dict[str, object]]) -> TrainingState:
        trainer = self._trainer
        return {
            "format": FORMAT,
            "step": trainer.step,
            "samples": self.samples,
            "model_state_dict": trainer.model.state_dict(),
            "optimizer_state_dict": trainer.optimizer.state_dict(),
            "scaler": trainer.scaler.state_dict(),
            "rng": [as_random_state(one["rng"]) for one in everyone],
            "mode": trainer.mode.wire,
            # Also of a request that was refused: a start must not carry it out once more.
            "generation": trainer.modes.newest,
            "mode_history": self.history[-_HISTORY:],
            "progress": self.progress.state_dict(),
            "data_fingerprint": self._fingerprint,
            "nonfinite_buffers": sorted(trainer.nonfinite_buffers),
            "untrained": sorted(untrained(trainer.model)),
            "other_types": sorted(trainer.other_types),
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
        }

    def close(self) -> None:
        """Wait for what is being written, but not for a volume that hangs. Also after an error."""
        if self._saver is not None:
            self._saver.close()


def _rests(saver: Saver | None, until: float, wait_seconds: float) -> bool:
    """Whether nothing is being written any more, after ``wait_seconds`` at most; from ``until`` on that does not matter."""
    if saver is None:
        return True
    saver.collect(max(0.0, min(wait_seconds, until - time.monotonic())))
    return not saver.busy or time.monotonic() >= until
