"""Alerts, recording rules and runbooks: how many there are, and how many of them are tested.

The tests of rules write promtool's test files. These are kept and given to promtool again here. A rule counts as
tested only where a file that promtool passes names it: an alert where it fires in one test and does not in another, a
recording rule where a value is expected of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import yaml

from lab import paths
from lab.docs.commands import Block, all_blocks, shell_blocks
from lab.errors import LabError
from lab.isolation.part import Figures, Section
from lab.prometheus import prometheus_program
from lab.surfaces.pages import RESULT, RUNBOOK_COMMANDS
from lab.surfaces.sentences import PAGE, commands_in_sentences, runbooks

Json = Mapping[str, Any]
RULES = paths.ROOT / "manifests" / "monitoring" / "alerts.yaml"
LEAST_ALERTS = 12


def alerts(directory: Path) -> Figures:
    """Alerts, and their runbooks with the commands in these."""
    names = _shipped("alert")
    expected: dict[str, set[bool]] = defaultdict(set)
    for test in _passed("tests/chart/test_rules.py", directory):
        for looked in test.get("alert_rule_test", []):
            expected[looked["alertname"]].add(bool(looked["exp_alerts"]))
    page = runbooks()
    return {
        "rules": len(names),
        "tested": sum(expected[name] == {True, False} for name in names),
        "runbooks": sum(f"\n### {name}\n" in page for name in names),
        **runbook_commands(shell_blocks(all_blocks()), page, succeeded=succeeded()),
    }


def recording_rules(directory: Path) -> Figures:
    """Recording rules."""
    names = _shipped("record")
    expected = {
        looked["expr"]
        for test in _passed("tests/chart/test_records.py", directory)
        for looked in test.get("promql_expr_test", [])
        if looked["exp_samples"]
    }
    return {"rules": len(names), "tested": len(names & expected)}


def missed(found: Section) -> list[str]:
    """What is not tested, or has no runbook or a command that nothing runs."""
    assert isinstance(found, Mapping)
    halves = (("rules", "tested"), ("rules", "runbooks"))
    missing = [
        f"expected {whole} = {part}, found {found[whole]} and {found[part]}"
        for whole, part in halves
        if part in found and found[whole] != found[part]
    ]
    if "runbooks" not in found:
        return missing  # recording rules have none
    alerts_found, commands, marked = (
        _count(found[name]) for name in ("rules", "runbook_commands", "runbook_commands_marked")
    )
    if alerts_found < LEAST_ALERTS:
        missing.append(f"expected at least {LEAST_ALERTS} alerts, found {alerts_found}")
    run = found["runbook_commands_run"]
    if run is None:
        missing.append(f"expected {RESULT} with the runbooks' commands that succeeded, found none: run `make surfaces`")
    elif commands != _count(run) + marked:
        missing.append(
            f"expected {commands} commands of the runbooks, found {run} that succeeded and {marked} with a reason: "
            "`make surfaces` names what fails"
        )
    return missing


def _count(figure: object) -> int:
    assert isinstance(figure, int), figure
    return figure


def _shipped(kind: str) -> set[str]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule[kind] for group in groups for rule in group["rules"] if kind in rule}


def _passed(module: str, directory: Path) -> list[Json]:
    """The tests of the files that a test module writes and promtool passes."""
    kept = directory / "tests"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={kept}", module]
    done = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise LabError(f"{module} to pass", done.stdout[-2000:], f"run {' '.join(command[1:])}")
    files = [path for path in kept.glob("*/test.yaml") if not path.parent.is_symlink()]
    judged = [path for path in files if _promtool(path)]
    return [test for path in judged for test in yaml.safe_load(path.read_text())["tests"]]


def _promtool(path: Path) -> bool:
    command: list[str | Path] = [prometheus_program("promtool"), "test", "rules", path]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def succeeded() -> frozenset[str] | None:
    """The runbooks' commands that succeeded when `make surfaces` pasted and rehearsed them last; None: it has not ended."""
    ran = json.loads(RESULT.read_text()).get(RUNBOOK_COMMANDS) if RESULT.exists() else None
    return None if ran is None else frozenset(ran)


def runbook_commands(blocks: Sequence[Block], page: str, *, succeeded: AbstractSet[str] | None) -> Figures:
    """The runbooks' different commands: all, those that ran with success, of these those in sentences, those not run for a
    reason. What ran is None where `make surfaces` has not ended.
    """
    ours = [block for block in blocks if block.page == PAGE]
    told = set(commands_in_sentences(blocks, page))
    commands = {line for block in ours for line in block.kubectl} | told
    marked = {line for block in ours if block.reason for line in block.kubectl} - (succeeded or set())
    return {
        "runbook_commands": len(commands),
        "runbook_commands_run": None if succeeded is None else len(commands & succeeded),
        "runbook_commands_rehearsed": None if succeeded is None else len(told & succeeded),
        "runbook_commands_marked": len(marked),
    }
