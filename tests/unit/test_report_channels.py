"""Messages on real listeners: what arrives, what is refused, and that no address or password leaks into an error."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from precision_operator.errors import ConfigurationError
from precision_operator.report.channels import NotDelivered, send
from precision_operator.report.incident import Message
from precision_operator.settings import NotificationChannel, parse_settings

MESSAGE = Message("Notice", "2026-01-01T00:00:00.000Z", "[P0] team/fleet: rolled back", "IMPACT: <!channel> & more")


@dataclass
class Listener:
    """An HTTP server that keeps what it is sent."""

    url: str = ""
    status: int = 200
    hangs: bool = False
    bodies: list[dict[str, str]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        if self.hangs:
            await asyncio.Event().wait()
        self.bodies.append(await request.json())
        self.tokens.append(request.headers.get("Authorization", ""))
        return web.Response(status=self.status, headers={"Location": "/elsewhere"} if self.status == 302 else {})


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    found = Listener()
    app = web.Application()
    app.router.add_post("/hook-secret", found.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook-secret"
    yield found
    await runner.cleanup()


async def test_a_webhook_gets_the_message_with_its_facts_and_the_token(listener: Listener, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("abc\n")
    channel = NotificationChannel("webhook", listener.url, bearer_token_file=str(token))
    await send(channel, MESSAGE, {"policy": "fleet"})
    (body,) = listener.bodies
    assert (body["policy"], body["kind"], body["subject"]) == ("fleet", "Notice", MESSAGE.subject)
    assert listener.tokens == ["Bearer abc"]


async def test_slack_gets_plain_text_that_mentions_nobody(listener: Listener) -> None:
    await send(NotificationChannel("slack", listener.url), MESSAGE, {})
    assert listener.bodies == [{"text": f"*{MESSAGE.subject}*\nIMPACT: &lt;!channel&gt; &amp; more"}]


@pytest.mark.parametrize("status", [302, 404, 500])
async def test_an_answer_that_is_no_success_is_not_delivered(listener: Listener, status: int) -> None:
    listener.status = status
    with pytest.raises(NotDelivered, match=str(status)):
        await send(NotificationChannel("webhook", listener.url), MESSAGE, {})


async def test_a_channel_that_hangs_is_left_at_its_deadline(listener: Listener) -> None:
    listener.hangs = True
    with pytest.raises(NotDelivered, match=r"no answer within 0\.2 s"):
        await send(NotificationChannel("webhook", listener.url, timeout_seconds=0.2), MESSAGE, {})


@pytest.mark.parametrize("kind", ["webhook", "slack"])
async def test_the_address_of_a_webhook_stands_in_no_error(kind: str) -> None:
    with pytest.raises(NotDelivered) as caught:
        await send(NotificationChannel(kind, "http://127.0.0.1:9/hook-secret"), MESSAGE, {})
    assert "hook-secret" not in str(caught.value)


async def mail_server(received: list[str], *, accept: bool) -> asyncio.Server:
    """As much of SMTP (RFC 5321) as one mail needs."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 here\r\n")
        while line := await reader.readline():
            word = line.strip().upper()
            if word == b"DATA":
                writer.write(b"354 go on\r\n")
                while (text := await reader.readline()) != b".\r\n":
                    received.append(text.decode())
                writer.write(b"250 taken\r\n")
            elif word.startswith(b"RCPT") and not accept:
                writer.write(b"550 nobody here\r\n")
            elif word == b"QUIT":
                writer.write(b"221 bye\r\n")
                break
            else:
                writer.write(b"250 fine\r\n")
        await writer.drain()
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


def mail(server: asyncio.Server, *, password_file: str = "") -> NotificationChannel:
    port = server.sockets[0].getsockname()[1]
    return NotificationChannel(
        "smtp",
        f"smtp://127.0.0.1:{port}",
        sender="operator@example.org",
        recipients="a@example.org, b@example.org",
        user="operator",
        password_file=password_file,
    )


async def test_mail_arrives_with_subject_and_recipients() -> None:
    received: list[str] = []
    async with await mail_server(received, accept=True) as server:
        await send(mail(server), MESSAGE, {})
    text = "".join(received)
    assert "Subject: [P0] team/fleet: rolled back" in text
    assert "To: a@example.org, b@example.org" in text
    assert "IMPACT: <!channel> & more" in text


async def test_mail_that_is_refused_is_not_delivered() -> None:
    async with await mail_server([], accept=False) as server:
        with pytest.raises(NotDelivered, match="nobody here"):
            await send(mail(server), MESSAGE, {})


async def test_a_password_is_never_sent_without_tls(tmp_path: Path) -> None:
    received: list[str] = []
    password = tmp_path / "password"
    password.write_text("hunter2")
    async with await mail_server(received, accept=True) as server:
        with pytest.raises(NotDelivered, match="STARTTLS"):
            await send(mail(server, password_file=str(password)), MESSAGE, {})
    assert received == []


@pytest.mark.parametrize(
    ("channel", "words"),
    [
        ({"kind": "pigeon", "url": "https://x"}, "kind: expected one of webhook, slack, smtp"),
        ({"kind": "slack", "url": "ftp://x"}, "url: expected it to begin with"),
        ({"kind": "smtp", "url": "smtp://x"}, "expected sender and recipients"),
        ({"kind": "slack", "url": "https://x", "role": "boss"}, "role: expected one of"),
        ({"kind": "slack", "url": "https://x", "token": "y"}, "no such setting"),
    ],
)
def test_a_channel_that_cannot_work_is_refused_at_the_start(channel: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        parse_settings({"notifications": {"it": channel}}, environment={})


def test_a_channels_address_may_come_from_the_environment() -> None:
    raw = {"notifications": {"it": {"kind": "slack", "url": "$(HOOK)"}}}
    assert parse_settings(raw, environment={"HOOK": "https://x/y"}).notifications["it"].url == "https://x/y"
