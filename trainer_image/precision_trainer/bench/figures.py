"""``precision-trainer bench figures``: every figure the trainer is judged by, in one run, with its raw rounds."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import hardware, overhead, parity, speed, switching
from .rounds import Tick
from .workloads import Workload, transformer, world_model

Result = TypeVar("Result")

NO_GPU = "not measured: no CUDA device on this machine"
CPU_ONLY = "not measured: these figures are taken on the CPU; `bench comprehensive` times both models on a GPU"


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    overhead_rounds: int = overhead.ROUNDS
    speed_rounds: int = speed.ROUNDS
    seeds: int = parity.SEEDS
    parity_steps: int = parity.STEPS
    flips: int = switching.FLIPS
    saves: int = switching.SAVES
    width: int = 384
    """Of the transformer whose speed, checkpoints and activations are measured: 10.9 M parameters, bound by its products."""
    layers: int = 6
    context: int = 256


QUICK = Effort(overhead_rounds=12, speed_rounds=2, seeds=2, parity_steps=30, flips=3, saves=2, context=64)
"""For a look and for tests: minutes become seconds, and the figures mean little."""


def bars() -> Progress:
    """Progress bars on stderr, so that stdout stays for the result; nothing moves where nobody watches."""
    columns = (TextColumn("{task.description:20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True))


def run(path: Path, effort: Effort, progress: Progress) -> dict[str, object]:
    """Measure everything and write it to ``path`` as JSON, whole or not at all.

    Returns:
        What was written: the figures of the trainer's contract with its readers, raw rounds beside each.
    """
    began, before = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="precision-bench-") as directory:
        figures = _measure(Path(directory), effort, progress)
    result = {
        **figures,
        "gpu": CPU_ONLY if torch.cuda.is_available() else NO_GPU,
        "hardware": hardware.describe(),
        "load_average_before": round(before, 2),
        "effort": asdict(effort),
        "seconds": round(time.monotonic() - began, 1),
        "time": round(time.time()),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)
    return result


def _measure(directory: Path, effort: Effort, progress: Progress) -> dict[str, object]:
    small = transformer(width=128, layers=4, context=64, batch_size=4)
    large = transformer(width=effort.width, layers=effort.layers, context=effort.context)
    world = world_model()
    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    show = partial(_stage, progress)
    try:
        costs = show(
            "overhead", effort.overhead_rounds, partial(overhead.measure, directory, rounds=effort.overhead_rounds)
        )
        times = partial(speed.measure, rounds=effort.speed_rounds)
        speeds = {
            "transformer": show("speed, transformer", effort.speed_rounds, partial(times, large), cores),
            "world_model": show("speed, world model", effort.speed_rounds, partial(times, world), cores),
        }
        alike = partial(parity.measure, seeds=effort.seeds, steps=effort.parity_steps)
        agreement = show("parity", effort.seeds * len(parity.MODES), alike)
        waits = show("host waits", 1, lambda _: switching.host_waits(small, directory))
        flips = show("hot switch", effort.flips, partial(switching.switch, small, directory, flips=effort.flips))
        store = partial(switching.checkpoints, large, directory, saves=effort.saves)
        saved = show("checkpoints", effort.saves, store, cores)
        kept = show("activations", 1, lambda _: _activations(large))
    finally:
        torch.set_num_threads(threads)
    return {
        "overhead_us": costs,
        "amx": hardware.has_amx(),
        "bf16_speedup": {name: measured.speedup("bf16") for name, measured in speeds.items()},
        "bf16_speedup_rounds": {name: measured.to_wire() for name, measured in speeds.items()},
        "parity": agreement,
        "host_syncs_per_step": max(waits.values()),
        "host_syncs_by_mode": waits,
        "switch": flips,
        **saved,
        "activation_bytes": kept,
    }


def _activations(load: Workload) -> dict[str, object]:
    kept = {name: speed.activation_bytes(load, mode) for name, mode in speed.MODES.items()}
    state = speed.state_bytes(load)
    return {
        **kept,
        "workload": load.name,
        "state_bytes": state,
        "total_ratio": round((kept["bf16"] + state) / (kept["fp32"] + state), 4),
    }


def _stage(progress: Progress, name: str, ticks: int, work: Callable[[Tick], Result], threads: int = 1) -> Result:
    """Run one part on so many threads, under a bar of its own."""
    task = progress.add_task(name, total=ticks)
    torch.set_num_threads(threads)
    result = work(lambda: progress.advance(task))
    progress.update(task, completed=ticks)
    return result
