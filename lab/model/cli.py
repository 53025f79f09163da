"""`python -m lab.model explore | replay FILE | mutate | all`: the model from a shell."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from lab import paths
from lab.errors import LabError
from lab.model.explore import Explorer, Result
from lab.model.scenarios import scenario, scenarios
from lab.model.trace import read_trace, replay, write_trace
from lab.mutants.run import Mutation, mutate
from lab.progress import console, say

REPORT = paths.BUILD / "model.json"
TRACES = paths.BUILD / "model"

DEPTH, FAULTS, SECONDS = 8, 2, 150.0
MUTANTS, MINUTES = 300, 60.0
"""What a whole run asks for."""

LEAST_DEPTH, LEAST_FAULTS = 8, 1
LEAST_MUTANTS, LEAST_KILLED = 300, 0.9
"""What a whole run must come to: one that time ended early says little. So it goes on until it has tried so many faults."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit code is 0 where nothing was violated, and a whole run was within its bounds."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except LabError as error:
        console.print(f"[red]stopped[/red]: {escape(str(error))}")
        return 2
    except KeyboardInterrupt:
        console.print("[red]interrupted[/red]")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.model", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    explore = commands.add_parser("explore", help="run decide under everything that can happen to a small fleet")
    mutate_ = commands.add_parser(
        "mutate", help="break what decides in one place at a time: do tests and explorer notice?"
    )
    both = commands.add_parser("all", help="both, and write build/model.json")
    again = commands.add_parser("replay", help="run the trace of a violation again, state by state")
    for command in (explore, both):
        command.add_argument("--depth", type=int, default=DEPTH, help="events in a sequence (default: %(default)s)")
        command.add_argument(
            "--faults", type=int, default=FAULTS, help="faults, commands, edits in it (default: %(default)s)"
        )
        command.add_argument(
            "--seconds",
            type=float,
            default=SECONDS,
            help=f"a scenario ends then; by default not before all with {LEAST_FAULTS} fault was tried (%(default)s)",
        )
    for command in (mutate_, both):
        command.add_argument("--mutants", type=int, default=MUTANTS, help="size of the sample (default: %(default)s)")
        command.add_argument(
            "--minutes",
            type=float,
            default=MINUTES,
            help="after the first, none begins later (default: %(default)s)",
        )
        command.add_argument("--seed", type=int, default=5, help="of the sample (default: %(default)s)")
        command.add_argument("--only", default="", help="only mutants whose name contains this")
    explore.add_argument("--scenario", action="append", choices=[s.name for s in scenarios()], help="only this one")
    again.add_argument("file", type=Path)
    explore.set_defaults(run=lambda options: _explore(options, options.scenario))
    mutate_.set_defaults(run=_mutate)
    both.set_defaults(run=lambda options: _explore(options, None) | _mutate(options))
    again.set_defaults(run=_replay)
    return parser


def _explore(options: argparse.Namespace, only: list[str] | None) -> int:
    names = only or [entry.name for entry in scenarios()]
    complete = (options.depth, options.faults, options.seconds) == (DEPTH, FAULTS, SECONDS)
    results = explore_all(
        names,
        depth=options.depth,
        faults=options.faults,
        seconds=options.seconds,
        least_faults=LEAST_FAULTS if complete else -1,
    )
    table = Table("scenario", "states", "transitions", "depth", "faults", "then", "violations", "seconds")
    for result in results:
        row = (result.states, result.transitions, result.depth, result.faults, result.begun or "-")
        table.add_row(result.scenario, *map(str, (*row, len(result.findings), round(result.seconds))))
    console.print(table)
    for result in results:
        for finding in result.findings:
            path = write_trace(finding, TRACES)
            say(
                f"{result.scenario}: {finding.violation}, after {len(finding.trace)} events: {path.relative_to(paths.ROOT)}"
            )
    whole = only is None and complete
    return int(any(result.findings for result in results)) | _report(
        {
            "workloads": max(len(scenario(name).start.workloads) for name in names),
            "states": sum(result.states for result in results),
            "transitions": sum(result.transitions for result in results),
            "depth": min(result.depth for result in results),
            "faults": min(result.faults for result in results),
            "violations": sum(len(result.findings) for result in results),
            "scenarios": {
                result.scenario: {
                    "states": result.states,
                    "depth": result.depth,
                    "faults": result.faults,
                    "depth_with_one_fault_more": result.begun,
                }
                for result in results
            },
        },
        whole=whole,
    )


