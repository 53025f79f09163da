"""Checkpoints that this trainer did not write: a dictionary in a file by torch.save, as most programs keep them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Mapping
from io import BufferedWriter
from pathlib import Path

import torch

from ..errors import CheckpointError
from . import files
from .format import check_model, check_scaler, validate
from .optimizer import check_optimizer
from .tensors import nonfinite_buffers, untrained

MODEL, OPTIMIZER = "model_state_dict", "optimizer_state_dict"
_DDP, _COMPILED = "module.", "_orig_mod."
"""What DistributedDataParallel puts before every name, and torch.compile wherever a module was compiled."""
_LEFT_SECONDS = 3600.0
"""After so long without a write nobody writes in a folder any more, where its lock says nothing."""
_OTHER = (torch.float16, torch.bfloat16, torch.float64)


def write(path: Path, state: Mapping[str, object]) -> None:
    """One file, atomically: written beside, synced, renamed. A symlink stays; what it points to is written.

    Raises:
        CheckpointError: it cannot be written. What stood there before still does, and nothing stands beside it.
    """
    folder: Path | None = None
    try:
        if path.is_symlink():
            path = path.resolve()
        _tidy(path)
        # A name of its own: two pods may have the same process id. A folder: a file of tempfile's is for its owner alone.
        folder = Path(tempfile.mkdtemp(prefix=f"{_prefix(path)}{_lock_table(path.parent)}-", dir=path.parent))
        with open(folder / path.name, "wb") as file:
            folder = _locked(folder, file, path)
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())
            # Before it is closed, which gives the lock up.
            (folder / path.name).replace(path)
    except Exception as error:  # torch has errors of its own for a full disk
        reason = (str(error).splitlines() or [""])[0]
        raise CheckpointError(
            f"{path} not written ({reason}); check that the directory exists, is writable and not full"
        ) from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _prefix(path: Path) -> str:
    return f".{path.name}.writing-"


def _tidy(path: Path) -> None:
    """Remove what a process that was killed while it wrote ``path`` left. Another one may be writing now."""
    with contextlib.suppress(OSError):  # the directory is asked for again in a moment
        for folder in path.parent.iterdir():
            if folder.name.startswith(_prefix(path)) and _left_behind(folder, path):
                shutil.rmtree(folder, ignore_errors=True)


def _lock_table(directory: Path) -> str:
    """Of the kernel and the file system. Two mounts of one network volume need not know of each other's locks."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        return hashlib.sha256(boot + str(directory.stat().st_dev).encode()).hexdigest()[:8]
    return ""


