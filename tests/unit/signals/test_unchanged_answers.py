"""An answer that says the same as the one before, but for its time, is taken for it; no other is."""

import json
import re
import time
from collections.abc import Sequence
from functools import partial

import pytest

from precision_operator.errors import SourceUnavailable
from tests.support.prometheus_bodies import http, serve, source_of


def body_of(*samples: tuple[str, str], at: Sequence[float] = (), **envelope: object) -> bytes:
    """A vector of (pod, number) as Prometheus writes it, without spaces, stamped so many seconds ago; each now."""
    now = time.time()
    ago = at or [0.0] * len(samples)
    result = [
        {"metric": {"pod": pod}, "value": [now - seconds, number]}
        for (pod, number), seconds in zip(samples, ago, strict=True)
    ]
    body = {"status": "success", "data": {"resultType": "vector", "result": result}, **envelope}
    return json.dumps(body, separators=(",", ":")).encode()


def written(*samples: tuple[str, str], at: Sequence[float] = (), **envelope: object) -> bytes:
    return http(body_of(*samples, at=at, **envelope))


A, B = ("a", "1"), ("b", "2")


@pytest.mark.parametrize("samples", [(), (A,), (A, B)])
async def test_an_answer_that_says_the_same_at_a_later_time_is_the_one_before(
    samples: tuple[tuple[str, str], ...],
) -> None:
    with serve(written(*samples, at=[5.0] * len(samples))) as server:
        async with source_of(server.url) as source:
            first = await source.vector("q")
            server.reply = written(*samples)
            assert await source.vector("q") is first
            other = await source.vector("another query")
    assert [(sample.labels.pod, str(sample.value)) for sample in other] == [(pod, f"{n}.0") for pod, n in samples]
    assert list(other) == list(first)


@pytest.mark.parametrize(
    "changed",
    [(A, ("b", "3")), (A, ("c", "2")), (B, A), (A,), (A, B, B), ()],
    ids=["value", "pod", "order", "fewer", "more", "none"],
)
async def test_an_answer_that_differs_from_the_one_before_is_read(changed: tuple[tuple[str, str], ...]) -> None:
    with serve(written(A, B)) as server:
        async with source_of(server.url) as source:
            before = await source.vector("q")
            server.reply = written(*changed)
            found = await source.vector("q")
    assert [(sample.labels.pod, sample.value) for sample in found] == [(pod, float(n)) for pod, n in changed]
    assert [(sample.labels.pod, sample.value) for sample in before] == [("a", 1.0), ("b", 2.0)]


AGAIN: dict[str, tuple[bytes, str]] = {
    "too long ago": (written(A, B, at=(500.0, 500.0)), "a cache lies between"),
    "one of them too long ago": (written(A, B, at=(0.0, 500.0)), "a cache lies between"),
    "partial": (written(A, B, warnings=["store 3 is away"]), "store 3 is away"),
    "an error": (written(A, B).replace(b"success", b"trouble"), "trouble"),
    "without times": (http(re.sub(rb'"value":\[[0-9.]+', b'"value":[', body_of(A, B))), "expected JSON"),
    "without some of its times": (http(re.sub(rb'(?<="b"},"value":\[)[0-9.]+', b"", body_of(A, B))), "expected JSON"),
    "nothing": (http(b""), "expected JSON"),
}


@pytest.mark.parametrize("name", AGAIN)
async def test_an_answer_that_says_the_same_but_is_not_to_be_believed_is_refused(name: str) -> None:
    reply, message = AGAIN[name]
    with serve(written(A, B)) as server:
        async with source_of(server.url) as source:
            before = await source.vector("q")
            server.reply = reply
            with pytest.raises(SourceUnavailable, match=message):
                await source.vector("q")
            server.reply = written(A, B)
            assert list(await source.vector("q")) == list(before)


async def test_times_that_are_written_otherwise_are_looked_at_each_time() -> None:
    usual, odd = b'"b"},"value":[', b'"b"},"value": ['
    with serve(http(body_of(A, B).replace(usual, odd))) as server:
        async with source_of(server.url) as source:
            assert await source.vector("q") is not await source.vector("q")
            server.reply = http(body_of(A, B, at=(0.0, 500.0)).replace(usual, odd))
            with pytest.raises(SourceUnavailable, match="a cache lies between"):
                await source.vector("q")


async def test_samples_of_different_times_are_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    reply = written(A, B, at=(0.0, 60.0))
    with serve(reply) as server:
        async with source_of(server.url) as source:
            first = await source.vector("q")
            assert await source.vector("q") is not first
            monkeypatch.setattr(time, "time", partial(float, time.time() + 90.0))
            with pytest.raises(SourceUnavailable, match="a cache lies between"):
                await source.vector("q")
