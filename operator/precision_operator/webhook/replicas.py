"""Which generation does each replica of the webhook give to new pods? Each is asked: an echo reaches only one of them."""

import asyncio
import ssl
from collections.abc import Callable

import aiohttp

from precision_operator.api.wire import integer, mapping
from precision_operator.core.model import Admission
from precision_operator.errors import KubeError
from precision_operator.kube.endpoints import ready_servers
from precision_operator.kube.port import ENDPOINT_SLICES, KubeApi
from precision_operator.reasons import Reason
from precision_operator.runtime.clock import Clock

PATIENCE_SECONDS = 2.0
"""How long a committed generation is waited for."""

PAUSE_SECONDS = 0.02
"""Between two questions to one replica."""

ANSWER_SECONDS = 2.0
"""How long one answer may take: as long as API servers wait for the webhook."""

OF_SERVICE = "kubernetes.io/service-name"


class Replicas:
    """Asks the ready replicas. Belongs to one event loop."""

    def __init__(
        self, api: KubeApi, clock: Clock, *, namespace: str, service: str, trusted: Callable[[], bytes]
    ) -> None:
        """``trusted``: the authorities that their certificates must chain to, as PEM."""
        self._api = api
        self._clock = clock
        self._namespace = namespace
        self._service = service
        self._trusted = trusted

    async def ask(self, namespace: str, name: str, *, generation: int, awaited: bool = True) -> Admission | None:
        """What stands against every replica knowing at least this generation; None: nothing.

        ``awaited``: the generation is new, so each is asked until it knows it, or patience ends; else once.
        """
        try:
            slices = await self._api.list(
                ENDPOINT_SLICES, self._namespace, label_selector=f"{OF_SERVICE}={self._service}"
            )
        except KubeError as error:
            return Admission(None, error.reason, f"the webhook's replicas cannot be listed: {error}")
        servers = sorted({server for body in slices for server in ready_servers(body)})
        if not servers:
            return self._unreachable("no replica is ready")
        trusted = self._trusted().decode(errors="replace")
        try:
            context = ssl.create_default_context(cadata=trusted) if trusted else None
        except (ssl.SSLError, ValueError) as error:
            return self._unreachable(f"its authority cannot be read: {error}")
        if context is None:  # else the system's authorities would be trusted
            return self._unreachable("its authority is not known yet")
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context), timeout=timeout) as session:
            path = f"/known/{namespace}/{name}"
            asked = (self._until(session, server, path, generation, awaited=awaited) for server in servers)
            answers = await asyncio.gather(*asked)
        return next((answer for answer in answers if answer is not None), None)

    async def _until(
        self, session: aiohttp.ClientSession, server: str, path: str, generation: int, *, awaited: bool
    ) -> Admission | None:
        began = self._clock.monotonic()
        while True:
            try:
                known = await self._once(session, f"{server}{path}")
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                return self._unreachable(f"{server} does not answer: {type(error).__name__}: {error}")
            if known >= generation:
                return None
            if not awaited or self._clock.monotonic() - began >= PATIENCE_SECONDS:
                text = (
                    f"the webhook at {server} knows generation {known} of the assignment, and {generation} is committed"
                )
                return Admission(False, Reason.ADMISSION_BEHIND, text)
            await self._clock.sleep(PAUSE_SECONDS)

    async def _once(self, session: aiohttp.ClientSession, url: str) -> int:
        """The generation that a replica knows; -1 where it does not know the assignment."""
        name = f"{self._service}.{self._namespace}.svc"
        async with session.get(url, server_hostname=name) as answer:
            if answer.status not in (200, 404):
                raise ValueError(f"status {answer.status}")
            return integer(mapping(await answer.json()).get("generation"), -1)

    def _unreachable(self, why: str) -> Admission:
        where = f"-n {self._namespace} -l {OF_SERVICE}={self._service}"
        text = f"the webhook's replicas cannot all be asked: {why}; look at kubectl get endpointslices {where}"
        return Admission(None, Reason.WEBHOOK_UNREACHABLE, text)
