"""The process that hands messages to Apprise, or to Alertmanager: ``python -m precision_operator.incidents.delivery``.

A process of its own, because Apprise takes 50 MiB that the operator would keep, blocks, and reads certificate authorities
and proxies from the environment. Whoever started it ends it at the deadline, whatever the other side does.
"""

import json
import logging
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypedDict
from urllib.parse import urlencode

from precision_operator.addresses import refusal_of
from precision_operator.api.messages import MessageKind
from precision_operator.incidents.alert import SCHEME, address_of, alert_of

if TYPE_CHECKING:
    from apprise import NotifyBase

MEMORY_BYTES = 512 * 1024 * 1024
"""An answer without an end is no reason to take the operator's memory."""
OK = 200
NICENESS = 10
"""Decisions come first."""
_STRUCTURED = ("jsons", "xmls", "forms")
"""What carries the facts as fields."""
_NOT_A_CHAT = (*_STRUCTURED, "mailtos")


class Note(TypedDict):
    """One message, as it is sent."""

    kind: str
    subject: str
    body: str
    facts: Mapping[str, str]


class Order(TypedDict):
    """What is asked of the process."""

    url: str
    timeout_seconds: float
    notes: list[Note]


class DeliveryResult(TypedDict):
    """What became of it: the first ``delivered`` notes were taken; ``said`` is why the next was not."""

    delivered: int
    said: str


class _Said(logging.Handler):
    """Keeps why something failed. Apprise logs it, and returns False."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Warnings and what a socket raised; other lines of debugging hold the message."""
        line = record.getMessage()
        if record.levelno >= logging.WARNING or line.startswith("Socket Exception"):
            self.lines.append(line[:400])


def deliver(order: Order) -> DeliveryResult:
    """Send until one is not taken."""
    said = _Said()
    logger = logging.getLogger("apprise")
    logger.addHandler(said)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    delivered = 0
    posts = order["url"].partition("://")[0].lower() == SCHEME
    for note in order["notes"]:
        why = refusal_of(order["url"])
        if posts and not why:
            why = _posted(order["url"], note, order["timeout_seconds"])
            if why:
                return DeliveryResult(delivered=delivered, said=why)
            delivered += 1
            continue
        service = None if why else _service(order["url"], note, order["timeout_seconds"])
        if service is None:
            return DeliveryResult(
                delivered=delivered, said=why or "; ".join(["no service of Apprise has it", *said.lines[-2:]])
            )
        # Certificates are verified and nobody is redirected, whatever the address says of it in a way not known here.
        service.verify_certificate, service.redirects = True, False
        chat = order["url"].partition("://")[0].lower() not in _NOT_A_CHAT
        if not _sent(service, note, inert if chat else str):
            return DeliveryResult(delivered=delivered, said="; ".join(said.lines[-4:]) or "not taken")
        delivered += 1
    return DeliveryResult(delivered=delivered, said="")


def _posted(url: str, note: Note, timeout_seconds: float) -> str:
    """Why Alertmanager did not take it; empty: it did. Apprise does not know it."""
    import requests

    where, user = address_of(url)
    alert = alert_of(note["kind"], note["subject"], note["body"], note["facts"], now=time.time())
    try:
        answer = requests.post(where, json=[alert], auth=user, timeout=timeout_seconds, allow_redirects=False)
    except requests.RequestException as error:
        return f"Alertmanager: {error}"[:400]
    return "" if answer.status_code == OK else f"Alertmanager answered {answer.status_code}: {answer.text[:200]}"


def _service(url: str, note: Note, timeout_seconds: float) -> "NotifyBase | None":
    from apprise import Apprise, AppriseAsset

    asset = AppriseAsset(
        storage_mode="memory",
        http_redirects=False,
        async_mode=False,
        app_id="precision-operator",
        app_url="",
        image_url_mask="",  # nobody who reads a message fetches a picture from elsewhere
        image_url_logo="",
    )
    options = {"cto": f"{timeout_seconds:g}", "rto": f"{timeout_seconds:g}"}
    if url.partition("://")[0].lower() in _STRUCTURED:
        options |= {f":{name}": value for name, value in note["facts"].items()}
    found = Apprise.instantiate(f"{url}{'&' if '?' in url else '?'}{urlencode(options)}", asset=asset)
    return found or None


def inert(text: str) -> str:
    """The text with word joiners (U+2060), so that what a tenant wrote mentions nobody and makes no link of a chat."""
    return text.replace("@", "@\u2060").replace("<!", "<\u2060!").replace("](", "]\u2060(")


def _sent(service: "NotifyBase", note: Note, cleaned: Callable[[str], str]) -> bool:
    from apprise import NotifyFormat, NotifyType

    kind = NotifyType((MessageKind.known(note["kind"]) or MessageKind.ATTENTION).tone)
    return bool(
        service.notify(
            title=cleaned(note["subject"]),
            body=cleaned(note["body"]),
            notify_type=kind,
            body_format=NotifyFormat.TEXT,
        )
    )


def main() -> None:
    """Read the order, send, and write the result as the only line of standard output."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    order: Order = json.load(sys.stdin)
    out, sys.stdout = sys.stdout, sys.stderr
    json.dump(deliver(order), out)


if __name__ == "__main__":
    main()