def explore_all(names: Iterable[str], *, depth: int, faults: int, seconds: float, least_faults: int) -> list[Result]:
    """Explore the scenarios, two at a time, each in a process of its own, under one bar; as ``Explorer.run`` does."""
    order = list(names)
    with (
        multiprocessing.Manager() as manager,
        multiprocessing.Pool(min(2, len(order)), maxtasksperchild=1) as pool,
        Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console) as bar,
    ):
        reached_by = manager.dict()
        tasks = {name: bar.add_task(name, total=None) for name in order}
        asked = depth, faults, seconds, least_faults
        pending = [pool.apply_async(_explore_one, (name, *asked, reached_by)) for name in order]
        while not all(entry.ready() for entry in pending):
            pending[-1].wait(0.5)
            for name, reached in dict(reached_by).items():
                bar.update(tasks[name], description=f"{name}: {reached}")
        return [entry.get() for entry in pending]


def _explore_one(
    name: str, depth: int, faults: int, seconds: float, least_faults: int, reached_by: dict[str, str]
) -> Result:
    last = time.monotonic()

    def tell(result: Result) -> None:
        nonlocal last
        if time.monotonic() - last > 1.0:
            last = time.monotonic()
            reached_by[name] = (
                f"{result.states} states, depth {result.depth} of {depth} with {result.faults} of {faults} faults"
            )

    explorer = Explorer(scenario(name))
    return explorer.run(depth=depth, faults=faults, seconds=seconds, least_faults=least_faults, tell=tell)


def _replay(options: argparse.Namespace) -> int:
    lines, violations = replay(*read_trace(options.file))
    print("\n".join(lines))
    for violation in violations:
        console.print(f"[red]violated[/red] {escape(str(violation))}")
    return int(bool(violations))


def _mutate(options: argparse.Namespace) -> int:
    mutations: list[Mutation] = mutate(
        count=options.mutants, seed=options.seed, seconds=60.0 * options.minutes, only=options.only
    )
    survivors = [entry for entry in mutations if not entry.killed_by]
    for entry in survivors:
        console.print(f"[red]survived[/red] {escape(entry.name)}\n{escape(entry.diff)}")
    killers: dict[str, int] = {}
    for entry in mutations:
        killer = (entry.killed_by or "nobody").partition("::")[0]
        killers[killer] = killers.get(killer, 0) + 1
    say(f"{len(mutations)} mutants: " + ", ".join(f"{count} by {who}" for who, count in sorted(killers.items())))
    whole = not options.only and (options.mutants, options.minutes) == (MUTANTS, MINUTES)
    return _report(
        {
            "mutants": len(mutations),
            "killed": len(mutations) - len(survivors),
            "killers": killers,
            "seed": options.seed,
            "survivors": [{"name": entry.name, "diff": entry.diff} for entry in survivors],
        },
        whole=whole,
    )


def out_of_bounds(part: Mapping[str, Any]) -> list[str]:
    """What a whole run of the exploration, or of the mutants, did not come to, each with its bound."""
    found: list[str] = []
    if "depth" in part and (part["faults"] < LEAST_FAULTS or part["depth"] < LEAST_DEPTH):
        bound = f"at least {LEAST_DEPTH} with {LEAST_FAULTS} fault in every scenario"
        found.append(f"depth: {bound}, found {part['depth']} with {part['faults']}")
    if "mutants" in part and part["mutants"] < LEAST_MUTANTS:
        found.append(f"mutants: at least {LEAST_MUTANTS} judged, found {part['mutants']}")
    if "mutants" in part and part["killed"] < LEAST_KILLED * part["mutants"]:
        found.append(f"killed: at least {LEAST_KILLED:.0%} of {part['mutants']}, found {part['killed']}")
    return found


def _report(part: dict[str, object], *, whole: bool) -> int:
    """Add to build/model.json: exploration and mutation may be run apart. 1 where a whole run is out of its bounds."""
    before = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps({**before, **part}, indent=1) + "\n")
    broken = out_of_bounds(part) if whole else []
    for bound in broken:
        console.print(f"[red]out of bounds[/red]: {bound}")
    return int(bool(broken))
