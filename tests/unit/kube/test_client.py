"""What the client makes of an answer."""

from __future__ import annotations

import pytest

from precision_operator.errors import TooManyRequests
from precision_operator.kube.client import error_of


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("5", 5.0),
        (None, 1.0),
        ("0", 0.0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 1.0),
        ("3600", 60.0),
        ("inf", 60.0),
        ("-1", 0.0),
    ],
)
def test_retry_after_is_obeyed_within_reason(header: str | None, seconds: float) -> None:
    error = error_of("GET /", 429, None, retry_after=header)
    assert isinstance(error, TooManyRequests)
    assert error.retry_after_seconds == seconds
