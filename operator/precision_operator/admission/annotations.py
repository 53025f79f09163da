"""A pod's annotations: which are admission's own, and how much room the others leave."""

from collections.abc import Mapping

from precision_operator.api.wire import text
from precision_operator.contract import ADMITTED, ENABLE, MODE, REQUEST

LIMIT_BYTES = 256 * 1024
"""The API server refuses a pod with more than these."""

OURS = (REQUEST, ENABLE, MODE, ADMITTED)
"""What an assignment writes."""


def size(value: str) -> int:
    """Bytes of a text."""
    return len(value.encode(errors="surrogatepass"))


def have_room(annotations: Mapping[str, object], *, limit: int) -> bool:
    """Whether these take at most ``limit`` bytes."""
    return sum(size(key) + size(text(value)) for key, value in annotations.items()) <= limit
