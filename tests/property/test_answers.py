"""Answers of Prometheus are read fast and with care: what is no whole sample is none."""

from __future__ import annotations

import json
from collections import defaultdict
from math import isfinite

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from precision_operator.api.modes import parse_mode
from precision_operator.api.wire import generation_text
from precision_operator.errors import SourceUnavailable
from precision_operator.signals.grouping import group
from precision_operator.signals.port import Sample
from precision_operator.signals.prometheus import _sample
from precision_operator.signals.queries import ACK
from precision_operator.signals.transport import PlainSession, _elements

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
            assert str(_sample(element, oldest=100.0)) == str(Sample(labels, float(number)))
        else:
            with pytest.raises(SourceUnavailable):
                _sample(element, oldest=100.0)


ACKNOWLEDGED = st.builds(
    Sample,
    st.fixed_dictionaries(
        {
            "pod": st.sampled_from(["a", "b"]),
            "mode": st.sampled_from(["fp16", "fp32", "no mode"]),
            "generation": st.sampled_from(["1", "2", "no number"]),
        }
    ),
    st.sampled_from([-3.0, -2.0, -1.0, float("nan")]),
)


@given(st.lists(ACKNOWLEDGED, max_size=8))
def test_only_the_newest_acknowledgements_count_and_none_where_they_contradict_each_other(found: list[Sample]) -> None:
    by_pod: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in found:
        if isfinite(sample.value):
            by_pod[sample.labels["pod"]].append(sample)
    grouped = group({ACK: found}, {}, at=100.0)
    contradicting = grouped.twice.get(ACK, frozenset())
    assert grouped.pods.keys() == by_pod.keys()
    for pod, samples in by_pod.items():
        newest = max(sample.value for sample in samples)
        said = {(s.labels["mode"], s.labels["generation"]) for s in samples if s.value == newest}
        signals = grouped.pods[pod]
        assert signals.sampled_at == 100.0 + newest
        assert (pod in contradicting) == (len(said) > 1)
        mode, generation = said.pop() if len(said) == 1 else (None, None)
        assert (signals.mode, signals.generation) == (parse_mode(mode), generation_text(generation))


ADDRESSES = st.sampled_from(["http://prometheus:9090/api/v1/query", "https://prometheus/sub path/api/v1/query?org=1"])


@given(st.text(max_size=20), ADDRESSES, st.sampled_from(["1s", "5s"]))
def test_a_question_is_sent_as_the_library_would_send_it_the_second_time_too(query: str, url: str, limit: str) -> None:
    question = requests.Request("GET", url, params={"query": query, "timeout": limit}, headers={"Authorization": "x"})
    ours, theirs = PlainSession(), requests.Session()
    ours.trust_env = theirs.trust_env = False
    expected = theirs.prepare_request(question)
    for _ in range(2):
        prepared = ours.prepare_request(question)
        assert (prepared.method, prepared.url, prepared.body) == (expected.method, expected.url, expected.body)
        assert prepared.headers == expected.headers
