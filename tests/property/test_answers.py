"""Answers of Prometheus are read fast and with care: what is no whole sample is none."""

from __future__ import annotations

import json
from collections import defaultdict
from math import inf, isfinite

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from precision_operator.api.modes import parse_mode
from precision_operator.api.wire import generation_text
from precision_operator.errors import SourceUnavailable
from precision_operator.signals.grouping import group, split
from precision_operator.signals.port import Labels, Sample
from precision_operator.signals.prometheus import _samples
from precision_operator.signals.queries import ACK
from precision_operator.signals.transport import VectorAnswer, _elements, _target
from tests.support.samples import sample

NO_NUMBERS = ["1_0", "many", "", "٣"]
"""As Prometheus writes them."""
NUMBERS = st.one_of(
    st.floats(allow_nan=False).map(repr), st.sampled_from(["NaN", "+Inf", "-Inf", "0", " 1", *NO_NUMBERS])
)
STAMPS = st.one_of(st.integers(0, 200), st.floats(0, 200))
LABELS = st.dictionaries(st.sampled_from(["pod", "mode", "generation"]), st.text(max_size=4))


@given(st.lists(st.tuples(LABELS, STAMPS, NUMBERS), max_size=5))
def test_of_a_whole_vector_what_is_a_number_and_fresh_is_a_sample_and_nothing_else_is(
    found: list[tuple[dict[str, str], float, str]],
) -> None:
    result = [{"metric": labels, "value": [at, number]} for labels, at, number in found]
    body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()
    elements = _elements(body)
    assert elements is not None
    assert len(elements) == len(found)
    for element, (labels, at, number) in zip(elements, found, strict=True):
        if at >= 100.0 and number not in NO_NUMBERS:
            assert str(_samples([element], oldest=100.0)) == str([Sample(Labels(**labels), float(number))])
        else:
            with pytest.raises(SourceUnavailable):
                _samples([element], oldest=100.0)
    if all(at >= 100.0 and number not in NO_NUMBERS for _, at, number in found):
        assert len(_samples(elements, oldest=100.0)) == len(found)
    else:
        with pytest.raises(SourceUnavailable):
            _samples(elements, oldest=100.0)


TWO = st.lists(st.tuples(st.sampled_from(['p"', '"value":[1,"', "p", ""]), st.sampled_from(["0", "NaN"])), max_size=3)
"""Of a few words, so that two are often the same."""


@given(TWO, TWO, st.tuples(STAMPS, STAMPS))
def test_two_answers_are_the_same_but_for_their_times_where_they_name_the_same_numbers_and_nowhere_else(
    one: list[tuple[str, str]], other: list[tuple[str, str]], times: tuple[float, float]
) -> None:
    answers = []
    for found, at in zip((one, other), times, strict=True):
        result = [{"metric": {"pod": pod}, "value": [at, number]} for pod, number in found]
        body = {"status": "success", "data": {"resultType": "vector", "result": result}}
        answers.append(VectorAnswer("", json.dumps(body, separators=(",", ":")).encode()))
    texts, stamps, counts = zip(*(answer.unstamped() for answer in answers), strict=True)
    assert (texts[0] == texts[1]) == (one == other)
    assert stamps == tuple(at if found else inf for found, at in zip((one, other), times, strict=True))
    assert counts == (len(one), len(other))


ACKNOWLEDGED = st.builds(
    sample,
    st.sampled_from(["a", "b"]),
    st.sampled_from([-3.0, -2.0, -1.0, float("nan")]),
    mode=st.sampled_from(["fp16", "fp32", "no mode"]),
    generation=st.sampled_from(["1", "2", "no number"]),
)


@given(st.lists(ACKNOWLEDGED, max_size=8))
def test_only_the_newest_acknowledgements_count_and_none_where_they_contradict_each_other(found: list[Sample]) -> None:
    by_pod: defaultdict[str, list[Sample]] = defaultdict(list)
    for one in found:
        if isfinite(one.value):
            by_pod[one.labels.pod].append(one)
    grouped = group({ACK: split(ACK, found)}, {}, at=100.0)
    contradicting = grouped.twice.get(ACK, frozenset())
    assert grouped.pods.keys() == by_pod.keys()
    for pod, samples in by_pod.items():
        newest = max(one.value for one in samples)
        said = {(s.labels.mode, s.labels.generation) for s in samples if s.value == newest}
        signals = grouped.pods[pod]
        assert signals.sampled_at == 100.0 + newest
        assert (pod in contradicting) == (len(said) > 1)
        mode, generation = said.pop() if len(said) == 1 else (None, None)
        assert (signals.mode, signals.generation) == (parse_mode(mode), generation_text(generation))


ADDRESSES = st.sampled_from(["http://prometheus:9090/api/v1/query", "https://prometheus/sub path/api/v1/query?org=1"])


@given(st.text(max_size=20), ADDRESSES, st.sampled_from(["1s", "5s"]))
def test_a_question_is_written_as_requests_would_write_it_the_second_time_too(query: str, url: str, limit: str) -> None:
    params = {"query": query, "timeout": limit}
    expected = requests.Request("GET", url, params=params).prepare().path_url
    for _ in range(2):
        assert _target(url, tuple(params.items())) == expected
