"""Mutants are wrong in one place, live in a process of their own, and meet only the tests that call them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from lab.model import cli
from lab.model.cli import out_of_bounds
from lab.model.explore import Result
from lab.mutants import run
from lab.mutants.judges import CORE, LEFT_OUT, MUTATED, PACKAGE, Judge, mutated
from lab.mutants.operators import Mutant, places
from lab.mutants.run import Mutation, forked, meet
from lab.paths import ROOT
from precision_operator.core.cohorts.order import cohort_size

pytestmark = pytest.mark.slow

COHORTS = CORE / "cohorts" / "order.py"


def test_mutants_are_wrong_in_one_place_and_spare_texts(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""A text."""\n\n\ndef late(at: float, limit: float | None) -> bool:\n'
        '    """Another."""\n    return limit is not None and at > limit\n'
    )
    found = [mutant for place in places("module", module) if (mutant := place.mutant()) is not None]
    assert {mutant.name.partition(" ")[2] for mutant in found} == {
        "And becomes Or",
        "condition 1 dropped",
        "condition 2 dropped",
        "IsNot becomes Is",
        "Gt becomes GtE",
        "Gt becomes Lt",
    }
    for mutant in found:
        compile(mutant.wrong, mutant.name, "exec")
        assert mutant.diff.count("\n-") + mutant.diff.startswith("-") == 1


def test_coroutines_are_mutated_too_and_their_signatures_are_not(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("async def late(at: float | None = 1) -> float | None:\n    return at if at > 2 else None\n")
    found = {place.what for place in places("module", module) if place.mutant() is not None}
    choices = {"always the first choice", "always the second choice"}
    assert found == {*choices, "Gt becomes GtE", "Gt becomes Lt", "2 becomes 3"}


def test_what_is_mutated_exists_and_an_exploration_judges_the_core_alone() -> None:
    assert all(path.exists() for path in (*MUTATED, *(ROOT / name for name in LEFT_OUT)))
    assert {"rounds.py", "writes.py", "budgets.py", "job.py", "pod.py"} <= {path.name for path in mutated()}
    exploration = Judge("explorer::jobs", lambda: "")
    assert exploration.reaches(frozenset({(str(COHORTS), "rank")}))
    assert not exploration.reaches(frozenset({(str(PACKAGE / "workloads" / "budgets.py"), "rank")}))
    assert not exploration.reaches(frozenset())


@pytest.mark.parametrize(
    ("part", "bounds"),
    [
        ({"depth": 8, "faults": 1}, []),
        ({"depth": 8, "faults": 0}, ["depth"]),
        ({"depth": 7, "faults": 1}, ["depth"]),
        ({"mutants": 300, "killed": 270}, []),
        ({"mutants": 300, "killed": 269}, ["killed"]),
        ({"mutants": 299, "killed": 299}, ["mutants"]),
        ({"mutants": 0, "killed": 0}, ["mutants"]),
    ],
)
def test_a_whole_run_that_says_too_little_is_named_with_its_bound(part: dict[str, int], bounds: list[str]) -> None:
    assert [line.partition(":")[0] for line in out_of_bounds(part)] == bounds


@pytest.mark.parametrize(
    ("words", "code"), [(("mutate",), 1), (("mutate", "--mutants", "2"), 0), (("mutate", "--only", "core"), 0)]
)
def test_only_a_whole_run_fails_for_what_survives(
    words: tuple[str, ...], code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "REPORT", tmp_path / "model.json")
    monkeypatch.setattr(cli, "mutate", lambda **_: [Mutation("core.x:1 Lt becomes Gt", "", "")] * 300)
    assert cli.main(list(words)) == code


@pytest.mark.parametrize(("words", "code"), [(("explore",), 1), (("explore", "--depth", "2"), 0)])
def test_only_a_whole_run_fails_for_how_deep_it_came(
    words: tuple[str, ...], code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "REPORT", tmp_path / "model.json")
    monkeypatch.setattr(cli, "explore_all", lambda *_, **__: [Result("jobs", depth=2, faults=1)])
    assert cli.main(list(words)) == code


def spins() -> Iterator[str]:
    for _ in iter(int, 1):
        pass
    yield "never"


def lost() -> Mutant:
    module = "precision_operator.core.cohorts.order"
    (place, *_) = (place for place in places(module, COHORTS) if place.what == "max becomes min")
    mutant = place.mutant()
    assert mutant is not None
    return mutant


def test_a_mutant_for_which_a_test_waits_without_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_WAITING_SECONDS", 0.2)
    waits = Judge("waits", lambda: str(Event().wait()), 0.0, frozenset({(str(COHORTS), "cohort_size")}))
    assert dict(forked(iter([("waits", partial(meet, lost(), [waits]))]), processes=1)) == {"waits": None}


def test_a_mutant_meets_in_a_process_of_its_own_what_calls_it_and_nothing_else() -> None:
    here = frozenset({(str(COHORTS), "cohort_size")})
    elsewhere = Judge("elsewhere", lambda: "met for nothing", 0.0, frozenset({(str(COHORTS), "rank")}))
    own = Judge("own", lambda: "" if cohort_size(1, 3) == 1 else "an empty canary", 0.0, here)
    endless = Judge("endless", lambda: "" if cohort_size(1, 3) == 1 else next(spins()), -0.49, here)
    lives = [(judge.name, partial(meet, lost(), [elsewhere, judge])) for judge in (own, endless)]
    assert dict(forked(iter(lives), processes=2)) == {"own": "own", "endless": None}
    assert cohort_size(1, 3) == 1
