"""What is in a checkpoint, for a person: all checks of a resume, without a model to compare with."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..errors import CheckpointError
from . import files, plain
from .format import check_model, validate
from .optimizer import check_optimizer

_NAME = re.compile(r"step-\d{12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport:
    """One checkpoint. Everything but ``path`` and ``error`` is None where it cannot be known."""

    path: str
    error: str | None = None
    """Why it cannot be used; None: it is good."""
    manifest: bool | None = None
    """False for a plain file: nothing vouches for its content."""
    step: int | None = None
    samples: int | None = None
    mode: str | None = None
    generation: int | None = None
    healthy: bool | None = None
    ranks: int | None = None
    tensors: int | None = None
    parameters: int | None = None
    """Numbers in the model's tensors."""
    size_bytes: int | None = None
    time: float | None = None
    """When it was written, seconds since the epoch."""
    torch: str | None = None
    parts: tuple[str, ...] | None = None
    mode_changes: int | None = None

    def to_wire(self) -> dict[str, object]:
        """For programs."""
        return asdict(self)


def find(path: Path) -> list[Path]:
    """The checkpoints that ``path`` means: itself, or those in it, oldest first.

    Raises:
        CheckpointError: there is none.
    """
    inside = sorted(entry for entry in path.iterdir() if _NAME.fullmatch(entry.name)) if path.is_dir() else []
    if inside:
        return inside
    if not path.exists() or (path.is_dir() and not _NAME.fullmatch(path.name)):
        raise CheckpointError(
            f"{path}: there is no checkpoint; name a directory of checkpoints, one of them (step-000000000800), or a file "
            "that torch.save wrote"
        )
    return [path]


def inspect(path: Path) -> CheckpointReport:
    """Read one checkpoint, with every check; what is wrong is in the report."""
    try:
        return _ours(path) if path.is_dir() else _plain(path)
    except CheckpointError as error:
        return CheckpointReport(path=str(path), error=str(error))


def _ours(path: Path) -> CheckpointReport:
    manifest = files.read_manifest(path)
    state = validate(files.read(path), path)
    if path.name != f"step-{state['step']:012d}":
        raise CheckpointError(
            f"{path} holds step {state['step']}: its name says another one; the checkpoint is damaged"
        )
    made, version = manifest.facts.get("time"), manifest.facts.get("torch")
    return CheckpointReport(
        path=str(path),
        manifest=True,
        step=state["step"],
        samples=state["samples"],
        mode=state["mode"],
        generation=state["generation"],
        healthy=files.is_healthy(path),
        ranks=len(state["rng"]),
        tensors=len(state["model_state_dict"]),
        parameters=_count(state["model_state_dict"]),
        size_bytes=manifest.size_bytes,
        time=made if isinstance(made, float) else None,
        torch=version if isinstance(version, str) else None,
        parts=tuple(sorted(state.get("parts", {}))),
        mode_changes=len(state["mode_history"]),
    )


def _plain(path: Path) -> CheckpointReport:
    weights, moments = plain.content(files.read_plain(path), path)
    check_model(weights, path, None)
    if moments is not None:
        check_optimizer(moments, path, None)
    return CheckpointReport(
        path=str(path),
        manifest=False,
        tensors=len(weights),
        parameters=_count(weights),
        size_bytes=path.stat().st_size,
    )


def _count(tensors: dict[str, torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors.values())
