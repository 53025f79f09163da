"""The random state of a rank, as text that goes through JSON and into a checkpoint."""

from __future__ import annotations

import torch

from ..errors import CheckpointError


def random_state() -> dict[str, str]:
    """Of this rank, hexadecimal, by device kind."""
    state = {"cpu": torch.get_rng_state().numpy().tobytes().hex()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state().numpy().tobytes().hex()
    return state


def as_random_state(value: object) -> dict[str, str]:
    """What another rank sent; empty if it sent none."""
    return {str(kind): str(state) for kind, state in value.items()} if isinstance(value, dict) else {}


def check_random_state(state: object, what: str) -> None:
    """Refuse what this process's generators would refuse; a device kind that it does not have only has to be hexadecimal.

    Raises:
        CheckpointError: with the device kind.
    """
    if not isinstance(state, dict):
        raise CheckpointError(f"{what}: expected dict, found {type(state).__name__}; the checkpoint is damaged")
    for kind, text in state.items():
        try:
            data = bytearray.fromhex(text)
        except (ValueError, TypeError):
            raise CheckpointError(f"{what}: {kind}: expected hexadecimal text; the checkpoint is damaged") from None
        if kind == "cpu" or (kind == "cuda" and torch.cuda.is_available()):
            try:
                # Besides the length, only the generator knows what its algorithm can go on from.
                torch.Generator(kind).set_state(torch.frombuffer(data, dtype=torch.uint8))
            except (RuntimeError, ValueError, TypeError) as error:
                reason = str(error).splitlines()[0]
                raise CheckpointError(f"{what}: {kind}: no state of its generator ({reason}); it is damaged") from None


def set_random_state(state: dict[str, str]) -> None:
    """Go on from ``state``; device kinds that this rank does not have are left out."""
    if "cpu" in state:
        torch.set_rng_state(torch.frombuffer(bytearray.fromhex(state["cpu"]), dtype=torch.uint8))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.frombuffer(bytearray.fromhex(state["cuda"]), dtype=torch.uint8))
