"""The checkpoints of one workload: one canonical FP32 layout, complete or absent, and checked before they are read.

The layout is the same for all precision modes, so loading in another mode changes no weight. Kept are the newest few and,
beyond those, the newest one that is tagged healthy: what a rewind goes back to is never dropped.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ..checkpoint import files
from ..checkpoint.format import TrainingState, check_model, validate
from ..checkpoint.nest import as_saved, check_loads
from ..checkpoint.optimizer import check_optimizer
from ..checkpoint.tensors import is_mask
from ..errors import MAX_ERROR, CheckpointError, UnreadableError
from ..values.logs import JsonLog
from .lease import Lease

KEEP = 2
_NAME = re.compile(r"step-(\d{12})")
_REJECTED = "rejected-"
_MAX_NAMES = 100
"""Of what became inf, that a checkpoint says."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checkpoint that passed all checks."""

    path: Path
    state: TrainingState


class CheckpointStore:
    """The checkpoints of one workload, in one directory. Only rank 0 writes."""

    def __init__(self, directory: str, log: JsonLog, keep: int = KEEP, *, lease: Lease | None = None) -> None:
        """Of ``directory``. With a ``lease`` nothing is written while that is not held."""
        self._root = Path(directory)
        self._log = log
        self._keep = keep
        self._lease = lease
        self._left: dict[int, int] = {}
        """Checkpoints as this process left them, or found them at its start; see :meth:`_contents`."""
        self.unproven: set[int] = set()
        """Steps of the checkpoints that must not be tagged healthy, of those that were written or read here."""
        self._unproven_told = False
        if lease is not None:
            lease.unchanged = lambda: self._contents().items() <= self._left.items()

    def path(self, step: int) -> Path:
        """Where the checkpoint of ``step`` is, or would be."""
        return self._root / f"step-{step:012d}"

    def steps(self) -> list[int]:
        """Steps of the checkpoints there, newest first; whether they are good shows when they are loaded.

        Raises:
            UnreadableError: the disk does not list them.
        """
        with files.reading(self._root):
            try:
                names = [entry.name for entry in self._root.iterdir()]
            except (FileNotFoundError, NotADirectoryError):
                return []
        found = map(_NAME.fullmatch, names)
        return sorted((int(match.group(1)) for match in found if match), reverse=True)

    def healthy_steps(self) -> list[int]:
        """Steps of the checkpoints tagged healthy, newest first."""
        return [step for step in self.steps() if files.is_healthy(self.path(step))]

    def begin(self) -> None:
        """Look at what is there, and remove what a killed writer left behind. Rank 0, at start, with the lease.

        Raises:
            CheckpointError: the volume does not store a lease, and holds no checkpoint to go on from: a mistake in the
                configuration. With one, training goes on; a full disk must not end it.
        """
        self._left = self._contents()
        refused = self._lease.refused if self._lease is not None else None
        if refused is not None and not self._left:
            raise CheckpointError(
                f"{self._root} cannot be written ({refused}); check that the volume is mounted, writable for this user, and "
                "not full"
            )
        with contextlib.suppress(CheckpointError, OSError):
            self._permit()
            self.clean()

    def _contents(self) -> dict[int, int]:
        """The steps there, and the time of each one's manifest: no two checkpoints have both in common."""
        found = {}
        for step in self.steps():
            with contextlib.suppress(OSError):
                found[step] = os.stat(self.path(step) / files.MANIFEST).st_mtime_ns
        return found

    def _permit(self) -> None:
        if self._lease is not None:
            self._lease.check()

    def _remember(self) -> None:
        with contextlib.suppress(CheckpointError, OSError):
            left = self._contents()
            # In this order: while the lease is held, nothing of another process can be among them.
            self._permit()
            self._left = left

    def save(self, state: TrainingState, on_probation: int | None = None) -> Path:
        """Write a checkpoint, complete on disk when this returns, then drop what need not be kept.

        Args:
            state: what to write.
            on_probation: step of an older checkpoint to keep, because it may soon be tagged healthy.

        Raises:
            CheckpointError: the disk refuses, another process has the lease, or the weights are not finite (worth nothing,
                and would push out good ones).
        """
        final, state = self.path(state["step"]), as_saved(state)
        self._permit()
        model, known = state["model_state_dict"], state.get("nonfinite_buffers", [])
        buffers = check_model(
            model,
            final,
            None,
            nonfinite_buffers=known,
            infinite=state.get("untrained", []),
            other_types=state.get("other_types", []),
        )
        unproven = [name for name in buffers if not is_mask(model[name])]
        unproven += check_optimizer(state["optimizer_state_dict"], final, None)
        state = {**state, "nonfinite_buffers": sorted({*known, *buffers}), "unproven": unproven[:_MAX_NAMES]}
        state.pop("untrained", None)
        check_loads(state, f"checkpoint of step {state['step']}")
        try:
            if self._lease is None or self._lease.refused is not None:  # else its file is there, or the volume has gone
                self._root.mkdir(parents=True, exist_ok=True)
            # Looked at again when it is complete: a process that was frozen while it wrote must not put it in place.
            files.write(final, state, self._permit)
        except OSError as error:
            self._permit()  # where another process has tidied up, the disk is not to blame
            raise CheckpointError(
                f"checkpoint of step {state['step']} not written to {self._root} ({error}); check that the volume is "
                "mounted, writable for this user, and not full"
            ) from error
        self._note_unproven(state)
        if unproven and not self._unproven_told:
            self._unproven_told = True
            self._log.warning(
                "checkpoint_unproven",
                f"inf in {', '.join(unproven[:3])}; the weights are finite, so the checkpoint is kept, but none with inf "
                "there is tagged healthy: a rewind goes back to one before. Clip gradients (--max-grad-norm)",
                step=state["step"],
            )
        self._prune(on_probation)
        return final

    def _note_unproven(self, state: TrainingState) -> None:
        step, names = state["step"], state.get("unproven", [])
        (self.unproven.add if names else self.unproven.discard)(step)

    def tag_healthy(self, step: int, good_steps: int) -> None:
        """Tag the checkpoint of ``step``: ``good_steps`` good steps followed it.

        Raises:
            CheckpointError: it is not there, or the disk refuses.
        """
        self._permit()
        try:
            files.write_tag(self.path(step), {"step": step, "good_steps": good_steps})
        except OSError as error:
            raise CheckpointError(
                f"{self.path(step)} not tagged healthy ({error}); check that the volume is writable and not full"
            ) from error
        self._prune(None)

    def _prune(self, on_probation: int | None) -> None:
        try:
            steps = self.steps()
        except UnreadableError:
            return  # what was written is there; the next save drops what need not be kept
        tagged = {step: files.is_healthy(self.path(step)) for step in steps}
        healthy = [step for step in steps if tagged[step]]
        # What may be tagged is not dropped for a read that failed: it may be the only one to rewind to.
        unknown = [step for step in steps if tagged[step] is None]
        kept = {*steps[: self._keep], *healthy[:1], *unknown, on_probation}
        for step in steps:
            if step not in kept:
                shutil.rmtree(self.path(step), ignore_errors=True)
        self._remember()

    def reject_after(self, step: int, permit: Callable[[], None] = lambda: None) -> None:
        """Put the checkpoints after ``step`` aside (the newest few, for a post-mortem): a resume must not find them.

        Args:
            step: of the one to go on from.
            permit: asked before each change; raises CheckpointError if it must not be made any more.

        Raises:
            CheckpointError: the disk refuses, or another process has the lease.
        """
        self._permit()
        try:
            for newer in self.steps():
                if newer > step:
                    target = self._root / (_REJECTED + self.path(newer).name)
                    permit()
                    shutil.rmtree(target, ignore_errors=True)
                    permit()
                    os.rename(self.path(newer), target)
            rejected = sorted(entry for entry in self._root.iterdir() if entry.name.startswith(_REJECTED))
            for entry in rejected[: -self._keep]:
                permit()
                shutil.rmtree(entry, ignore_errors=True)
        except OSError as error:
            raise CheckpointError(
                f"checkpoints after step {step} in {self._root} cannot be put aside ({error})"
            ) from error
        permit()
        self._remember()

    def clean(self) -> None:
        """Remove what a killed writer left behind. Rank 0, at start, as the only writer."""
        if self._root.is_dir():
            for entry in self._root.iterdir():
                if entry.name.startswith(files.TEMPORARY):
                    shutil.rmtree(entry, ignore_errors=True)

    def load_newest(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Loaded | None:
        """The newest checkpoint that passes all checks; None if there is none at all. Says why it passes one over.

        Raises:
            CheckpointError: there are checkpoints, but none can be used. Starting anew would silently lose the training.
        """
        steps = self.steps()
        loaded = self._first_good(steps, model, optimizer)
        if steps and loaded is None:
            raise CheckpointError(
                f"none of the checkpoints in {self._root} (steps {steps}) can be used, see above; restore one from a "
                "backup, or move them away to start from step 0"
            )
        return loaded

    def load_healthy(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Loaded | None:
        """The newest checkpoint that is tagged healthy and passes all checks; None if there is none."""
        return self._first_good(self.healthy_steps(), model, optimizer)

    def _first_good(
        self, steps: list[int], model: torch.nn.Module, optimizer: torch.optim.Optimizer | None
    ) -> Loaded | None:
        for step in steps:
            try:
                return self.load(step, model, optimizer)
            except CheckpointError as error:
                self._log.error("checkpoint_refused", str(error), step=step)
            except Exception as error:  # noqa: BLE001  (whatever its content makes torch raise: the one before may be good)
                message = f"{self.path(step)} cannot be used ({type(error).__name__}: {str(error)[:MAX_ERROR]})"
                self._log.error("checkpoint_refused", message, step=step)
        return None

    def load(self, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Loaded:
        """Check and read one checkpoint.

        Raises:
            CheckpointError: it is missing, damaged, or of another model or optimizer.
        """
        path = self.path(step)
        state = validate(files.read(path), path, model, optimizer)
        if state["step"] != step:
            raise CheckpointError(
                f"{path}: expected step {step}, found step {state['step']}; the checkpoint is damaged"
            )
        self._note_unproven(state)
        return Loaded(path, state)
