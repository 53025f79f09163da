"""Checkpoints: one canonical FP32 layout, complete or absent, and checked before anything in them is read.

A checkpoint is a directory ``step-000000000800`` with ``state.pt`` and ``manifest.json`` (size and sha256). It is
written under a temporary name, synced to disk, then renamed: a reader sees all of it or none. Loading checks the
manifest first and uses ``weights_only=True``, so a damaged or foreign file is refused, not executed. The layout is
the same for all precision modes, so loading in another mode changes no weight.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import time
from dataclasses import dataclass
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import TypedDict

import torch

from ..errors import CheckpointError
from ..telemetry.logs import JsonLog

FORMAT = 1
KEEP = 2
_STATE, _MANIFEST = "state.pt", "manifest.json"
_NAME = re.compile(r"step-(\d{12})")


class ModeEntry(TypedDict):
    """One line of the mode history."""

    step: int
    mode: str
    generation: int
    source: str
    time: float


class TrainingState(TypedDict):
    """Everything needed to go on: plain values and tensors only, so that weights_only loading suffices."""

    format: int
    step: int
    """Steps tried so far; the next one has this number."""
    samples: int
    """Position in the data stream: samples consumed by the gang."""
    model_state_dict: dict[str, torch.Tensor]
    optimizer_state_dict: dict[str, object]
    scaler: dict[str, float]
    rng: list[dict[str, str]]
    """Random state of each rank, hexadecimal, by device kind."""
    mode: str
    generation: int
    mode_history: list[ModeEntry]
    progress: dict[str, float]
    data_fingerprint: str


_TYPES: dict[str, type] = {
    "format": int, "step": int, "samples": int, "model_state_dict": dict, "optimizer_state_dict": dict, "scaler": dict,
    "rng": list, "mode": str, "generation": int, "mode_history": list, "progress": dict, "data_fingerprint": str,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checkpoint that passed all checks."""

    path: Path
    state: TrainingState


class CheckpointStore:
    """The checkpoints of one workload, in one directory. Only rank 0 writes."""

    def __init__(self, directory: str, log: JsonLog, keep: int = KEEP) -> None:
        self._root = Path(directory)
        self._log = log
        self._keep = keep

    def steps(self) -> list[int]:
        """Steps of the checkpoints there, newest first; whether they are good shows when they are loaded."""
        if not self._root.is_dir():
            return []
        found = (_NAME.fullmatch(entry.name) for entry in self._root.iterdir())
        return sorted((int(match.group(1)) for match in found if match), reverse=True)

    def save(self, state: TrainingState) -> Path:
        """Write a checkpoint, complete on disk when this returns, then drop the oldest beyond ``keep``.

        Raises:
            CheckpointError: the disk refuses.
        """
        final = self._root / f"step-{state['step']:012d}"
        temporary = self._root / f".tmp-{os.getpid()}-{final.name}"
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            with open(temporary / _STATE, "wb") as file:
                torch.save(state, file)
                _sync(file)
            size, digest = _digest(temporary / _STATE)
            manifest = {
                "format": FORMAT, "step": state["step"], "mode": state["mode"], "torch": torch.__version__,
                "time": time.time(),
                "files": {_STATE: {"bytes": size, "sha256": digest}},
            }  # fmt: skip
            with open(temporary / _MANIFEST, "wb") as file:
                file.write(json.dumps(manifest, indent=1).encode())
                _sync(file)
            _sync_directory(temporary)
            if final.exists():
                # The same step saved again (resumed and stopped at once). What stands there may be the broken one:
                # replace it.
                shutil.rmtree(final)
            os.rename(temporary, final)
            _sync_directory(self._root)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise CheckpointError(
                f"checkpoint of step {state['step']} not written to {self._root} ({error}); check that the volume is "
                "mounted, writable for this user, and not full"
            ) from error
        self._prune()
        return final

    def _prune(self) -> None:
        for step in self.steps()[self._keep :]:
            shutil.rmtree(self._root / f"step-{step:012d}", ignore_errors=True)

    def clean(self) -> None:
        """Remove what a killed writer left behind. Rank 0, at start."""
        if self._root.is_dir():
            for entry in self._root.iterdir():
                if entry.name.startswith(".tmp-"):
                    shutil.rmtree(entry, ignore_errors=True)

    def load_newest(self, model: torch.nn.Module) -> Loaded | None:
        """The newest checkpoint that passes all checks; None if there is none at all. Says why it passes one over.

        Raises:
            CheckpointError: there are checkpoints, but none can be used. Starting anew would silently lose the training.
        """
        steps = self.steps()
        for step in steps:
            try:
                return self.load(step, model)
            except CheckpointError as error:
                self._log.error("checkpoint_refused", str(error), step=step)
        if steps:
            raise CheckpointError(
                f"none of the checkpoints in {self._root} (steps {steps}) can be used, see above; restore one from a "
                "backup, or move them away to start from step 0"
            )
        return None

    def load(self, step: int, model: torch.nn.Module) -> Loaded:
        """Check and read one checkpoint.

        Raises:
            CheckpointError: it is missing, damaged, or of another model.
        """
        path = self._root / f"step-{step:012d}"
        expected_bytes, expected_digest = _read_manifest(path)
        with _open(path / _STATE) as file:
            # One descriptor for the check and the load: what was checked is what is read.
            size = os.fstat(file.fileno()).st_size
            if size != expected_bytes:
                raise CheckpointError(
                    f"{path / _STATE}: expected {expected_bytes} bytes, found {size}; the file is damaged"
                )
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != expected_digest:
                raise CheckpointError(
                    f"{path / _STATE}: expected sha256 {expected_digest}, found {digest}; it is damaged"
                )
            file.seek(0)
            try:
                raw: object = torch.load(file, map_location="cpu", weights_only=True)
            except Exception as error:
                # The unpickler raises many kinds of error; each means "not one of our checkpoints".
                raise CheckpointError(f"{path / _STATE} cannot be read safely: {error}") from error
        return Loaded(path, _validate(raw, step, model, path))


