"""What Alertmanager's webhook says (payload version 4), as far as it tells whom to look at.

An alert only wakes: what is so is read from Prometheus, never from the alert. So a forged or late one costs a query.
"""

from collections.abc import Mapping
from dataclasses import dataclass

VERSION = "4"
MAX_ALERTS = 1000

_WORKLOAD_LABELS = ("deployment", "statefulset", "job_name", "replicaset")
"""As kube-state-metrics names workloads; a Job's label is not Prometheus' own ``job``."""


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
        raise ValueError(f"expected a webhook payload of version {VERSION!r}, found {body.get('version')!r}")
    alerts = body.get("alerts")
    if not isinstance(alerts, list) or len(alerts) > MAX_ALERTS:
        raise ValueError(
            f"expected `alerts`, a list of at most {MAX_ALERTS}; set max_alerts in Alertmanager's receiver"
        )
    found = {_alert(item.get("labels")) for item in alerts if isinstance(item, dict)}
    return tuple(sorted((a for a in found if a is not None), key=lambda a: (a.namespace, a.policy, a.workload, a.pod)))


def _alert(labels: object) -> Alert | None:
    if not isinstance(labels, dict):
        return None
    known: Mapping[str, str] = {key: value for key, value in labels.items() if isinstance(value, str)}
    if not known.get("namespace"):
        return None
    workload = next((known[label] for label in _WORKLOAD_LABELS if known.get(label)), "")
    return Alert(known["namespace"], known.get("precisionpolicy", ""), workload, known.get("pod", ""))
