"""The probes and /metrics over a real socket."""

import io

import aiohttp
import pytest

from precision_operator.observability.health import Health
from precision_operator.observability.http import MAX_BODY_BYTES, HttpServer
from precision_operator.observability.metrics import Metrics
from precision_operator.runtime.watchdog import Watchdog
from tests.unit.runtime.manual_clock import ManualClock


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


async def test_alertmanager_is_told_whether_it_was_heard() -> None:
    answers: list[int | None] = [2, None]

    def receive(body: object) -> int | None:
        if body != {"version": "4"}:
            raise ValueError("expected a webhook")
        return answers.pop(0)

    server = HttpServer(Metrics(), Health(Watchdog()), receive)
    port = await server.start(0, "127.0.0.1")
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:

            async def post(body: str) -> tuple[int, str]:
                async with http.post("/api/v1/alerts", data=io.BytesIO(body.encode())) as answer:
                    return answer.status, await answer.text()

            assert await post('{"version": "4"}') == (200, '{"woken": 2}')
            assert (await post('{"version": "4"}'))[0] == 503
            assert await post("{}") == (400, "expected a webhook\n")
            assert (await post("not json"))[0] == 400
            assert (await post("x" * (MAX_BODY_BYTES + 1)))[0] == 413
    finally:
        await server.stop()
