"""Which answers are kept, to be compared with the next."""

import pytest

from precision_operator.signals import vectors as module
from precision_operator.signals.vectors import KEPT_SECONDS, NewestVectors, Vector
from tests.support.samples import sample


def answer(samples: int = 1, text: bytes = b"said") -> Vector:
    return Vector([sample(f"pod-{i}", 1.0) for i in range(samples)], text)


def kept(newest: NewestVectors, *queries: str) -> list[str]:
    return [query for query in queries if newest.get(query) is not None]


def test_the_newest_answer_to_a_query_is_kept() -> None:
    newest, (old, new) = NewestVectors(), (answer(), answer())
    newest.keep("q", old, now=0.0)
    newest.keep("q", new, now=1.0)
    assert newest.get("q") is new
    assert newest.get("other") is None


def test_an_answer_that_no_other_is_like_is_not_kept_nor_the_one_before_it() -> None:
    newest = NewestVectors()
    newest.keep("q", answer(), now=0.0)
    newest.keep("q", answer(text=b""), now=1.0)
    assert len(newest) == 0


@pytest.mark.parametrize(
    "big", [answer(samples=8), answer(text=bytes(2_000)), answer(0)], ids=["samples", "text", "empty"]
)
def test_what_was_asked_longest_ago_goes_first_where_all_would_take_too_much(
    monkeypatch: pytest.MonkeyPatch, big: Vector
) -> None:
    monkeypatch.setattr(module, "LARGEST_SHARE", 1.0)
    monkeypatch.setattr(module, "KEPT_BYTES", 9_000)
    newest = NewestVectors()
    queries = [f"{number}{'q' * 1_000}" for number in range(9)]
    for query in queries:
        newest.keep(query, big, now=0.0)
        newest.keep(queries[0], big, now=0.0)
    assert kept(newest, *queries) == [queries[0], *queries[-len(newest) + 1 :]]
    assert 1 < len(newest) < len(queries)


def test_one_answer_does_not_take_the_place_of_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", 100_000)
    newest = NewestVectors()
    newest.keep("small", answer(), now=0.0)
    newest.keep("large", answer(text=bytes(13_000)), now=0.0)
    assert kept(newest, "small", "large") == ["small"]


def test_an_answer_that_nobody_asks_for_any_more_is_forgotten() -> None:
    newest = NewestVectors()
    newest.keep("once", answer(), now=0.0)
    for now in (1.0, KEPT_SECONDS + 0.5):
        newest.keep("again", answer(), now=now)
    assert kept(newest, "once", "again") == ["again"]


def test_ten_thousand_workloads_of_ten_queries_fit() -> None:
    newest = NewestVectors()
    text = bytes(500 * 110)
    for number in range(200):
        newest.keep(f"{number}", answer(500, text), now=0.0)
    assert len(newest) == 200
