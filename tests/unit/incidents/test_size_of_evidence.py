"""What an incident's evidence may take: as a whole it has a bound, and says what was left out."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Sequence
from dataclasses import replace

import pytest

from precision_operator.api.assignment import OBJECT_LIMIT_BYTES
from precision_operator.api.signals import Signal
from precision_operator.core.observer import RecordedPass
from precision_operator.incidents.collector import EvidenceCollector
from precision_operator.incidents.document import to_body
from precision_operator.incidents.evidence import (
    LABELS_LIMIT,
    LEFT_OUT,
    OF_A_DAY,
    POINTS,
    RUN_INFO,
    RUN_LABELS,
    SERIES_LIMIT,
    Question,
    evidence_bytes,
    fits,
    fitted,
    keep,
    questions,
    series_of,
)
from precision_operator.incidents.report import DATA_CHARACTERS, Evidence, Recorded
from precision_operator.signals.port import Series
from tests.support.reported import Past, WorldClock, rolled_back

pytestmark = pytest.mark.slow

NOW = 1.7e9
ETCD_BYTES = 3 * 2**19
"""What etcd takes of one object."""


LETTERS = string.ascii_letters + string.digits


def noise(question: Question, names: Sequence[str], *, letters: str = LETTERS) -> Evidence:
    """An answer of more pods than are kept, with values, and labels of these names, that no packing makes smaller."""
    dice = random.Random(question.name)

    def text() -> str:
        return "".join(dice.choices(letters, k=256))

    def value() -> float:
        return dice.uniform(-1, 1) * 10.0 ** dice.randint(-300, 300)

    answer = [
        Series(
            {"pod": f"p-{pod:02}", **{name: text() for name in names}},
            tuple((question.start + n * question.step_seconds, value()) for n in range(POINTS)),
        )
        for pod in range(SERIES_LIMIT + 10)
    ]
    return keep(question, answer, first=["p-1"])


@pytest.fixture(scope="module")
def large() -> list[Evidence]:
    """All that is asked for."""
    asked = questions(
        namespace="ns", queries=dict.fromkeys(Signal, "x"), window_seconds=60.0, detected_at=NOW, now=NOW + 7200.0
    )
    return [noise(question, RUN_LABELS if question.name == RUN_INFO else ()) for question in asked]


@pytest.mark.parametrize("recording_bytes", [256 * 1024, 768 * 1024], ids=["by default", "at most"])
async def test_with_the_largest_recording_an_incident_leaves_etcd_a_margin(
    recording_bytes: int, large: list[Evidence]
) -> None:
    report = (await rolled_back()).report
    assert not fits(large, evidence_bytes(recording_bytes))
    evidence = fitted(large, evidence_bytes(recording_bytes))
    assert fits(evidence, evidence_bytes(recording_bytes))
    body = to_body(
        replace(report, evidence=evidence, recordings=Recorded(64, 0, "A" * recording_bytes)), namespace="ns"
    )
    assert len(json.dumps(body)) < (OBJECT_LIMIT_BYTES + ETCD_BYTES) / 2


def test_trends_over_a_day_lose_their_series_before_all_else(large: list[Evidence]) -> None:
    around = sum(len(evidence.data) for evidence in large if not evidence.name.endswith(OF_A_DAY))
    for evidence in fitted(large, around + 64 * 1024):
        trend = evidence.name.endswith(OF_A_DAY)
        assert (evidence.series < SERIES_LIMIT) is trend, evidence.name
        assert evidence.series > 0, evidence.name


def test_each_answer_says_how_many_series_it_lacks_and_keeps_the_first(large: list[Evidence]) -> None:
    for before, after in zip(large, fitted(large, 128 * 1024), strict=True):
        assert 0 < after.series < before.series, before.name
        assert after.series + after.dropped == SERIES_LIMIT + 10
        assert series_of(after) == series_of(before)[: after.series]
        assert not after.error


def test_an_answer_without_room_for_one_series_says_so(large: list[Evidence]) -> None:
    for evidence in fitted(large, 0):
        assert (evidence.series, evidence.dropped, evidence.data) == (0, SERIES_LIMIT + 10, "")
        assert evidence.error == LEFT_OUT


def test_an_answer_with_many_labels_fits_its_field_and_knows_its_pods() -> None:
    answer = noise(Question("x", "x", NOW, NOW + 60.0), [f"l{n}" for n in range(LABELS_LIMIT + 10)])
    assert len(answer.data) > DATA_CHARACTERS
    (evidence,) = fitted([answer], 2**30)
    assert 0 < len(evidence.data) <= DATA_CHARACTERS
    assert all("pod" in series.labels and len(series.labels) <= LABELS_LIMIT for series in series_of(evidence))


def test_an_answer_with_labels_of_letters_that_take_the_most_room_can_be_read_again() -> None:
    letters = "".join(map(chr, range(0x1F600, 0x1F640)))
    answer = noise(
        Question("x", "x", NOW, NOW + 60.0), [f"{n}{letters * 3}" for n in range(LABELS_LIMIT)], letters=letters
    )
    (evidence,) = fitted([answer], 2**30)
    assert len(series_of(evidence)) == evidence.series > 0


@pytest.mark.parametrize(("most_bytes", "error"), [(2**20, ""), (0, LEFT_OUT)])
async def test_the_collector_keeps_what_fits(most_bytes: int, error: str) -> None:
    stage = await rolled_back()
    seen = RecordedPass(
        stage.world.policy, stage.world.state, stage.world.observe(), stage.world.decide(), stage.world.now
    )
    collector = EvidenceCollector(
        {"default": Past()},
        {},
        clock=WorldClock(stage.world),
        failed=stage.metrics.report_error,
        most_bytes=most_bytes,
    )
    found = await collector.gather(stage.report, seen, now=stage.world.now)
    assert {evidence.error for evidence in found if evidence.series + evidence.dropped} == {error}
