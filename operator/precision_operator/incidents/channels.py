"""Channels that messages go to. Apprise sends them, in a process that ends at a deadline."""

import asyncio
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import unquote

from precision_operator.addresses import refusal_of
from precision_operator.api.text import bounded
from precision_operator.errors import OperatorError
from precision_operator.incidents.delivery import DeliveryResult, Note, Order
from precision_operator.incidents.report import Message
from precision_operator.reasons import Reason
from precision_operator.settings import NotificationChannel

START_SECONDS = 60.0
"""What a process may take to load Apprise, on a machine that is busy."""
REASON_CHARACTERS = 400
URL_BYTES = 8192
_INHERITED = (
    *("PATH", "PYTHONPATH", "LANG", "LC_ALL", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
    *("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"),
)
"""Of the operator's environment; the rest, and with it every credential, is not given on."""


class NotDelivered(OperatorError):
    """A channel did not take a message."""

    reason = Reason.NOT_DELIVERED


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message, and what goes along where the channel carries fields."""

    message: Message
    facts: Mapping[str, str]


async def send(channel: NotificationChannel, batch: Sequence[Outgoing]) -> int:
    """Send in order, until one is not taken; how many were.

    Raises:
        NotDelivered: the first one was not taken, in time; without address or credential in the text.
    """
    url = await asyncio.to_thread(_address, channel)
    notes = [
        Note(kind=m.kind, subject=m.subject, body=m.body, facts={**out.facts, "kind": m.kind, "at": m.at})
        for out in batch
        for m in (out.message,)
    ]
    order = Order(url=url, timeout_seconds=channel.timeout_seconds, notes=notes)
    result = await _carried_out(order, channel, seconds=START_SECONDS + channel.timeout_seconds * len(notes))
    if not result["delivered"]:
        said = bounded(_without(url, result["said"]), REASON_CHARACTERS)
        raise NotDelivered(f"{said or 'not taken'}; see the service's own log, and docs/notifications.md")
    return result["delivered"]


def _address(channel: NotificationChannel) -> str:
    url = channel.url
    if channel.url_file:
        try:
            with Path(channel.url_file).open("rb") as file:
                url = file.read(URL_BYTES).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise NotDelivered(
                f"urlFile {channel.url_file}: expected a file with an address, found {type(error).__name__}; "
                "mount the Secret there"
            ) from None
    why = refusal_of(url)
    if why:
        raise NotDelivered(why)
    return url


async def _carried_out(order: Order, channel: NotificationChannel, *, seconds: float) -> DeliveryResult:
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    if channel.ca_file:
        environment |= {"SSL_CERT_FILE": channel.ca_file, "REQUESTS_CA_BUNDLE": channel.ca_file}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "precision_operator.incidents.delivery"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment,
    )
    try:
        async with asyncio.timeout(seconds):
            out, _ = await process.communicate(json.dumps(order).encode())
        return cast(DeliveryResult, json.loads(out))
    except TimeoutError:
        raise NotDelivered(f"no answer within {seconds:g} s; see whether its address is right") from None
    except ValueError:
        raise NotDelivered(f"expected a result of Apprise, found none (exit code {process.returncode})") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _without(url: str, text: str) -> str:
    """Any part of an address may be a credential."""
    parts = {part for part in re.split(r"[/?&=:@,;]+", f"{url}/{unquote(url)}") if len(part) >= 6}
    for part in sorted(parts, key=len, reverse=True):
        text = text.replace(part, "***")
    return text
