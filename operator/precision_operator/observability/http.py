"""The HTTP server of /metrics, /livez and /readyz. Alerts come to a port of their own (receiver/)."""

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from precision_operator.observability.health import Health, HealthVerdict
from precision_operator.observability.metrics import Metrics


class HttpServer:
    """Serves until ``stop``. It holds no secrets and takes nothing in: it asks nobody who he is."""

    def __init__(self, metrics: Metrics, health: Health) -> None:
        self._metrics = metrics
        self._health = health
        self._runner: web.AppRunner | None = None

    async def start(self, port: int, host: str = "0.0.0.0") -> int:  # noqa: S104, RUF100  probes come from the node
        """Listen; port 0 picks a free one. Returns the port.

        Raises:
            OSError: the port is taken.
        """
        app = web.Application()
        app.router.add_get("/metrics", self._serve_metrics)
        app.router.add_get("/livez", self._serve_live)
        app.router.add_get("/readyz", self._serve_ready)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        address: tuple[str, int] = runner.addresses[0]
        return address[1]

    async def stop(self) -> None:
        """Stop listening; harmless when not started."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _serve_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _serve_live(self, _: web.Request) -> web.Response:
        return _answer(self._health.live())

    async def _serve_ready(self, _: web.Request) -> web.Response:
        return _answer(self._health.ready())


def _answer(verdict: HealthVerdict) -> web.Response:
    return web.Response(status=200 if verdict.ok else 503, text=verdict.message + "\n")
