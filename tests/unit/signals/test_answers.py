"""Which answers are kept, to be compared with the next."""

import pytest

from precision_operator.signals import answers as module
from precision_operator.signals.answers import KEPT_SECONDS, Answer, Answers
from tests.support.samples import sample


def answer(samples: int = 1, text: bytes = b"said") -> Answer:
    return Answer([sample(f"pod-{i}", 1.0) for i in range(samples)], text)


def kept(answers: Answers, *queries: str) -> list[str]:
    return [query for query in queries if answers.get(query) is not None]


def test_the_newest_answer_to_a_query_is_kept() -> None:
    answers, (old, new) = Answers(), (answer(), answer())
    answers.keep("q", old, now=0.0)
    answers.keep("q", new, now=1.0)
    assert answers.get("q") is new
    assert answers.get("other") is None


def test_an_answer_that_no_other_is_like_is_not_kept_nor_the_one_before_it() -> None:
    answers = Answers()
    answers.keep("q", answer(), now=0.0)
    answers.keep("q", answer(text=b""), now=1.0)
    assert len(answers) == 0


@pytest.mark.parametrize(
    "big", [answer(samples=8), answer(text=bytes(2_000)), answer(0)], ids=["samples", "text", "empty"]
)
def test_what_was_asked_longest_ago_goes_first_where_all_would_take_too_much(
    monkeypatch: pytest.MonkeyPatch, big: Answer
) -> None:
    monkeypatch.setattr(module, "LARGEST_SHARE", 1.0)
    monkeypatch.setattr(module, "KEPT_BYTES", 9_000)
    answers = Answers()
    queries = [f"{number}{'q' * 1_000}" for number in range(9)]
    for query in queries:
        answers.keep(query, big, now=0.0)
        answers.keep(queries[0], big, now=0.0)
    assert kept(answers, *queries) == [queries[0], *queries[-len(answers) + 1 :]]
    assert 1 < len(answers) < len(queries)


def test_one_answer_does_not_take_the_place_of_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", 100_000)
    answers = Answers()
    answers.keep("small", answer(), now=0.0)
    answers.keep("large", answer(text=bytes(13_000)), now=0.0)
    assert kept(answers, "small", "large") == ["small"]


def test_an_answer_that_nobody_asks_for_any_more_is_forgotten() -> None:
    answers = Answers()
    answers.keep("once", answer(), now=0.0)
    for now in (1.0, KEPT_SECONDS + 0.5):
        answers.keep("again", answer(), now=now)
    assert kept(answers, "once", "again") == ["again"]


def test_ten_thousand_workloads_of_ten_queries_fit() -> None:
    answers = Answers()
    text = bytes(500 * 110)
    for number in range(200):
        answers.keep(f"{number}", answer(500, text), now=0.0)
    assert len(answers) == 200
