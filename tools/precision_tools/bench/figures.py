"""``precision-trainer bench figures``: every figure the trainer is judged by, in one run, with its raw rounds."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from precision_trainer.errors import TrainerError

from . import hardware, overhead, parity, speed, switching
from .rounds import Tick
from .workloads import Workload, transformer, world_model

Work = Callable[[Tick], dict[str, object]]
_FAILURES = (ImportError, OSError, RuntimeError, TrainerError, ValueError)
"""What one part may fail with, torch's own errors among them, without the others being lost."""

NO_GPU = "not measured: no CUDA device on this machine"
CPU_ONLY = "not measured: these figures are taken on the CPU; `bench comprehensive` times both models on a GPU"


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the figures, measured together."""

    name: str
    ticks: int
    """Of its progress bar."""
    work: Work
    threads: int = 1


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
    world_width: int = 256
    """Of the world model whose speed is measured."""


BUDGET_US = 60.0
"""What a step may cost over bare autocast, by the upper bound."""
QUICK = Effort(overhead_rounds=12, speed_rounds=2, seeds=2, parity_steps=30, flips=3, saves=2, context=64)
"""For a look and for tests: minutes become seconds, and the figures mean little."""


def bars() -> Progress:
    """Progress bars on stderr, so that stdout stays for the result; nothing moves where nobody watches."""
    columns = (TextColumn("{task.description:20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True))


def run(path: Path, effort: Effort, progress: Progress) -> dict[str, object]:
    """Measure part after part; what there is stands in ``path`` as JSON after each of them, however the run ends.

    Returns:
        What was written: the figures of the trainer's contract with its readers, raw rounds beside each. ``complete``: all
        of them are there; ``failed``: parts that were not measured, and why.
    """
    began, threads = time.monotonic(), torch.get_num_threads()
    failed: dict[str, str] = {}
    seconds: dict[str, float] = {}
    result: dict[str, object] = {
        "complete": False,
        "failed": failed,
        "part_seconds": seconds,
        "amx": hardware.has_amx(),
        "gpu": CPU_ONLY if torch.cuda.is_available() else NO_GPU,
        "hardware": hardware.describe(),
        "load_average_before": round(os.getloadavg()[0], 2),
        "effort": asdict(effort),
        "time": round(time.time()),
    }
    with tempfile.TemporaryDirectory(prefix="precision-bench-") as directory:
        for part in _parts(Path(directory), effort):
            started = time.monotonic()
            try:
                result |= _measure(part, progress)
            except _FAILURES as error:
                failed[part.name] = f"{type(error).__name__}: {error}"
            finally:
                torch.set_num_threads(threads)
            seconds[part.name] = round(time.monotonic() - started, 1)
            outcome = failed.get(part.name, "measured")
            progress.console.print(f"{part.name}: {outcome} ({seconds[part.name]:.0f} s)", markup=False, soft_wrap=True)
            _write(path, result | {"seconds": round(time.monotonic() - began, 1)})
    result |= {"complete": not failed, "seconds": round(time.monotonic() - began, 1)}
    _write(path, result)
    return result


def missed(result: Mapping[str, object]) -> list[str]:
    """What was measured and does not hold, one sentence each."""
    cost = result.get("overhead_us")
    if not isinstance(cost, dict):  # the part failed, which `failed` says
        return []
    sentences = []
    for what, found in (("with clipping", cost), ("without clipping", cost["unclipped"])):
        ours, upper, fabric = found["ours"], found["ours_upper"], found["fabric"]
        if upper > BUDGET_US:
            sentences.append(
                f"overhead {what}: expected an upper bound of at most {BUDGET_US:g} µs a step over bare autocast, found "
                f"{upper:g}; read overhead_us"
            )
        if ours >= fabric:
            sentences.append(f"overhead {what}: expected less than Fabric's {fabric:g} µs a step, found {ours:g}")
    return sentences


def _write(path: Path, result: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)


def _measure(part: Part, progress: Progress) -> dict[str, object]:
    """Run one part on its threads, under a bar of its own."""
    task = progress.add_task(part.name, total=part.ticks)
    torch.set_num_threads(part.threads)
    result = part.work(lambda: progress.advance(task))
    progress.update(task, completed=part.ticks)
    return result


def _parts(directory: Path, effort: Effort) -> tuple[Part, ...]:
    small = transformer(width=128, layers=4, context=64, batch_size=4)
    large = transformer(width=effort.width, layers=effort.layers, context=effort.context)
    cores = os.cpu_count() or 1

    def overheads(tick: Tick) -> dict[str, object]:
        return {"overhead_us": overhead.measure(directory, tick, rounds=effort.overhead_rounds)}

    def agreement(tick: Tick) -> dict[str, object]:
        return {"parity": parity.measure(tick, seeds=effort.seeds, steps=effort.parity_steps)}

    def waits(_: Tick) -> dict[str, object]:
        by_mode = switching.host_waits(small, directory)
        return {"host_syncs_per_step": max(by_mode.values()), "host_syncs_by_mode": by_mode}

    def flips(tick: Tick) -> dict[str, object]:
        return {"switch": switching.switch(small, directory, tick, flips=effort.flips)}

    return (
        Part("overhead", effort.overhead_rounds, overheads),
        Part("speed", 2 * effort.speed_rounds, partial(_speeds, large, effort), cores),
        Part("parity", effort.seeds * len(parity.MODES), agreement),
        Part("host waits", 1, waits),
        Part("hot switch", effort.flips, flips),
        Part("checkpoints", effort.saves, partial(switching.checkpoints, large, directory, saves=effort.saves), cores),
        Part("activations", 1, lambda _: {"activation_bytes": _activations(large)}),
    )


def _speeds(large: Workload, effort: Effort, tick: Tick) -> dict[str, object]:
    measured = {
        "transformer": speed.measure(large, tick, rounds=effort.speed_rounds),
        "world_model": speed.measure(world_model(width=effort.world_width), tick, rounds=effort.speed_rounds),
    }
    return {
        "bf16_speedup": {name: found.speedup("bf16") for name, found in measured.items()},
        "bf16_speedup_rounds": {name: found.to_wire() for name, found in measured.items()},
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
