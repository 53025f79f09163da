"""Mutants are wrong in one place, live in a process of their own, and meet only the tests that call them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Event
from types import ModuleType

import pytest

from lab.errors import LabError
from lab.model import cli
from lab.model.cli import out_of_bounds
from lab.model.explore import Result
from lab.mutants import run
from lab.mutants.infection import watched
from lab.mutants.judges import CORE, COUNTING, LEFT_OUT, MUTATED, Judge, mutated
from lab.mutants.operators import Mutant, places
from lab.mutants.run import Mutation, forked, meet
from lab.mutants.typed import refused
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


def test_what_no_mutant_could_change_in_a_loaded_module_is_not_mutated(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "LIMIT: float = 1 + 2\n\n\nclass Limits:\n    least = 3\n\n    def of(self, found: object) -> bool:\n"
        "        match found:\n            case 4:\n                return True\n        return False\n"
    )
    assert [place.what for place in places("module", module)] == ["True becomes False", "False becomes True"]


def test_what_is_mutated_exists() -> None:
    assert all(path.exists() for path in (*MUTATED, COUNTING, *(ROOT / name for name in LEFT_OUT)))
    assert {"rounds.py", "writes.py", "budgets.py", "job.py", "pod.py"} <= {path.name for path in mutated()}


PLACES = """
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Canary:
    size: int = 1


def watched(sizes, limit):
    grown = [size for size in sizes if size > limit]
    if (most := max(grown, default=0)) and limit:
        limit += 1
    return any(size == limit for size in grown), replace(Canary(), size=most if grown else 1)
"""


@pytest.fixture
def canaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A loaded module, of which everything can be infected."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "canaries.py").write_text(PLACES)
    yield import_module("canaries")
    sys.modules.pop("canaries")


def infected(module: ModuleType, *given: tuple[list[int], int], pure: bool = True) -> list[str]:
    """What of the module is infected where it is called so."""
    path = Path(str(module.__file__))
    with watched([("canaries", path, pure)]) as watcher:
        for sizes, limit in given:
            module.watched(sizes, limit)
    return [place.what for place in places("canaries", path) if place.key in watcher.infected]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (([], 0), ["0 becomes 1", "And becomes Or", "condition 1 dropped", "any becomes all", "1 becomes 2"]),
        (([2], 2), ["filter dropped", "Gt becomes GtE"]),
        (([3], 2), ["Gt becomes Lt", "branch never taken", "always the second choice"]),
    ],
)
def test_a_place_is_infected_where_a_mutant_would_make_another_value_of_it(
    canaries: ModuleType, given: tuple[list[int], int], found: list[str]
) -> None:
    assert set(found) <= set(infected(canaries, given))


def test_a_place_that_comes_to_the_same_with_its_mutant_is_not_infected(canaries: ModuleType) -> None:
    asked = {"Gt becomes Lt", "branch never taken", "size left out"}
    assert not asked & set(infected(canaries, ([], 0)))
    assert asked < set(infected(canaries, ([], 0), ([3], 2)))


def test_in_a_module_that_counts_nothing_is_evaluated_twice(canaries: ModuleType) -> None:
    class Sizes(list[int]):
        looks = 0

        def __iter__(self) -> Iterator[int]:
            self.looks += 1
            return super().__iter__()

    sizes = Sizes([1])
    assert "any becomes all" in infected(canaries, (sizes, 2), pure=False)
    assert sizes.looks == 1


def test_a_module_that_was_watched_is_as_it_was(canaries: ModuleType) -> None:
    before = canaries.watched.__code__
    infected(canaries, ([3], 2))
    assert canaries.watched.__code__ is before


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
    mutant = lost()
    waits = Judge("waits", lambda: str(Event().wait()), infected=frozenset({mutant.key}))
    assert dict(forked(iter([("waits", partial(meet, mutant, [waits]))]), processes=1)) == {"waits": None}


def test_a_mutant_meets_in_a_process_of_its_own_whom_it_infects_and_nobody_else() -> None:
    mutant = lost()
    here = frozenset({mutant.key})
    elsewhere = Judge("elsewhere", lambda: "met for nothing")
    own = Judge("own", lambda: "" if cohort_size(1, 3) == 1 else "an empty canary", 0.0, here)
    endless = Judge("endless", lambda: "" if cohort_size(1, 3) == 1 else next(spins()), -0.49, here)
    lives = [(judge.name, partial(meet, mutant, [elsewhere, judge])) for judge in (own, endless)]
    assert dict(forked(iter(lives), processes=2)) == {"own": "own", "endless": None}
    assert cohort_size(1, 3) == 1


def test_a_judge_that_notices_what_is_right_is_found() -> None:
    mutant = lost()
    honest = Judge("honest", lambda: "" if cohort_size(1, 3) == 1 else "an empty canary", 0.0, frozenset({mutant.key}))
    broken = Judge("broken", lambda: "always", 0.0, frozenset({mutant.key}))
    run._control([mutant], [honest])
    run._confirm([mutant], [honest])
    with pytest.raises(LabError, match="found broken"):
        run._control([mutant], [honest, broken])
    with pytest.raises(LabError, match="found broken"):
        run._confirm([mutant], [honest, broken])


@pytest.mark.parametrize(("wrong", "found"), [("found.index < 0", True), ("found is None or found.index <= 0", False)])
def test_a_mutant_whose_types_do_not_fit_is_refused_and_no_other(wrong: str, found: bool) -> None:
    head = "from precision_operator.core.model import PodView\n\n\ndef first(found: PodView | None) -> bool:\n"
    right = f"{head}    return {{}}\n"
    path = CORE / "cohorts" / "order.py"
    mutant = Mutant(
        ("m", 0, 0), "a", "m", path, right.format("found is None or found.index < 0"), right.format(wrong), ""
    )
    assert list(refused([mutant])) == [mutant] * found
