"""The half of kopf that we use: it logs in, watches, reconnects. It writes nothing and decides nothing.

kopf runs in a thread and a loop of its own: on its way out it cancels every task of its loop that is younger than
itself, and it takes over the process' signals. Its events are handed to our loop in order.
"""

import asyncio
import logging
import threading
from collections.abc import Callable

import kopf

from precision_operator.contract import PREFIX
from precision_operator.controller.sink import Sink, Watches, WatchLost
from precision_operator.controller.streams import Identity, listen
from precision_operator.inventory.caches import WATCHED
from precision_operator.kube.access import Access, credentials
from precision_operator.settings import Settings

log = logging.getLogger(__name__)

STOP_SECONDS = 15.0
"""How long kopf may take to wind down before it is left behind."""

TLS_CLOSE_SECONDS = 0.25
"""aiohttp ends its TLS connections only some turns of the loop after its session was closed."""


def build_registry(sink: Sink) -> Watches:
    """What kopf watches, on a registry of its own. The sink is called in the loop that runs now."""
    registry = Watches(sink, asyncio.get_running_loop())
    for resource in WATCHED:
        kopf.on.event(resource.group, resource.version, resource.plural, id=resource.plural, registry=registry)(
            _watched
        )
    return registry


async def _watched(**_: object) -> None:
    """kopf watches what has a handler. It is never called: events are taken from the stream (streams.py)."""


def configure(settings: kopf.OperatorSettings, ours: Settings) -> None:
    """kopf's settings for watching only, quick to notice a dead stream, and writing nothing anywhere."""
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.server_timeout = 300
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = 70
    settings.watching.reconnect_backoff = 0.5
    settings.watching.chunk_size = 500
    settings.networking.request_timeout = 15
    settings.networking.connect_timeout = 5
    settings.networking.error_backoffs = (0.2, 0.5, 1, 2, 5)
    settings.networking.enforce_retry_after = True
    settings.queueing.worker_limit = None
    settings.queueing.idle_timeout = 1
    settings.queueing.error_delays = (1, 2, 5, 10, 30)
    settings.queueing.exit_timeout = 1
    settings.execution.max_workers = 1
    settings.process.ultimate_exiting_timeout = None
    # Nothing of ours needs these; should a handler that does ever slip in, its marks are at least in our own domain.
    settings.persistence.finalizer = f"{PREFIX}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=PREFIX)
    logging.getLogger("kopf.objects").setLevel(logging.WARNING if ours.log_level != "debug" else logging.DEBUG)


def _register_login(registry: Watches, access: Access) -> None:
    """kopf asks again whenever the server refuses what it was given, so a rotated token is picked up."""

    @kopf.on.login(id="login", registry=registry, errors=kopf.ErrorsMode.TEMPORARY, backoff=1.0)
    async def login(**_: object) -> kopf.ConnectionInfo:
        found = await credentials(access)
        return kopf.ConnectionInfo(
            server=found.server,
            ca_path=found.ca_file,
            insecure=found.insecure,
            certificate_path=found.certificate_file,
            private_key_path=found.key_file,
            token=found.token,
            proxy_url=found.proxy,
        )


async def run_kopf(registry: Watches, settings: Settings, *, access: Access, stop_flag: asyncio.Event) -> None:
    """Watch until ``stop_flag`` is set. The inventory says when it is full.

    Raises:
        WatchLost: it ended for any other reason.
    """
    thread = _KopfThread(registry, settings, access)
    thread.start()
    stopper = asyncio.create_task(stop_flag.wait(), name="kopf stop flag")
    ender = asyncio.create_task(thread.ended.wait(), name="kopf end")
    try:
        await asyncio.wait({stopper, ender}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        thread.stop()
        await asyncio.wait({ender}, timeout=STOP_SECONDS)
        stopper.cancel()
        ender.cancel()
    if not stop_flag.is_set() or registry.error is not None:
        raise registry.error or WatchLost(f"kopf ended: {thread.failure or 'without an error'}")


class _KopfThread(threading.Thread):
    """kopf's thread; a daemon, so that a hung kopf cannot keep the process."""

    def __init__(self, registry: Watches, settings: Settings, access: Access) -> None:
        super().__init__(name="kopf", daemon=True)
        self._registry = registry
        self._settings = settings
        self._outer = asyncio.get_running_loop()
        self._stop: Callable[[], None] = lambda: None
        self._stopped = threading.Event()
        self.ended = asyncio.Event()
        self.failure: BaseException | None = None
        _register_login(registry, access)

    def stop(self) -> None:
        """Ask kopf to end; from any thread."""
        self._stopped.set()
        self._stop()

    def run(self) -> None:
        """The thread's body."""
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - the thread's end; see `ended` and `failure`
            self.failure = error
        finally:
            try:
                self._outer.call_soon_threadsafe(self.ended.set)
            except RuntimeError:
                log.debug("our loop has ended already")

    async def _main(self) -> None:
        inner, stop = asyncio.get_running_loop(), asyncio.Event()

        def request_stop() -> None:
            try:
                inner.call_soon_threadsafe(stop.set)
            except RuntimeError:
                log.debug("kopf has ended already")

        self._stop = self._registry.on_failure = request_stop
        if self._stopped.is_set():
            return
        settings = kopf.OperatorSettings()
        configure(settings, self._settings)
        unlisten = listen(settings, self._registry)
        try:
            await kopf.operator(
                registry=self._registry,
                settings=settings,
                # Else kopf asks for the user's name, which a container's bare uid has not.
                identity=Identity(self._settings.identity),
                standalone=True,
                clusterwide=not self._settings.watch_namespaces,
                namespaces=self._settings.watch_namespaces,
                stop_flag=stop,
            )
        finally:
            unlisten()
            await asyncio.sleep(TLS_CLOSE_SECONDS)
