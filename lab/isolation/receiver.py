"""What 300 slow bodies cost the alert receiver of a real operator process, and how long its loop stands still meanwhile.

The senders know the token and speak TLS: the worst case, since nobody else gets as far as a body. Each sends all but the
last byte, and comes again while it is sent away. Then come webhooks of 1,000 alerts about real pods.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from lab.bench import many
from lab.bench.api import Api, Json, until
from lab.bench.fleet import policy
from lab.bench.operators import Operator, Operators
from lab.cluster import ControlPlane
from lab.cluster.manifests import apply_product
from lab.cluster.ports import free_ports
from lab.errors import LabError
from lab.isolation.pulse import Pulse
from lab.progress import step
from precision_operator.receiver.alertmanager import MAX_ALERTS
from precision_operator.receiver.connections import Bounds
from precision_operator.receiver.server import BODIES, MAX_BODY_BYTES, PATH

SLOW_BODIES = 300
MAX_ADDED_MIB = 20.0
MAX_STALL_SECONDS = 0.2
PEERS = 60
"""Addresses that they come from: the limit of all connections binds, not that of one peer."""
TRIED_SECONDS = 30.0
AGAIN_SECONDS = 0.5
WEBHOOKS = 20
WORKLOADS, POLICIES = 250, 50
NAMESPACE = "isolation-receiver"
_SAMPLE_SECONDS = 0.05


class Senders:
    """Who posts to the receiver."""

    def __init__(self, port: int, token: str, authority: Path) -> None:
        self._port = port
        self._tls = ssl.create_default_context(cafile=str(authority))
        self._head = f"POST {PATH} HTTP/1.1\r\nHost: receiver\r\nAuthorization: Bearer {token}\r\n"

    async def slow(self, number: int) -> bool:
        """A body without its last byte, sent until the receiver has waited for it, or it has come for long enough.

        Whether it was waited for.
        """
        tried_until = time.monotonic() + TRIED_SECONDS
        while time.monotonic() < tried_until:
            with suppress(OSError):
                if await self._waited_for(f"127.0.1.{number % PEERS + 1}"):
                    return True
            await asyncio.sleep(AGAIN_SECONDS)
        return False

    async def _waited_for(self, address: str) -> bool:
        """Where it is let in, TLS has been spoken. Who is sent away after that has an answer, or is cut off, at once."""
        reader, writer = await self._connect(address)
        began = time.monotonic()
        try:
            writer.write(f"{self._head}Content-Length: {MAX_BODY_BYTES}\r\n\r\n".encode())
            writer.write(b" " * (MAX_BODY_BYTES - 1))
            with suppress(OSError):
                await reader.read()
        finally:
            writer.transport.abort()
        return time.monotonic() - began >= Bounds().body_seconds / 2

    async def post(self, body: bytes) -> int:
        """A whole body; the status of the answer."""
        reader, writer = await self._connect("127.0.0.1")
        writer.write(f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.read()
        writer.transport.abort()
        return int(answer.split()[1])

    async def _connect(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            "127.0.0.1", self._port, ssl=self._tls, server_hostname="localhost", local_addr=(address, 0)
        )


async def _populated(plane: ControlPlane, api: Api) -> Json:
    """On a control plane with the product and no controllers."""
    await many.populate(api, NAMESPACE, policies=POLICIES, workloads=WORKLOADS)
    await api.create(
        f"/apis/precision.genesis.ai/v1alpha1/namespaces/{NAMESPACE}/precisionpolicies",
        [policy(f"fleet-{number}", labels={"fleet": f"fleet-{number}"}) for number in range(POLICIES)],
    )
    token, port = plane.directory / "alert-token", free_ports(1)[0]
    token.write_text(secrets.token_hex(32))
    server = plane.authority.issue("alerts", "alerts", addresses=["localhost", "127.0.0.1"])
    receiver = {
        "tokenFile": str(token),
        "port": port,
        "certificateFile": str(server.certificate),
        "keyFile": str(server.key),
    }
    settings = {"receiver": receiver, "prometheus": {}}
    operators = Operators(plane, prometheus_url="", namespaces=[NAMESPACE], settings=settings)
    try:
        operator = await operators.start()
        await operators.leader()
        senders = Senders(port, token.read_text(), plane.authority.certificate)
        return await _measure(operator, senders)
    finally:
        operators.stop()


async def _measure(operator: Operator, senders: Senders) -> Json:
    async def served() -> bool:
        with suppress(OSError):
            return await senders.post(_webhook(1)) == 200
        return False

    await until(served, what="the receiver to serve", seconds=30)
    await asyncio.sleep(5.0)  # every policy has been looked at, and the collector has frozen the caches
    before = operator.usage().rss_mib
    with (
        Pulse(operator.port, operator.pid) as pulse,
        step(f"{SLOW_BODIES} slow bodies, and {WEBHOOKS} webhooks of {MAX_ALERTS} alerts"),
    ):
        most, awaited = await _slowly(operator, senders)
        for _ in range(WEBHOOKS):
            if await senders.post(_webhook(MAX_ALERTS)) != 200:
                raise LabError("200 for a webhook", "another answer", "read the operator's log")
    return {
        "slow_bodies": SLOW_BODIES,
        "awaited_bodies": awaited,
        "added_mib": round(most - before, 1),
        "loop_stall_seconds": round(pulse.slowest_seconds, 3),
    }


async def _slowly(operator: Operator, senders: Senders) -> tuple[float, int]:
    """The most memory that the process has while the slow bodies come; and for how many it waited."""
    slow = asyncio.gather(*(senders.slow(number) for number in range(SLOW_BODIES)))
    most = 0.0
    while not slow.done():
        most = max(most, await asyncio.to_thread(lambda: operator.usage().rss_mib))
        await asyncio.sleep(_SAMPLE_SECONDS)
    return most, sum(await slow)


def _webhook(alerts: int) -> bytes:
    """Alerts that each name another pod of the namespace."""
    found = [
        {"labels": {"namespace": NAMESPACE, "pod": f"fleet-{n % POLICIES}-{n // POLICIES:03d}-bench-0", "n": str(n)}}
        for n in range(alerts)
    ]
    return json.dumps({"version": "4", "alerts": found}).encode()


async def _run(directory: Path) -> Json:
    with ControlPlane(directory / "plane-receiver") as plane:
        apply_product(plane.kubectl)
        plane.kubectl("create", "namespace", NAMESPACE)
        plane.kubectl.wait_for_namespace(NAMESPACE)
        plane.stop_controllers()
        async with Api(plane) as api:
            return await _populated(plane, api)


def measure(directory: Path) -> Json:
    """``{slow_bodies, awaited_bodies, added_mib, loop_stall_seconds}``, with a control plane of its own."""
    return asyncio.run(_run(directory))


def missed(found: Mapping[str, object]) -> list[str]:
    """The bounds that the figures miss."""
    bounds = {"added_mib": MAX_ADDED_MIB, "loop_stall_seconds": MAX_STALL_SECONDS}
    sentences = [
        f"expected {name} of at most {bound}, found {found[name]}"
        for name, bound in bounds.items()
        if not float(str(found[name])) <= bound
    ]
    if not int(str(found["awaited_bodies"])) >= BODIES:
        sentences.append(
            f"expected the receiver to wait for {BODIES} slow bodies or more, found {found['awaited_bodies']}"
        )
    return sentences
