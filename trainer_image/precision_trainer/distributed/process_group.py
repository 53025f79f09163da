"""The process group: joining, leaving, and making sure that all ranks were started alike."""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from .. import compat
from ..errors import ConfigError, RankMismatchError
from ..names import DEFAULT_PORT
from .rendezvous import Place, call_roll
from .watch import PeerWatch

_watches: list[PeerWatch] = []
"""Of the process group that this process is in, as torch keeps that one: at most one."""


def init_distributed(backend: str | None = None, timeout_seconds: float = 120.0) -> tuple[int, int]:
    """Join the process group that torchrun (or ``precision-trainer launch``) describes in the environment.

    Args:
        backend: ``nccl`` or ``gloo``; by default nccl where there is CUDA.
        timeout_seconds: how long a rank waits for the others before it gives up with an error: for rank 0, from then on
            for the rest, and later in every collective.

    Returns:
        (rank, world_size); (0, 1), without a process group, if WORLD_SIZE is not set.

    Raises:
        ConfigError: the environment is incomplete or wrong, or ranks are missing; it names them.
    """
    world_size = _whole("WORLD_SIZE", 1)
    rank = _whole("RANK", 0)
    if not 0 <= rank < world_size:
        raise ConfigError(f"RANK={rank}: expected a number in [0, {world_size - 1}] for WORLD_SIZE={world_size}")
    if world_size == 1 and "RANK" not in os.environ:
        return 0, 1
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", DEFAULT_PORT)
    backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    if backend == "nccl":
        torch.cuda.set_device(_whole("LOCAL_RANK", rank))
    compat.prepare_rendezvous()
    place = Place.from_env()
    roll = call_roll(place, rank, world_size, timeout_seconds)
    try:
        dist.init_process_group(
            backend,
            store=PrefixStore(roll.name, roll.store),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_seconds),
        )
        _watches.append(PeerWatch(place, roll, rank, world_size))
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"rank {rank} of {world_size} could not connect to the others within {timeout_seconds:g} s ({error}); all of "
            f"them met at {place}, so look whether they reach each other at other ports too"
        ) from error
    # A script that forgets to clean up: a thread that wakes while the interpreter is finalised would abort the process.
    atexit.register(_leave)
    return rank, world_size


def cleanup_distributed() -> None:
    """Leave the process group; harmless if it was never joined."""
    _leave()
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def lost_peer(error: RuntimeError) -> bool:
    """Whether a collective failed because another rank is gone or silent (gloo and NCCL say so in words only).

    Never where there is none: what a data loader says of its workers reads alike.
    """
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return False
    text = str(error).lower()
    return any(word in text for word in ("connection closed by peer", "connection reset", "timed out", "gloo", "nccl"))


def _leave() -> None:
    while _watches:
        _watches.pop().close()


def find_loss() -> str:
    """Who is missing, after :func:`lost_peer`, as a clause. Takes about two seconds; never hangs."""
    return str(_watches[-1].find()) if _watches else "it is gone or silent"


def training_failed(error: Exception) -> bool:
    """Whether training failed by ``error``. It need not have where a peer of another pod is gone: its node may be."""
    if not _watches or not isinstance(error, RuntimeError) or not lost_peer(error) or in_one_pod():
        return True
    loss = _watches[-1].find()
    # A process that was killed in this pod, such as for its memory, took no node with it.
    return loss.of_training or (bool(loss.missing) and all(rank in _of_this_pod() for rank in loss.missing))


def in_one_pod() -> bool:
    """Whether all ranks are in this pod: then no node of another one can be gone."""
    return _whole("LOCAL_WORLD_SIZE", 0) == _whole("WORLD_SIZE", 1)


def _of_this_pod() -> range:
    first = _whole("RANK", 0) - _whole("LOCAL_RANK", 0)
    return range(first, first + _whole("LOCAL_WORLD_SIZE", 0))


def _whole(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdigit():
        raise ConfigError(
            f"{name}={text!r}: expected a whole number; start ranks with torchrun or precision-trainer launch"
        )
    return int(text)


def exchange(value: Mapping[str, object]) -> list[dict[str, object]]:
    """Every rank's ``value``, by rank. JSON inside; a collective, so for start-up and checkpoints, never for a step."""
    if not dist.is_initialized():
        return [dict(value)]
    # all_gather_object would pickle; JSON text in a tensor can only ever be read as data.
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    length = torch.tensor([text.numel()], device=device)
    lengths = [torch.zeros_like(length) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, length)
    sizes = [int(size.item()) for size in lengths]
    padded = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
    padded[: text.numel()] = text.to(device)
    parts = [torch.zeros_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return [json.loads(bytes(part[:size].tolist())) for part, size in zip(parts, sizes, strict=True)]


def check_same(setting: Mapping[str, object]) -> None:
    """Fail on every rank, naming the settings, if the ranks were not started alike.

    Raises:
        RankMismatchError: with each differing setting and its value by rank.
    """
    everyone = exchange(setting)
    names = sorted({name for one in everyone for name in one})
    wrong = []
    for name in names:
        values = [one.get(name) for one in everyone]
        if any(value != values[0] for value in values):
            wrong.append(f"{name}: " + ", ".join(f"rank {rank} has {value!r}" for rank, value in enumerate(values)))
    if wrong:
        raise RankMismatchError(
            "ranks disagree on " + "; ".join(wrong) + "; start all ranks with the same flags and image"
        )
