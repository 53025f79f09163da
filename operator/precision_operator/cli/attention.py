"""What a person should look at: conditions that are bad news, and a deadline that will not be kept."""

from collections.abc import Iterable

from precision_operator.api.conditions import Condition
from precision_operator.api.incident import Incident

_BAD_NEWS = {
    "Accepted": "False",
    "FailSafe": "False",
    "MetricsAvailable": "False",
    "WritesAccepted": "False",
    "Stuck": "True",
    "PendingRevision": "True",
    "CapacityLost": "True",
    "Blocked": "True",
    "WeightsSuspect": "True",
    "InjectionRefused": "True",
    "KindsSupported": "False",
    "Alerting": "True",
}
"""Condition → the status in which it is."""


def bad_news(condition: Condition) -> bool:
    """Whether a person should look at it."""
    return _BAD_NEWS.get(condition.type) == condition.status


def needing_attention(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Those that a person should look at."""
    return tuple(filter(bad_news, conditions))


def predicted_late_seconds(incident: Incident) -> float:
    """By how much the restarts of a rollback under way were predicted to miss its deadline; 0: they were not."""
    if incident.predicted_seconds is None or incident.last_ack_at is not None:
        return 0.0
    begun = max(incident.decided_at, incident.expedited_at or incident.decided_at)
    late = begun + incident.predicted_seconds - incident.deadline_at
    return late if late > 0 else 0.0  # also where one of them is not a number
