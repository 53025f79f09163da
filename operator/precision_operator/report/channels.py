"""Channels that messages go to: webhook, Slack-compatible webhook, mail. Each sends once, within a deadline, or raises."""

import asyncio
import smtplib
from collections.abc import Mapping
from email.message import EmailMessage
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from precision_operator.api.redaction import redact
from precision_operator.errors import OperatorError
from precision_operator.report.incident import Message
from precision_operator.settings import NotificationChannel


class NotDelivered(OperatorError):
    """A channel did not take a message."""

    reason = "NotDelivered"


async def send(channel: NotificationChannel, message: Message, facts: Mapping[str, str]) -> None:
    """Send one message; ``facts`` go along where the channel carries structure.

    Raises:
        NotDelivered: the channel did not take it in time; without address or credential in the text.
    """
    try:
        async with asyncio.timeout(channel.timeout_seconds):
            if channel.kind == "smtp":
                await asyncio.to_thread(_mail, channel, message)
            else:
                await _post(channel, _payload(channel, message, facts))
    except TimeoutError:
        raise NotDelivered(
            f"no answer within {channel.timeout_seconds:g} s; see whether its address is right"
        ) from None
    except (aiohttp.ClientError, smtplib.SMTPException, OSError, ValueError) as error:
        raise NotDelivered(f"{type(error).__name__}: {redact(_without(channel, str(error)))}") from None


def _payload(channel: NotificationChannel, message: Message, facts: Mapping[str, str]) -> dict[str, str]:
    if channel.kind == "slack":
        return {"text": f"*{_plain(message.subject)}*\n{_plain(message.body)}"}
    return {**facts, "kind": message.kind, "at": message.at, "subject": message.subject, "body": message.body}


def _plain(text: str) -> str:
    """Slack's three control characters, escaped: nobody is mentioned, and no link is made, by a workload's name."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


async def _post(channel: NotificationChannel, payload: Mapping[str, str]) -> None:
    headers = {}
    if channel.bearer_token_file:
        token = (await asyncio.to_thread(Path(channel.bearer_token_file).read_text, "ascii")).strip()
        headers["Authorization"] = f"Bearer {token}"
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.post(channel.url, json=dict(payload), headers=headers, allow_redirects=False) as answer,
    ):
        if answer.status >= 300:
            raise NotDelivered(f"expected a status below 300, found {answer.status}; see the channel's own log")


def _mail(channel: NotificationChannel, message: Message) -> None:
    """Blocks for at most the channel's time-out at each step."""
    address = urlsplit(channel.url)
    mail = EmailMessage()
    mail["Subject"] = " ".join(message.subject.split())
    mail["From"] = channel.sender
    mail["To"] = channel.recipients
    mail.set_content(message.body)
    secure = address.scheme == "smtps"
    connect = smtplib.SMTP_SSL if secure else smtplib.SMTP
    with connect(
        address.hostname or "", address.port or (465 if secure else 25), timeout=channel.timeout_seconds
    ) as server:
        if channel.password_file:
            if not secure:
                server.starttls()  # a password is never sent in the clear: without TLS this raises
            server.login(channel.user, Path(channel.password_file).read_text(encoding="utf-8").strip())
        server.send_message(mail)


def _without(channel: NotificationChannel, text: str) -> str:
    """A webhook's address is a credential itself."""
    return text.replace(channel.url, "its address") if channel.url else text
