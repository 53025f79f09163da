"""Logs are one JSON object a line, whatever is logged."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from precision_operator.observability.logging import configure


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    kopf_level = logging.getLogger("kopf").level
    out = io.StringIO()
    configure("info", out)
    yield out
    root.handlers[:] = before
    root.setLevel(level)
    logging.getLogger("kopf").setLevel(kopf_level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_carries_the_stable_keys_and_the_callers_own(stream: io.StringIO) -> None:
    logging.getLogger("precision.test").warning(
        "held %s", "p", extra={"reason": "NoData", "policy": "p", "odd": object, "level": "forged"}
    )
    (line,) = lines(stream)
    assert list(line)[:4] == ["time", "level", "logger", "message"]
    assert (line["level"], line["logger"], line["message"]) == ("warning", "precision.test", "held p")
    assert (line["reason"], line["policy"]) == ("NoData", "p")
    assert str(line["time"]).endswith("Z")


def test_an_exception_stays_on_its_line(stream: io.StringIO) -> None:
    try:
        raise RuntimeError("first\nsecond")
    except RuntimeError:
        logging.getLogger("precision.test").exception("failed")
    (line,) = lines(stream)
    assert "RuntimeError: first\nsecond" in str(line["exception"])


def test_kopf_says_warnings_only(stream: io.StringIO) -> None:
    logging.getLogger("kopf.objects").info("a whole body")
    logging.getLogger("kopf.objects").warning("worth it")
    assert [line["message"] for line in lines(stream)] == ["worth it"]


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one of debug, info, warning, error, found 'loud'"):
        configure("loud")
