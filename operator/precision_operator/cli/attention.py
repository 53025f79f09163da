"""What a person should look at: conditions that are bad news."""

from collections.abc import Iterable

from precision_operator.api.conditions import Condition

_BAD_NEWS = {
    "Accepted": "False",
    "FailSafe": "False",
    "MetricsAvailable": "False",
    "WritesAccepted": "False",
    "PreflightPassed": "False",
    "Restartable": "False",
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
