"""Every kind of message, sent to real servers over TLS: SMTP with STARTTLS, a webhook, Alertmanager."""

from __future__ import annotations

import asyncio
import email
import email.policy
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from aiosmtpd.smtp import SMTP, Envelope, Session

from lab.alertmanager import Alertmanager
from lab.cluster.pki import Authority, Certificate
from lab.isolation.part import Section
from precision_operator.api.messages import MessageKind
from precision_operator.incidents.channels import Outgoing, send
from precision_operator.incidents.wording import Wording, links, message
from precision_operator.settings import NotificationChannel

ABOUT = {
    "namespace": "training",
    "policy": "fleet",
    "incident": "fleet-4",
    "severity": "P1",
    "reason": "OverflowRateHigh",
    "impact": "31 % of the steps overflow in vit",
    "status": "rolling back",
    "workloads": "the whole fleet",
    "fallback": "fp32",
    "duration": "12.3 s",
}
SILENT = {"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}


LEAST_KINDS = 8


@dataclass
class Taken:
    """The bodies that arrived, by channel."""

    smtp: list[str] = field(default_factory=list)
    webhook: list[str] = field(default_factory=list)
    alertmanager: list[str] = field(default_factory=list)

    def kinds(self, channel: str) -> set[str]:
        """The kinds of which a whole message arrived: with the command and the runbook at its end."""
        bodies: list[str] = getattr(self, channel)
        return {
            str(kind)
            for kind in MessageKind
            for body in bodies
            if kind.meaning in body and links(kind, ABOUT, Wording())["command"] in body and "RUNBOOK: " in body
        }


def every_kind() -> list[Outgoing]:
    """One message of each kind; its meaning stands in it, so that it is known again."""
    found = []
    for kind in MessageKind:
        fields = {**ABOUT, "impact": kind.meaning, "status": kind.meaning}
        facts = {**ABOUT, **links(kind, ABOUT, Wording())}
        found.append(Outgoing(message(kind, {**fields, "workloads": kind.meaning}, Wording(), now=time.time()), facts))
    return found


def messages(directory: Path | None = None) -> Mapping[str, int]:
    """Send them; how many kinds there are, and of how many each server has taken a whole message."""
    with tempfile.TemporaryDirectory() as scratch:
        taken = asyncio.run(sent(directory or Path(scratch), every_kind()))
    return {
        "kinds": len(MessageKind),
        "delivered_smtp": len(taken.kinds("smtp")),
        "delivered_webhook": len(taken.kinds("webhook")),
        "delivered_alertmanager": len(taken.kinds("alertmanager")),
    }


def missed(found: Section) -> list[str]:
    """Kinds that are missing, or did not reach a server."""
    assert isinstance(found, Mapping)
    kinds = found["kinds"]
    wrong = [f"expected {name} = kinds = {kinds}, found {count}" for name, count in found.items() if count != kinds]
    return (
        wrong if len(MessageKind) >= LEAST_KINDS else [f"expected at least {LEAST_KINDS} kinds, found {kinds}", *wrong]
    )


async def sent(directory: Path, batch: Sequence[Outgoing]) -> Taken:
    """Send to all three servers, and what they have taken."""
    authority = Authority(directory / "pki")
    authority.ensure()
    pair = authority.issue("server", "localhost", addresses=["127.0.0.1", "localhost"])
    ca, taken = str(authority.certificate), Taken()
    smtp = await _smtp(taken, pair)
    runner, port = await _webhook(taken, pair)
    try:
        mail = f"mailtos://localhost:{smtp.sockets[0].getsockname()[1]}?from=ops@example.org&to=a@example.org&mode=starttls"
        await send(NotificationChannel(mail, ca_file=ca), batch)
        await send(NotificationChannel(f"jsons://127.0.0.1:{port}/hook", ca_file=ca), batch)
        alertmanager = Alertmanager(
            directory / "alertmanager", SILENT, certificate=pair, authority=authority.certificate
        )
        await asyncio.to_thread(alertmanager.__enter__)
        try:
            where = alertmanager.url.replace("https://", "alertmanagers://")
            await send(NotificationChannel(where, ca_file=ca), batch)
            alerts = await asyncio.to_thread(alertmanager.alerts)
            taken.alertmanager += [alert["annotations"]["description"] for alert in alerts]
        finally:
            await asyncio.to_thread(alertmanager.__exit__, None, None, None)
    finally:
        await runner.cleanup()
        smtp.close()
        await smtp.wait_closed()
    return taken


class _Mails:
    def __init__(self, taken: Taken) -> None:
        self._taken = taken

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802, RUF100
        content = envelope.content
        if session.ssl is None or not isinstance(content, bytes):
            return "530 Must issue a STARTTLS command first"
        part = email.message_from_bytes(content, policy=email.policy.default).get_body(("plain", "html"))
        self._taken.smtp.append(part.get_content() if part is not None else "")
        return "250 taken"


async def _smtp(taken: Taken, pair: Certificate) -> asyncio.Server:
    def serve() -> SMTP:
        return SMTP(_Mails(taken), hostname="localhost", tls_context=pair.serving(), require_starttls=True)

    return await asyncio.get_running_loop().create_server(serve, "127.0.0.1", 0)


async def _webhook(taken: Taken, pair: Certificate) -> tuple[web.AppRunner, int]:
    async def take(request: web.Request) -> web.Response:
        taken.webhook.append(str((await request.json())["message"]))
        return web.Response()

    app = web.Application()
    app.router.add_post("/hook", take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=pair.serving()).start()
    return runner, int(runner.addresses[0][1])
