"""Admission by webhook, as one part of the operator process: what it knows, its certificates, its server, its replicas."""

import asyncio
import logging
from collections.abc import Callable

from precision_operator.admission.known import KnownAssignments
from precision_operator.kube.port import KubeApi
from precision_operator.runtime.clock import Clock
from precision_operator.settings import Settings
from precision_operator.webhook.keeper import CertificateKeeper
from precision_operator.webhook.replicas import Replicas
from precision_operator.webhook.server import Count, WebhookServer

_LOG = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""How often is looked whether it can begin to serve."""

DRAIN_SECONDS = 2.0
"""How long it serves on after it was asked to stop: until then API servers may still send pods here."""


class Webhook:
    """Belongs to one event loop."""

    def __init__(
        self,
        api: KubeApi,
        clock: Clock,
        *,
        settings: Settings,
        leading: Callable[[], bool],
        synced: Callable[[], bool],
        count: Count,
    ) -> None:
        """``synced``: whether the watches have told of every assignment."""
        self._clock = clock
        self._port = settings.admission.port
        self._synced = synced
        self.known = KnownAssignments()
        self._keeper = CertificateKeeper(
            api, clock, settings=settings.admission, namespace=settings.namespace, leading=leading
        )
        self._server = WebhookServer(self.known, count=count, injecting=settings.admission.inject)
        self.replicas = Replicas(
            api,
            clock,
            namespace=settings.namespace,
            service=settings.admission.service,
            trusted=lambda: self._keeper.trusted,
        )
        self.serving = False
        """Only then are pods to be sent here."""

    async def run(self) -> None:
        """Keep the certificates, and serve as soon as everything is known.

        Raises:
            OSError: the port is taken.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keeper.run(), name="certificates")
            while not (self._synced() and self._keeper.loaded):
                await self._clock.sleep(LOOK_SECONDS)
            port = await self._server.start(self._port, self._keeper.context)
            self.serving = True
            _LOG.info("serving admission", extra={"webhookPort": port})

    async def drain(self) -> None:
        """Wait until API servers send nothing here any more."""
        if self.serving:
            await self._clock.sleep(DRAIN_SECONDS)

    async def close(self) -> None:
        """Stop serving."""
        self.serving = False
        await self._server.stop()
