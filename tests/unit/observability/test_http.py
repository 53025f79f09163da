"""The probes and /metrics over a real socket."""

import aiohttp
import pytest

from precision_operator.observability.health import Health
from precision_operator.observability.http import HttpServer
from precision_operator.observability.metrics import Metrics
from precision_operator.runtime.watchdog import Watchdog
from tests.support.manual_clock import ManualClock


async def test_probes_tell_what_is_wrong() -> None:
    clock = ManualClock()
    watchdog = Watchdog(clock)
    synced = serving = False
    server = HttpServer(Metrics(), Health(watchdog, lambda: synced, serving=lambda: serving))
    port = await server.start(0, "127.0.0.1")
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:

            async def ask(path: str) -> tuple[int, str]:
                async with http.get(path) as answer:
                    return answer.status, await answer.text()

            assert await ask("/readyz") == (503, "caches are not filled yet\n")
            synced = True
            assert await ask("/readyz") == (503, "the webhook has no certificate yet\n")
            serving = True
            assert await ask("/readyz") == (200, "ok\n")
            assert await ask("/livez") == (200, "ok\n")
            watchdog.expect("evaluation", 5)
            await clock.advance(7)
            assert await ask("/livez") == (503, "no sign of life: evaluation for 7.0 s\n")
            status, text = await ask("/metrics")
            assert status == 200
            assert "precision_operator_leader 0.0" in text
            assert (await ask("/anything"))[0] == 404
            assert (await ask("/api/v1/alerts"))[0] == 404, "alerts come to a port of their own"
    finally:
        await server.stop()
        await server.stop()


async def test_a_taken_port_is_an_error() -> None:
    one, two = HttpServer(Metrics(), Health(Watchdog())), HttpServer(Metrics(), Health(Watchdog()))
    port = await one.start(0, "127.0.0.1")
    try:
        with pytest.raises(OSError, match="in use"):
            await two.start(port, "127.0.0.1")
    finally:
        await one.stop()