def _locked(folder: Path, file: BufferedWriter, path: Path) -> Path:
    """``folder``, with ``file`` in it locked until it is closed; under a name without a lock table where that cannot be."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return folder.rename(folder.with_name(_prefix(path) + folder.name.rpartition("-")[2]))
    return folder


def _left_behind(folder: Path, path: Path) -> bool:
    """Whether its writer is gone."""
    file, table = folder / path.name, _lock_table(path.parent)
    if table and folder.name.startswith(f"{_prefix(path)}{table}-"):
        # For writing: an NFS client locks exclusively only what is open for that.
        with contextlib.suppress(OSError), open(file, "r+b") as mine:
            # Nothing is written before the lock is held.
            if os.fstat(mine.fileno()).st_size:
                try:
                    fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                except OSError:
                    return False
    written = [entry.stat().st_mtime for entry in (folder, file) if entry.exists()]
    return time.time() - max(written, default=time.time()) > _LEFT_SECONDS


def load(
    path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, torch.Tensor], dict[str, object] | None]:
    """Weights and optimizer state from a checkpoint of ours, or from a plain file without a manifest.

    Args:
        path: a directory ``step-…``, or a file holding ``{"model_state_dict": …, "optimizer_state_dict": …}``; the latter
            key may be missing. 16-bit and FP64 weights become FP32; names may carry what DDP and torch.compile add.
        model: names and shapes must fit it.
        optimizer: the groups of parameters must fit it.

    Returns:
        What to load into both; None for an optimizer state that is not there.

    Raises:
        CheckpointError: the file is damaged, of another model, or cannot be read safely.
    """
    if path.is_dir():
        state = validate(files.read(path), path, model, optimizer)
        return state["model_state_dict"], state["optimizer_state_dict"]
    weights, moments = content(files.read_plain(path), path, model)
    check_model(weights, path, model, nonfinite_buffers=nonfinite_buffers(model), infinite=untrained(model))
    if moments is not None:
        check_optimizer(moments, path, optimizer)
    return weights, moments


def content(
    raw: object, path: Path, model: torch.nn.Module | None = None, *, in_its_types: bool = True
) -> tuple[dict[str, torch.Tensor], dict[str, object] | None]:
    """Weights, as FP32, and optimizer state in ``raw``, read from the plain file ``path``; see :func:`load`.

    Args:
        raw: what :func:`files.read_plain` gave.
        path: for messages.
        model: names are given as it has them.
        in_its_types: what ``model`` holds in another type by its author's choice (frozen weights, buffers) keeps that type.

    Raises:
        CheckpointError: it is no checkpoint.
    """
    saved: object = raw.get(MODEL) if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(saved, dict):
        found = sorted(map(str, raw))[:6] if isinstance(raw, dict) else type(raw).__name__
        raise CheckpointError(f"{path}: expected a dictionary with {MODEL} and {OPTIMIZER}, found {found}")
    moments: object = raw.get(OPTIMIZER)
    if moments is not None and not isinstance(moments, dict):
        raise CheckpointError(f"{path}: {OPTIMIZER}: expected a dictionary, found {type(moments).__name__}")
    weights: dict[str, torch.Tensor] = {str(name): value for name, value in saved.items()}
    wanted: dict[str, torch.Tensor] = model.state_dict() if model is not None else {}
    weights = _named(weights, wanted) if wanted else _stripped(weights)
    types = wanted if in_its_types else {}
    return {name: _fitted(value, types.get(name)) for name, value in weights.items()}, moments


def _named(weights: dict[str, torch.Tensor], wanted: Collection[str]) -> dict[str, torch.Tensor]:
    """Under the ``wanted`` names. Those that fit as they are stay: a model's own may look as if something was added."""
    if set(weights) == set(wanted):
        return weights
    plain = {name.replace(_COMPILED, ""): name for name in wanted}
    found = _stripped(weights, unless=plain)
    return {plain.get(name, name): value for name, value in found.items()} if len(plain) == len(wanted) else found


def _stripped(weights: dict[str, torch.Tensor], unless: Collection[str] = ()) -> dict[str, torch.Tensor]:
    """Without what DDP and torch.compile add; DDP's prefix stays where the names are those of ``unless`` with it."""
    stripped = {name.replace(_COMPILED, ""): value for name, value in weights.items()}
    if len(stripped) < len(weights):
        return weights
    while stripped and set(stripped) != set(unless) and all(name.startswith(_DDP) for name in stripped):
        stripped = {name.removeprefix(_DDP): value for name, value in stripped.items()}
    return stripped


def scaler_state(raw: object) -> dict[str, float] | None:
    """The loss scaler's state in what was read, as ours has it, also where torch's GradScaler wrote it.

    None without one that can be gone on with: other programs keep other things under that name, too.
    """
    saved: object = raw.get("scaler") if isinstance(raw, dict) else None
    if not isinstance(saved, dict):
        return None
    if "growth_tracker" in saved:
        return saved
    numbers = {"scale": saved.get("scale"), "growth_tracker": saved.get("_growth_tracker")}
    try:
        state = {name: float(value) for name, value in numbers.items() if isinstance(value, (int, float))}
        check_scaler(state, Path())
    except (OverflowError, CheckpointError):
        return None
    return state


def _fitted(value: torch.Tensor, wanted: torch.Tensor | None) -> torch.Tensor:
    """``value`` in the type of ``wanted`` where that changes no number, otherwise in FP32."""
    # What is not a tensor is refused by check_model.
    if not isinstance(value, torch.Tensor) or (value.dtype not in _OTHER and value.dtype is not torch.float32):
        return value
    if isinstance(wanted, torch.Tensor) and wanted.dtype in _OTHER:
        fitted = value.to(wanted.dtype)
        if fitted.dtype is value.dtype or torch.equal(fitted.to(value.dtype), value):
            return fitted
    return value.float()  # exact for FP16 and BF16, rounded for FP64
