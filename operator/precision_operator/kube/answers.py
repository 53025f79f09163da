"""What an answer of the API server means: an object, or one of our errors."""

import msgspec

from precision_operator.api.text import bounded
from precision_operator.api.wire import mapping, sequence, text
from precision_operator.errors import (
    Conflict,
    DisruptionBudget,
    Forbidden,
    KubeError,
    NotFound,
    PreconditionFailed,
    TooManyRequests,
    Unavailable,
)
from precision_operator.kube.port import JsonObject

RETRY_AFTER_LIMIT_SECONDS = 60.0
"""A proxy that says "in an hour" must not stop a rollback for an hour."""

MESSAGE_LIMIT = 1000
"""Characters that are kept of an answer's message: some quote the whole object, and a denial ends with what to do."""

REASON_LIMIT = 64

BUDGET_CAUSE = "DisruptionBudget"
"""The cause by which an eviction's 429 says that a PodDisruptionBudget refuses it."""

SEVERAL_BUDGETS = "This pod has more than one PodDisruptionBudget"
"""So does an eviction's 500 begin."""

BUDGET_CHARACTERS = 200
"""Of what is said of a budget."""


def parsed_object(raw: bytes) -> JsonObject | None:
    """The answer as an object; None where it is not one (a proxy's page, a cut stream)."""
    try:
        answer = msgspec.json.decode(raw)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def unread_object(raw: bytes) -> JsonObject | None:
    """An answer of which only that it is an object is asked; None where it is a proxy's page."""
    return {} if raw.lstrip()[:1] == b"{" else None


def _seconds(retry_after: str | None) -> float:
    """Retry-After in seconds, bounded; 1 where it is absent or a date."""
    try:
        return min(max(0.0, float(retry_after or "1")), RETRY_AFTER_LIMIT_SECONDS)
    except ValueError:
        return 1.0


def _names_fields(status: JsonObject) -> bool:
    """Whether a 422 says which fields are invalid.

    For a JSON patch that could not be applied, the server (1.36) says nothing at all: the same words and empty details
    for a failed ``test`` and for a path that is not there. Both mean that the object is not what was decided on.
    """
    details = status.get("details")
    return isinstance(details, dict) and bool(details.get("causes"))


def _budget(status: int, body: JsonObject) -> str | None:
    """Which PodDisruptionBudget refuses an eviction, and what it lacks; None: none does.

    A 429 of a busy server names no such cause. Where several match one pod, the server (1.36) answers 500 and no cause.
    """
    if status == 500 and SEVERAL_BUDGETS in text(body.get("message")):
        return SEVERAL_BUDGETS
    if status != 429:
        return None
    causes = map(mapping, sequence(mapping(body.get("details")).get("causes")))
    found = (text(cause.get("message")) for cause in causes if cause.get("reason") == BUDGET_CAUSE)
    return next((bounded(words, BUDGET_CHARACTERS) for words in found), None)


def error_of(what: str, status: int, answer: JsonObject | None, *, retry_after: str | None = None) -> KubeError:
    """The error of an answer that is not success. A success that holds no JSON object counts as Unavailable."""
    body = answer or {}
    said, reason = bounded(text(body.get("message")), MESSAGE_LIMIT), bounded(text(body.get("reason")), REASON_LIMIT)
    message = bounded(f"{what}: {status} {reason}: {said}".rstrip(" :"))
    if status == 404:
        return NotFound(message, status=status)
    if status == 409:
        return Conflict(message, status=status)
    if status == 422 and not _names_fields(body):
        return PreconditionFailed(message, status=status)
    budget = _budget(status, body)
    if budget is not None:
        return DisruptionBudget(f"{message}: {budget}".rstrip(" :"), status=status, budget=budget)
    if status == 429:
        return TooManyRequests(message, retry_after_seconds=_seconds(retry_after))
    if status == 403:
        return Forbidden(message, status=status)
    if status >= 500 or status < 400:
        return Unavailable(message, status=status)
    return KubeError(message, status=status)
