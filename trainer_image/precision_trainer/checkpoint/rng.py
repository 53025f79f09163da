"""The random state of a rank, as text that goes through JSON and into a checkpoint."""

from __future__ import annotations

import torch


def random_state() -> dict[str, str]:
    """Of this rank, hexadecimal, by device kind."""
    state = {"cpu": torch.get_rng_state().numpy().tobytes().hex()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state().numpy().tobytes().hex()
    return state


def as_random_state(value: object) -> dict[str, str]:
    """What another rank sent; empty if it sent none."""
    return {str(kind): str(state) for kind, state in value.items()} if isinstance(value, dict) else {}


def set_random_state(state: dict[str, str]) -> None:
    """Go on from ``state``; device kinds that this rank does not have are left out."""
    if "cpu" in state:
        torch.set_rng_state(torch.frombuffer(bytearray.fromhex(state["cpu"]), dtype=torch.uint8))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.frombuffer(bytearray.fromhex(state["cuda"]), dtype=torch.uint8))
