"""Whatever a tenant writes, wherever the operator reads it: it is read, and what comes out is bounded and clean.

Durations belong to lab/isolation: here each reader must come back, with something that can be written and shown.
"""

from __future__ import annotations

import io
import json
import logging

import pytest

from lab.isolation.readers import of_the_cli, readers, words
from lab.isolation.texts import ANNOTATION_BYTES, corpus, queries, stored
from precision_operator.api.policy import parse_policy
from precision_operator.api.text import MESSAGE_CHARACTERS, bounded
from precision_operator.api.wire import duration_seconds, number
from precision_operator.kube.events import EventRecorder, PolicyRef
from precision_operator.kube.port import EVENTS
from precision_operator.observability.logging import JsonFormatter
from precision_operator.signals.grouping import group, split
from tests.support.fake_kube import FakeKube
from tests.support.samples import sample

pytestmark = pytest.mark.slow

CORPUS = corpus()
READERS = {**readers(), **of_the_cli()}
WORDS = words()


def test_the_corpus_is_as_large_as_one_object_takes() -> None:
    sizes = {name: len(stored(text).encode()) for name, text in CORPUS.items()}
    assert max(sizes.values()) > 0.75 * ANNOTATION_BYTES
    assert max(sizes.values()) < ANNOTATION_BYTES - 1024


@pytest.mark.parametrize("reader", READERS)
def test_whatever_is_written_is_read(reader: str) -> None:
    """What a reader raises would drop a watch event, or end a pass."""
    for name, text in {**CORPUS, **queries()}.items():
        try:
            READERS[reader](text)
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}") from error


@pytest.mark.parametrize("what", WORDS)
def test_words_for_people_are_bounded_and_printable(what: str) -> None:
    for name, text in CORPUS.items():
        said = WORDS[what](text)
        assert len(said) <= MESSAGE_CHARACTERS, name
        assert said.isprintable(), name


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("a\x1b[2Jb\x9bc\x00d", "a[2Jbcd"),
        ("a\u202eb\u2066c\u200bd\ufeffe", "abcde"),
        ("a\nb\tc\u2028d\u00a0e", "a b c d e"),
        ("a\ud800b", "ab"),
        ("größer → 日本", "größer → 日本"),
    ],
)
def test_cleaning_keeps_what_a_person_can_read(text: str, clean: str) -> None:
    assert bounded(text) == clean
    assert bounded(text + "x" * MESSAGE_CHARACTERS)[-1] == "…"


def test_of_a_policys_annotations_only_ours_are_kept_and_no_long_one() -> None:
    """Each recording of a decision carries them."""
    ours = "precision.genesis.ai/retry"
    annotations = {f"example.com/{number}": "x" * 1000 for number in range(100)} | {ours: "7: " + "y" * 200_000}
    kept = parse_policy({"metadata": {"annotations": annotations}}).annotations
    assert set(kept) == {ours}
    assert kept[ours].startswith("7: yyy")
    assert len(kept[ours]) <= 2 * MESSAGE_CHARACTERS


@pytest.mark.parametrize("generation", ["1" * 5_000, str(2**49 + 1), "²", "٣", "1_0", "", "-1"])
def test_a_series_with_a_generation_that_is_none_costs_its_pod_the_acknowledgement_only(generation: str) -> None:
    samples = [
        sample("hostile", -1.0, mode="fp16", generation=generation),
        sample("good", -1.0, mode="fp16", generation="7"),
    ]
    found = group({"ack": split("ack", samples)}, {}, at=10.0).pods
    assert (found["hostile"].generation, found["good"].generation) == (None, 7)


def test_numbers_that_nobody_can_hold_are_no_numbers() -> None:
    assert number(10**400, 3.0) == 3.0
    assert duration_seconds("9" * 5_000 + "h", 3.0) == 3.0


async def test_an_event_is_recorded_whatever_it_says() -> None:
    kube = FakeKube()
    recorder = EventRecorder(kube, identity="one")
    for text in CORPUS.values():
        await recorder.emit(PolicyRef("ns", "p", "u"), "Held", f"held {text}")
    messages = [str(body["message"]) for (plural, *_), body in kube.objects.items() if plural == EVENTS.plural]
    assert len(messages) == len({bounded(f"held {text}") for text in CORPUS.values()})
    assert all(message.isprintable() and len(message.encode()) <= 1024 for message in messages)


def test_a_log_line_is_one_line_of_ascii_whatever_it_quotes() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter())
    texts = ["\ud800", "\x1b[2J\x9b31m", "\u202e", "\n{}", "größer"]
    for text in texts:
        record = logging.makeLogRecord({"msg": "%s", "args": (text,), "policy": text})
        handler.emit(record)
    lines = out.getvalue().splitlines()
    assert [json.loads(line)["message"] for line in lines] == texts
    assert out.getvalue().isascii()
    assert all(line.isprintable() for line in lines)
