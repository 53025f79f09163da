"""What build/faults.json says, and when a run is no proof."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.errors import LabError
from lab.faults import __main__ as faults
from lab.faults.__main__ import Found
from lab.faults.batch import Outcome, Run
from lab.faults.campaign import Campaign
from lab.faults.misoperation import Misoperation
from lab.faults.rules import Fault, Injection, Write
from lab.faults.soak import SoakResult
from lab.faults.workflows import WORKFLOWS

WRITES = tuple(Write("PATCH", "pods", "hot-0", nth) for nth in range(1, 11))
NO_SOAK = ("--soak-minutes", "0")


@dataclass
class Figures:
    """What a run comes to."""

    injections: int = 500
    kills: int = 2 * len(WORKFLOWS)
    writes: int = len(WRITES)
    """Of each workflow."""
    odd: int = 300
    taken: int = 20
    """Of the odd policies."""
    soak_faults: int = 20
    interrupt: bool = False
    violations: tuple[str, ...] = ()
    """Of the odd policies; the other parts have theirs."""
    in_a_run: tuple[str, ...] = ()
    in_the_soak: tuple[str, ...] = ()
    crashes: int = 0
    odd_crashes: int = 0
    soak_crashes: int = 0
    lost: int = 0
    """Steps."""

    async def inject(self, found: Found, *, odd: int) -> None:
        injection = Injection(WORKFLOWS[0].name, WRITES[0], Fault.DELAY)
        run = Run(WORKFLOWS[0], (injection,))
        outcome = Outcome(run, WRITES, frozenset({Fault.DELAY}), (), Path("trace"))
        found.campaign.outcomes += [outcome] * self.injections
        found.campaign.outcomes += [replace(outcome, done=frozenset(), violations=self.in_a_run)]
        found.campaign.crashes += ["exit code 1"] * self.crashes
        found.campaign.kills = self.kills
        found.campaign.gaps = 2
        found.campaign.learned = {work.name: WRITES[: self.writes] for work in found.campaign.chosen}
        if odd:
            found.odd = Misoperation(
                self.odd - self.taken,
                self.taken,
                gaps=1,
                violations=list(self.violations),
                crashes=["exit code 1"] * self.odd_crashes,
            )
        if self.interrupt:
            raise KeyboardInterrupt

    def soak(self, *_: object, **__: object) -> SoakResult:
        crashes = ("exit code 1",) * self.soak_crashes
        faults = {"etcd": self.soak_faults}
        return SoakResult(20.0, faults, crashes, 9, self.lost, self.in_the_soak, {}, 1, Path("trace"), gaps=3)


Runs = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    """Runs the command; returns its exit code and what it wrote."""
    monkeypatch.setattr(faults, "RESULT", tmp_path / "faults.json")
    monkeypatch.setattr(faults, "TRACES", tmp_path / "faults")
    monkeypatch.setattr(faults, "require_no_cluster", lambda: None)
    monkeypatch.setattr(faults, "require_machine", lambda: None)
    monkeypatch.setattr(faults, "take_sigterm_as_interrupt", lambda: None)  # of the process that runs the tests

    def run(figures: Figures, *arguments: str) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(faults, "inject", figures.inject)
        monkeypatch.setattr(faults, "soak", figures.soak)
        return faults.main(arguments), json.loads(faults.RESULT.read_text())

    return run


def test_a_default_run_that_did_enough_is_complete_and_passes(ran: Runs) -> None:
    code, written = ran(Figures())
    assert code == 0
    assert written["complete"] is True
    assert (written["injections"], written["odd_policies"], written["soak_faults"]) == (500, 300, 20)
    assert written["gaps"] == 2 + 1 + 3


def test_the_figures_have_the_names_that_programs_read(ran: Runs) -> None:
    _, written = ran(Figures())
    assert written == {
        "seed": 16,
        "workflows": len(WORKFLOWS),
        "writes": len(WORKFLOWS) * len(WRITES),
        "kills": 2 * len(WORKFLOWS),
        "injections": 500,
        "violations": 0,
        "odd_policies": 300,
        "crashes": 0,
        "soak_minutes": 20.0,
        "soak_faults": 20,
        "steps_lost_hot": 0,
        # Beyond those that the run is judged by:
        "complete": True,
        "minutes": written["minutes"],
        "missed": 1,
        "gaps": 6,
        "odd_policies_taken": 20,
        "odd_policies_refused": 280,
    }


@pytest.mark.parametrize(
    ("figures", "name"),
    [
        (Figures(in_a_run=("L1 at the end",)), "violations"),
        (Figures(violations=("I8 at revision 7",)), "violations"),
        (Figures(in_the_soak=("a restart",)), "violations"),
        (Figures(crashes=1), "crashes"),
        (Figures(odd_crashes=1), "crashes"),
        (Figures(soak_crashes=1), "crashes"),
        (Figures(lost=1), "steps_lost_hot"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_complete_run_fails_by_one_violation_one_crash_or_one_lost_step(
    ran: Runs, figures: Figures, name: str
) -> None:
    code, written = ran(figures)
    assert (code, written["complete"], written[name]) == (1, True, 1)


def test_the_minutes_are_those_of_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "time", SimpleNamespace(monotonic=lambda: 3700.0))
    found = Found(Campaign(16, None, Path("traces")), began_at=100.0)
    assert found.figures()["minutes"] == 60.0


@pytest.mark.parametrize(
    ("figures", "named"),
    [
        (Figures(injections=499), "at least 500 injections, found 499"),
        (Figures(kills=2 * len(WORKFLOWS) - 1), f"at least {2 * len(WORKFLOWS)} kills"),
        (Figures(writes=9), "at least 100 writes, found 90"),
        (Figures(odd=299), "at least 300 odd_policies, found 299"),
        (Figures(taken=19), "at least 20 odd_policies_taken, found 19"),
        (Figures(soak_faults=19), "at least 20 soak_faults, found 19"),
    ],
)
def test_a_default_run_that_did_too_little_fails_and_names_the_floor(
    ran: Runs, capfd: pytest.CaptureFixture[str], figures: Figures, named: str
) -> None:
    assert ran(figures)[0] == 1
    said = capfd.readouterr()
    assert named in " ".join((said.out + said.err).split())


@pytest.mark.parametrize(
    "arguments",
    [("--count", "0", "--odd", "0", *NO_SOAK), ("--count", "0", "emergency"), ("--odd", "5", "--count", "3", *NO_SOAK)],
)
def test_a_run_that_was_asked_for_less_has_no_floor(ran: Runs, arguments: tuple[str, ...]) -> None:
    assert ran(Figures(1, 0, 1, 1, 0, 0), *arguments)[0] == 0


def test_a_part_that_was_not_run_is_null(ran: Runs) -> None:
    _, written = ran(Figures(), "--odd", "0", *NO_SOAK)
    for name in ("odd_policies", "odd_policies_refused", "soak_minutes", "soak_faults", "steps_lost_hot"):
        assert written[name] is None


def test_an_interrupted_run_is_not_complete_and_keeps_what_it_found(ran: Runs) -> None:
    code, written = ran(Figures(interrupt=True, violations=("L1",)))
    assert code == 130
    assert (written["complete"], written["violations"]) == (False, 1)


def test_a_run_that_is_killed_leaves_no_figures_of_the_one_before(ran: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    ran(Figures())

    class Killed(BaseException):
        """Stands for SIGKILL."""

    def killed(self: Found) -> dict[str, object]:
        raise Killed

    monkeypatch.setattr(Found, "figures", killed)
    with pytest.raises(Killed):
        ran(Figures())
    assert not faults.RESULT.exists()


@pytest.mark.parametrize("refuses", ["require_machine", "require_no_cluster"])
def test_a_machine_that_cannot_soak_is_refused_before_the_other_parts_take_their_time(
    ran: Runs, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], refuses: str
) -> None:
    def refuse() -> None:
        raise LabError("to run as root", "user 1000", "run the same command with sudo")

    monkeypatch.setattr(faults, refuses, refuse)
    monkeypatch.setattr(faults, "inject", None)
    assert faults.main([]) == 1
    said = capfd.readouterr()
    assert "run the same command with sudo" in said.out + said.err
    assert not faults.RESULT.exists()


def test_a_part_that_stops_is_said_and_leaves_the_figures_incomplete(
    ran: Runs, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def stopped(self: Figures, *_: object, **__: object) -> SoakResult:
        raise LabError("a pod to kill", "none", "look at its Deployment")

    monkeypatch.setattr(Figures, "soak", stopped)
    code, written = ran(Figures())
    said = capfd.readouterr()
    assert (code, written["complete"]) == (1, False)
    assert "look at its Deployment" in said.out + said.err
