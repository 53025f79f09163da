"""What Alertmanager's webhook says (payload version 4), as far as it tells whom to look at.

An alert only wakes: what is so is read from Prometheus, never from the alert. So a forged or late one costs a query.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from precision_operator.api.text import bounded
from precision_operator.api.wire import mapping, text
from precision_operator.workloads.kinds.pod import POD
from precision_operator.workloads.kinds.table import KINDS

VERSION = "4"
MAX_ALERTS = 1000
NAME_CHARACTERS = 253
"""No object of Kubernetes has a longer name."""

_WORKLOAD_LABELS = tuple(kind.alert_label for kind in KINDS if kind is not POD)


@dataclass(frozen=True, slots=True)
class Alert:
    """Whom an alert names; empty where a label is absent."""

    namespace: str
    policy: str = ""
    workload: str = ""
    pod: str = ""


def parse_webhook(body: object) -> tuple[Alert, ...]:
    """The alerts that name a namespace, resolved ones included: an end is worth a look too.

    Raises:
        ValueError: no webhook payload of version 4.
    """
    if not isinstance(body, dict):
        raise ValueError(f"expected Alertmanager's webhook payload, a JSON object; found {type(body).__name__}")
    if body.get("version") != VERSION:
        found = bounded(text(body.get("version"), "none"), 20)
        raise ValueError(f"expected a webhook payload of version {VERSION!r}, found {found!r}")
    alerts = body.get("alerts")
    if not isinstance(alerts, list) or len(alerts) > MAX_ALERTS:
        raise ValueError(
            f"expected `alerts`, a list of at most {MAX_ALERTS}; set max_alerts in Alertmanager's receiver"
        )
    named = {_alert(mapping(mapping(item).get("labels"))) for item in alerts}
    return tuple(sorted((a for a in named if a.namespace), key=lambda a: (a.namespace, a.policy, a.workload, a.pod)))


def _alert(labels: Mapping[str, object]) -> Alert:
    workload = next((name for label in _WORKLOAD_LABELS if (name := _name(labels, label))), "")
    return Alert(_name(labels, "namespace"), _name(labels, "precisionpolicy"), workload, _name(labels, "pod"))


def _name(labels: Mapping[str, object], label: str) -> str:
    """The name in a label; empty where it is absent, or no name."""
    name = text(labels.get(label))
    return name if len(name) <= NAME_CHARACTERS else ""
