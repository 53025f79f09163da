"""The receiver as one part of the operator process: it serves from the moment that its files can be used."""

import logging
from collections.abc import Callable
from pathlib import Path

from precision_operator.errors import ConfigurationError
from precision_operator.reasons import Reason
from precision_operator.receiver.certificate import CertificateFiles
from precision_operator.receiver.server import AlertServer, Receive
from precision_operator.receiver.tokens import TokenFile
from precision_operator.runtime.clock import Clock
from precision_operator.settings import ReceiverSettings

_LOG = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""How often the files are read. The kubelet brings a changed Secret within about a minute."""


class Receiver:
    """Belongs to one event loop."""

    def __init__(
        self,
        settings: ReceiverSettings,
        clock: Clock,
        *,
        leading: Callable[[], bool],
        receive: Receive,
        count: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._tokens = TokenFile(Path(settings.token_file))
        certificate = settings.certificate_file
        self._certificate = CertificateFiles(Path(certificate), Path(settings.key_file)) if certificate else None
        self._server = AlertServer(allows=self._tokens.allows, leading=leading, receive=receive, count=count)
        self._said = ""
        self.port: int | None = None
        """Where it serves; None before it does."""

    async def run(self) -> None:
        """Keep the files, and serve as soon as they can be used. Without a token file it ends at once.

        Raises:
            OSError: the port is taken.
        """
        if not self._settings.token_file:
            _LOG.info("no alerts are received: receiver.tokenFile is not set", extra={"reason": Reason.RECEIVER_OFF})
            return
        while True:
            if self.look() and self.port is None:
                context = self._certificate.context if self._certificate is not None else None
                self.port = await self._server.start(self._settings.port, context)
                _LOG.info("receiving alerts", extra={"receiverPort": self.port, "tls": context is not None})
            await self._clock.sleep(LOOK_SECONDS)

    def look(self) -> bool:
        """Read the files again; whether all of them can be used. What is wrong is logged once."""
        problem = ""
        for part in (self._tokens, self._certificate):
            try:
                if part is not None:
                    part.look()
            except ConfigurationError as error:
                problem = f"{problem}; {error}" if problem else str(error)
        if problem and problem != self._said:
            _LOG.warning("alerts may be refused: %s", problem, extra={"reason": Reason.RECEIVER_MISCONFIGURED})
        self._said = problem
        return not problem

    async def close(self) -> None:
        """Stop serving."""
        self.port = None
        await self._server.stop()
