"""Mutants are wrong in one place, live in a process of their own, and meet only the tests that call them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lab.mutants.judges import CORE, Judge
from lab.mutants.operators import places
from lab.mutants.run import forked, meet
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


def spins() -> Iterator[str]:
    for _ in iter(int, 1):
        pass
    yield "never"


def test_a_mutant_meets_in_a_process_of_its_own_what_calls_it_and_nothing_else() -> None:
    (lost,) = [
        place for place in places("precision_operator.core.cohorts.order", COHORTS) if place.what == "max becomes min"
    ][:1]
    here = frozenset({(str(COHORTS), "cohort_size")})
    elsewhere = Judge("elsewhere", lambda: "met for nothing", 0.0, frozenset({(str(COHORTS), "rank")}))
    own = Judge("own", lambda: "" if cohort_size(1, 3) == 1 else "an empty canary", 0.0, here)
    endless = Judge("endless", lambda: "" if cohort_size(1, 3) == 1 else next(spins()), -0.49, here)
    mutant = lost.mutant()
    assert mutant is not None
    lives = [(judge.name, partial(meet, mutant, [elsewhere, judge])) for judge in (own, endless)]
    assert dict(forked(iter(lives), processes=2)) == {"own": "own", "endless": None}
    assert cohort_size(1, 3) == 1