def _validate(raw: object, step: int, model: torch.nn.Module, path: Path) -> TrainingState:
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: expected a dictionary, found {type(raw).__name__}")
    for key, kind in _TYPES.items():
        if not isinstance(raw.get(key), kind):
            raise CheckpointError(f"{path}: {key}: expected {kind.__name__}, found {type(raw.get(key)).__name__}")
    if raw["format"] != FORMAT or raw["step"] != step:
        raise CheckpointError(f"{path}: format {raw['format']} and step {raw['step']}: expected {FORMAT} and {step}")
    saved = raw["model_state_dict"]
    wanted = model.state_dict()
    if set(saved) != set(wanted):
        difference = sorted(set(saved) ^ set(wanted))[:4]
        raise CheckpointError(f"{path} is of another model: it differs in {difference}; use a directory of its own")
    for name, tensor in wanted.items():
        found = saved[name]
        if not isinstance(found, torch.Tensor) or found.shape != tensor.shape or found.dtype != tensor.dtype:
            detail = f"{tuple(found.shape)} {found.dtype}" if isinstance(found, torch.Tensor) else type(found).__name__
            raise CheckpointError(
                f"{path} is of another model: {name}: expected {tuple(tensor.shape)} {tensor.dtype}, found {detail}; "
                "use a directory of its own"
            )
    state: TrainingState = raw  # type: ignore[assignment]  # checked above, key by key
    return state


def _read_manifest(path: Path) -> tuple[int, str]:
    with _open(path / _MANIFEST) as file:
        text = file.read(1 << 16)
    try:
        entry = json.loads(text)["files"][_STATE]
        size, digest = entry["bytes"], entry["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path / _MANIFEST} is not a manifest ({error!r}); the checkpoint is damaged") from None
    if not isinstance(size, int) or not isinstance(digest, str):
        raise CheckpointError(f"{path / _MANIFEST}: bad size {size!r} or sha256 {digest!r}; the checkpoint is damaged")
    return size, digest


def _open(path: Path) -> BufferedReader:
    """Open a regular file for reading; a symlink is refused, it could point anywhere."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be opened ({error}); the checkpoint is damaged") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path} is not a regular file; the checkpoint is damaged")
    return os.fdopen(descriptor, "rb")


def _digest(path: Path) -> tuple[int, str]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return os.fstat(file.fileno()).st_size, digest


def _sync(file: BufferedWriter) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
