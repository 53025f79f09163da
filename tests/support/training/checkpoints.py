"""Small states to save, and a way to spoil what was saved."""

from __future__ import annotations

import errno
from pathlib import Path

import torch

from precision_trainer.checkpoint.format import TrainingState


def small_model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Linear(3, 2)


def small_state(step: int, model: torch.nn.Module) -> TrainingState:
    return {
        "format": 1,
        "step": step,
        "samples": step * 8,
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": torch.optim.AdamW(model.parameters()).state_dict(),
        "scaler": {"scale": 4.0, "growth_tracker": 1.0},
        "rng": [{"cpu": bytes(torch.get_rng_state().tolist()).hex()}],
        "mode": "fp16",
        "generation": 5,
        "mode_history": [],
        "progress": {},
        "data_fingerprint": "x",
    }


def flip_a_bit(path: Path) -> None:
    data = bytearray((path / "state.pt").read_bytes())
    data[len(data) // 2] ^= 1
    (path / "state.pt").write_bytes(data)


def stale(*_: object) -> None:
    """What a volume does whose server restarted, in place of any function that reads it."""
    raise OSError(errno.ESTALE, "Stale file handle")
