"""What counts as an odd policy that was refused, or answered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from lab.bench.api import Refused
from lab.faults import misoperation
from lab.faults.misoperation import Misoperation, judge, try_all
from lab.faults.odd import OddPolicy
from lab.faults.proxy import Line
from lab.faults.trace import read_trace
from lab.faults.workflows import Place, policy
from precision_operator.api.state import State
from tests.support.traces import Builder

ODD = OddPolicy("target", {"target": "bf16"})


@dataclass
class FakeApi:
    """An API server with one policy, and an operator that answers each edit."""

    refusals: list[int] = field(default_factory=list)
    """Answers to the next edits; 0: it is taken."""
    pruned: bool = False
    silent: bool = False
    body: dict[str, Any] = field(default_factory=lambda: {**policy({}), "metadata": {"generation": 1}, "status": {}})

    async def get(self, _: str) -> dict[str, Any]:
        return self.body

    async def put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if body["spec"] != policy({})["spec"] and self.refusals and (status := self.refusals.pop(0)):
            raise Refused(f"PUT {path}", status, "at revision 1409")
        changed = body["spec"] != self.body["spec"] and not self.pruned
        generation = self.body["metadata"]["generation"] + changed
        seen = self.body["status"] if self.silent else {"conditions": ["any"], "observedGeneration": generation}
        self.body = {**body, "spec": body["spec"], "metadata": {"generation": generation}, "status": seen}
        return self.body


def tried(api: FakeApi) -> Misoperation:
    async def nothing() -> None:
        """Nothing is harmed."""

    found, server, trainers = Misoperation(), cast(Any, api), cast(Any, None)
    place = Place(server, trainers, "odd-0", Line(), nothing, nothing, nothing)
    asyncio.run(try_all(place, [ODD], found))
    return found


def test_what_the_server_stores_and_the_operator_answers_is_taken() -> None:
    assert tried(FakeApi()) == Misoperation(taken=1)


@pytest.mark.parametrize("status", [400, 422])
def test_what_is_wrong_with_the_policy_is_refused(status: int) -> None:
    assert tried(FakeApi(refusals=[status])) == Misoperation(refused=1)


@pytest.mark.parametrize("status", [404, 429, 500, 504])
def test_an_answer_that_says_nothing_of_the_policy_is_no_refusal(status: int) -> None:
    found = tried(FakeApi(refusals=[status]))
    assert (found.count, len(found.violations)) == (0, 1)
    assert found.violations[0].startswith("target = 'bf16': ")


def test_a_conflict_is_tried_again_and_no_other_answer_that_has_its_number_in_it() -> None:
    assert tried(FakeApi(refusals=[409, 0])) == Misoperation(taken=1)
    assert tried(FakeApi(refusals=[422])) == Misoperation(refused=1)


def test_an_edit_of_which_nothing_was_stored_was_answered_by_nobody() -> None:
    assert tried(FakeApi(pruned=True)) == Misoperation(unchanged=1)


def test_an_edit_without_a_status_about_it_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(misoperation, "TOLD_SECONDS", 0.0)
    assert len(tried(FakeApi(silent=True)).violations) == 2


@pytest.mark.parametrize("epochs", [(1, 2), (2, 1)])
def test_the_trace_that_was_checked_is_kept_and_named_by_each_violation(
    tmp_path: Path, epochs: tuple[int, ...]
) -> None:
    built, found = Builder(), Misoperation()
    for epoch in epochs:
        built.state(replace(State(), epoch=epoch))
    judge(built.trace(), found, directory=tmp_path, secrets={})
    (kept,) = tmp_path.iterdir()
    assert read_trace(kept) == built.trace()
    assert [violation.startswith("I8 ") and str(kept) in violation for violation in found.violations] == (
        [True] if epochs == (2, 1) else []
    )
