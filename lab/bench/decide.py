"""``python -m lab.bench.decide``: what one decision costs, for each signal and unit, while a fleet is in mid-rollout.

Half of a fleet is in the target precision and all of that half breaches one signal. Under ``unit: Pod`` workloads have two
pods each, and half of the pods have moved. The passes from the first sight of the breach on are timed, through the rollback
that it calls for, and the costliest of them counts.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
from collections.abc import Sequence
from typing import TypedDict

from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.modes import Mode
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Unit
from precision_operator.api.state import Phase
from precision_operator.core.decide import decide

BREACH = {signal: record.bad for signal, record in SIGNALS.items()}

BUDGET_SECONDS = {1000: 0.15, 5000: 1.0}
"""Of CPU time, by the number of pods."""

PODS_EACH = {Unit.WORKLOAD: 1, Unit.POD: 2}
"""Of a workload."""

INTERVAL_SECONDS = 15.0
PASSES = 6
"""Timed from the first sight of the breach on: confirmed, rolled back, acknowledged."""
NODES = 50
REPEATS = 3
"""The least of them counts: what a pass costs is the same each time, and the rest is the machine's."""


class Row(TypedDict):
    """One measurement."""

    signal: str
    unit: str
    workloads: int
    pods: int
    cpu_seconds: float


class Sloped(Row):
    """The same, with how its signal's cost grows."""

    slope: float
    """The power of the number of pods: 1 is linear."""


def measure(sizes: Sequence[int] = tuple(BUDGET_SECONDS)) -> list[Row]:
    """The CPU time of the costliest decision for each signal, unit and number of pods."""
    return [
        Row(
            signal=signal.value,
            unit=unit.value,
            workloads=size // each,
            pods=size,
            cpu_seconds=round(cpu_seconds(signal, size // each, unit=unit), 4),
        )
        for size in sizes
        for unit, each in PODS_EACH.items()
        for signal in Signal
    ]


def cpu_seconds(signal: Signal, workloads: int, *, unit: Unit = Unit.WORKLOAD) -> float:
    """CPU time of the costliest decision, from the first sight of a breach of ``signal`` on."""
    world = mid_rollout(workloads, unit=unit)
    for key in world.state.members:
        world.bad[key.rpartition("/")[2]] = {signal: BREACH[signal]}
    costliest = 0.0
    for _ in range(PASSES):
        costliest = max(costliest, _pass(world))
    return costliest


def mid_rollout(workloads: int, *, unit: Unit = Unit.WORKLOAD, hot: bool = True) -> World:
    """A fleet of which half has been promoted and acknowledged; ``hot``: else StatefulSets that a restart moves by index."""
    steps = [{"setWeight": 50}, {"pause": {"duration": "24h"}}, {"setWeight": 100}]
    evaluation = {**FAST["evaluation"], "failureLimit": 1}
    rollback = {"gradual": {"sustain": "0s"}, "mitigation": {"speed": {"window": "0s"}}}
    fields = {"strategy": {"steps": steps}, "evaluation": evaluation, "rollback": rollback, "unit": unit.value}
    world = World(policy(**{**FAST, **fields}), restart_slots=workloads * PODS_EACH[unit])
    for number in range(workloads):
        name = f"trainer-{number:05}"
        world.add(name, pods=PODS_EACH[unit], hot=hot)
        world.world_sizes[name] = 1
        world.runs_on(name, f"node-{number % NODES}")
        if not hot:
            world.number(name)
    world.run(4)
    moved = sum(pod.effective_mode is Mode.FP16 for w in world.workloads.values() for pod in w.pods)
    if world.state.phase is not Phase.PROGRESSING or moved != workloads * PODS_EACH[unit] // 2:
        raise RuntimeError(f"expected a fleet in mid-rollout, found {world.state.phase}: {world.summary.message}")
    return world


def _pass(world: World) -> float:
    """One whole pass; only its decision is timed."""
    seen, times = world.observe(), []
    for _ in range(REPEATS):
        gc.collect()
        began = time.process_time()
        decision = decide(world.policy, world.state, seen, world.now)
        times.append(time.process_time() - began)
    world.carry_out(decision)
    world.train()
    world.turn()
    world.now = round(world.now + INTERVAL_SECONDS, 3)
    return min(times)


def sloped(rows: Sequence[Row]) -> list[Sloped]:
    """The measurements with the slope of each signal and unit between its smallest and its largest fleet."""
    return [
        Sloped(**row, slope=round(_slope([other for other in rows if _kind(other) == _kind(row)]), 2)) for row in rows
    ]


def _kind(row: Row) -> tuple[str, str]:
    return row["signal"], row["unit"]


def _slope(rows: Sequence[Row]) -> float:
    found = sorted((row["pods"], row["cpu_seconds"]) for row in rows)
    (few, short), (many, long) = found[0], found[-1]
    return math.log(long / short) / math.log(many / few)


def main(arguments: list[str] | None = None) -> int:
    """Print the table, and exit with 1 where a decision is over its budget."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench.decide", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    options = parser.parse_args(arguments)
    rows = sloped(measure())
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print(f"{'signal':12}{'unit':10}{'workloads':>10}{'pods':>8}{'CPU s':>9}{'budget s':>10}")
        for row in rows:
            kind, budget = f"{row['signal']:12}{row['unit']:10}", BUDGET_SECONDS[row["pods"]]
            print(f"{kind}{row['workloads']:>10}{row['pods']:>8}{row['cpu_seconds']:>9.3f}{budget:>10g}")
        for (signal, unit), power in {_kind(row): row["slope"] for row in rows}.items():
            print(f"{signal:12}{unit:10} grows with the number of pods to the power of {power:.2f}")
    return int(any(row["cpu_seconds"] > BUDGET_SECONDS[row["pods"]] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
