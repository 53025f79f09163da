"""A message as an alert of Alertmanager's (``POST /api/v2/alerts``). Pure.

An alert tells of a message, not of a state: nobody ends it, so that it ends by itself.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote, urlsplit

from precision_operator.api.messages import MessageKind, Tone

SCHEME = "alertmanagers"
"""Of the address: ``alertmanagers://user:password@host:9093/prefix``, over TLS."""
STANDS = timedelta(hours=1)
PORT = 9093

_SEVERITIES = {Tone.FAILURE: "critical", Tone.WARNING: "warning", Tone.INFO: "info", Tone.SUCCESS: "info"}
_LABELS = {
    "namespace": "namespace",
    "precisionpolicy": "policy",
    "reason": "reason",
    "incident": "incident",
    "at": "at",
}
"""Label → the message's fact. ``precisionpolicy`` is what the alerts that ship have too; by ``at`` a second escalation is no
repetition of the first.
"""


def alert_of(kind: str, subject: str, body: str, facts: Mapping[str, str], *, now: float) -> dict[str, object]:
    """The alert; the same message once more is the same alert. It stands from ``now``, seconds since the epoch: one that
    was delivered late is seen as long as any other.
    """
    tone = (MessageKind.known(kind) or MessageKind.ATTENTION).tone
    began = datetime.fromisoformat(facts["at"])
    labels = {"alertname": f"Precision{kind}", "severity": _SEVERITIES[tone]}
    labels |= {label: facts[fact] for label, fact in _LABELS.items() if facts.get(fact)}
    annotations = {"summary": subject, "description": body}
    annotations |= {"runbook_url": facts["runbook"]} if facts.get("runbook") else {}
    annotations |= {"command": facts["command"]} if facts.get("command") else {}
    return {
        "labels": labels,
        "annotations": annotations,
        "startsAt": began.isoformat(),
        "endsAt": (datetime.fromtimestamp(now, UTC) + STANDS).isoformat(),
    }


def address_of(url: str) -> tuple[str, tuple[str, str] | None]:
    """Where alerts are posted, and the user with the password that the address names."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
    where = f"https://{host}:{parts.port or PORT}{parts.path.rstrip('/')}/api/v2/alerts"
    user = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
    return where, user
