"""Every kind of message reaches a real mail server, a real webhook and a real Alertmanager, whole and over TLS."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lab.operate.messages import messages
from precision_operator.addresses import refusal_of
from precision_operator.api.messages import MessageKind
from precision_operator.incidents import channels
from precision_operator.incidents.alert import address_of, alert_of
from precision_operator.incidents.channels import NotDelivered, Outgoing, send
from precision_operator.incidents.report import Message
from precision_operator.settings import NotificationChannel

AT = "2026-01-01T00:00:00.000Z"
FACTS = {"namespace": "team", "policy": "fleet", "incident": "", "runbook": "https://wiki/#notice", "at": AT}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that delivers is niced: on a machine that is full it may take long to begin."""
    monkeypatch.setattr(channels, "START_SECONDS", 240.0)


@pytest.mark.slow
def test_every_kind_arrives_whole_on_every_server() -> None:
    kinds = len(MessageKind)
    assert messages() == {
        "kinds": kinds,
        "delivered_smtp": kinds,
        "delivered_webhook": kinds,
        "delivered_alertmanager": kinds,
    }


def test_an_alert_has_the_labels_of_those_that_ship_and_ends_by_itself_an_hour_after_it_was_sent() -> None:
    sent_at = datetime(2026, 1, 1, 3, tzinfo=UTC).timestamp()
    assert alert_of("Notice", "subject", "body", FACTS, now=sent_at) == {
        "labels": {
            "alertname": "PrecisionNotice",
            "severity": "critical",
            "namespace": "team",
            "precisionpolicy": "fleet",
            "at": AT,
        },
        "annotations": {"summary": "subject", "description": "body", "runbook_url": "https://wiki/#notice"},
        "startsAt": "2026-01-01T00:00:00+00:00",
        "endsAt": "2026-01-01T04:00:00+00:00",
    }


@pytest.mark.parametrize(
    ("url", "where", "user"),
    [
        ("alertmanagers://am.example", "https://am.example:9093/api/v2/alerts", None),
        ("alertmanagers://am.example:443/prefix/?x=1", "https://am.example:443/prefix/api/v2/alerts", None),
        ("alertmanagers://me:p%40ss@[::1]", "https://[::1]:9093/api/v2/alerts", ("me", "p@ss")),
    ],
)
def test_an_address_of_alertmanager_goes_over_tls(url: str, where: str, user: tuple[str, str] | None) -> None:
    assert refusal_of(url) == ""
    assert address_of(url) == (where, user)


def test_an_alertmanager_without_tls_is_refused() -> None:
    assert "goes over TLS, found alertmanager://" in refusal_of("alertmanager://am.example")


@pytest.mark.slow
async def test_an_alertmanager_that_is_not_there_is_named_without_its_password() -> None:
    outgoing = Outgoing(Message("Notice", AT, "subject", "body"), FACTS)
    with pytest.raises(NotDelivered, match="Alertmanager") as caught:
        await send(NotificationChannel("alertmanagers://someuser:opensesame1@127.0.0.1:9"), [outgoing])
    assert "opensesame1" not in str(caught.value)
