"""Logs as JSON, one object a line, with stable keys.

Always there: ``time`` (RFC 3339, UTC), ``level``, ``logger``, ``message``. What a caller passes as ``extra`` stands beside
them under its own name, e.g. ``reason``, ``namespace``, ``policy``, ``workload``. Credentials in any text are masked.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

from precision_operator.api.redaction import redact

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
"""What every record carries; the rest is the caller's ``extra``."""
_QUIET = ("kopf", "aiohttp.access", "urllib3", "asyncio", "kubernetes")
"""They write whole object bodies, or a line a request."""
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class JsonFormatter(logging.Formatter):
    """One JSON object a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Never raises on an odd ``extra``: what JSON does not know is written as its ``str``."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        for key, value in vars(record).items():
            if key not in _PLAIN and key not in line and not key.startswith("_"):
                line[key] = _masked(value)
        if record.exc_info:
            line["exception"] = redact(self.formatException(record.exc_info))
        # in ASCII: what a tenant wrote can neither break the stream nor steer a terminal
        return json.dumps(line, default=lambda odd: redact(str(odd)))


def _masked(value: object) -> object:
    """The value without credentials in its strings; what JSON does not know is left for ``str``."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list | tuple):
        return [_masked(item) for item in value]
    if isinstance(value, dict):
        return {key: _masked(item) for key, item in value.items()}
    return value


def configure(level: str = "info", stream: TextIO | None = None) -> None:
    """Send all logs to ``stream`` (standard error) as JSON; the chatty libraries say warnings and worse only.

    Raises:
        ValueError: the level is none of debug, info, warning, error.
    """
    if level not in LEVELS:
        raise ValueError(f"logLevel: expected one of {', '.join(LEVELS)}, found {level!r}")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[level])
    for name in _QUIET:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(max(logging.WARNING, LEVELS[level]))
