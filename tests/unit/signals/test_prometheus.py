"""PrometheusSource against bodies of a real socket: what is no whole vector is never taken for one."""

import asyncio
import contextlib
import gzip
import json
import math
import threading
import time
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import pytest
from urllib3.connection import HTTPConnection

from lab.cluster.pki import Authority
from precision_operator.errors import QueryInvalid, SignalError, SourceUnavailable
from precision_operator.signals.prometheus import PrometheusSource, _Client
from precision_operator.signals.vectors import Vector
from tests.support.nobody import nobody
from tests.support.prometheus_bodies import (
    Stream,
    Write,
    drip_body,
    drip_chunks,
    drip_head,
    failure,
    http,
    serve,
    silent,
    source_of,
    success,
    vector,
)

PATIENCE_SECONDS = 60.0
"""For what takes a fraction of it on a busy machine, and for ever where it is broken."""


async def until(condition: object, *, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for a condition that other threads bring about."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        await asyncio.sleep(0.01)


VALUES = {
    "empty": (success("vector", []), []),
    "numbers": (vector("0", "-1.5", "1e-3"), [0.0, -1.5, 0.001]),
    "NaN and infinities": (vector("NaN", "+Inf", "-Inf"), [math.nan, math.inf, -math.inf]),
    "duplicates are passed on": (vector("1", "2", pod="p"), [1.0, 2.0]),
    "infos are no warnings": (
        json.dumps(
            {"status": "success", "infos": ["might not be a counter"], "data": {"resultType": "vector", "result": []}}
        ).encode(),
        [],
    ),
}


@pytest.mark.parametrize("name", VALUES)
async def test_a_vector_is_read_as_it_is(name: str) -> None:
    body, expected = VALUES[name]
    with serve(http(body)) as server:
        async with source_of(server.url) as source:
            samples = await source.vector("q")
    assert [str(sample.value) for sample in samples] == [str(value) for value in expected]


def cut_off(write: Write, stop: threading.Event) -> None:
    """The connection ends before the answer does."""
    write(http(vector("1"))[:-10])


REFUSED: dict[str, tuple[bytes | Stream, type[SignalError], str]] = {
    "scalar": (http(success("scalar", [1.5, "1"])), SourceUnavailable, "expected a vector, found scalar"),
    "string": (http(success("string", [1.5, "x"])), SourceUnavailable, "found string"),
    "matrix": (
        http(success("matrix", [{"metric": {}, "values": [[1.5, "1"]]}])),
        SourceUnavailable,
        "found matrix",
    ),
    "no data": (http(b'{"status":"success"}'), SourceUnavailable, "found no result"),
    "result null": (http(success("vector", None)), SourceUnavailable, "expected a vector"),
    "warnings": (http(vector("1", warnings=["store 3 is away"])), SourceUnavailable, "partial.*store 3 is away"),
    "empty with warnings": (
        http(success("vector", [], warnings=["partial response"])),
        SourceUnavailable,
        "partial response",
    ),
    "200 and error": (http(failure("internal", "broken")), SourceUnavailable, "internal: broken"),
    "HTML": (http(b"<html>login</html>"), SourceUnavailable, "expected JSON"),
    "nothing": (http(b""), SourceUnavailable, "expected JSON"),
    "null": (http(b"null"), SourceUnavailable, "expected a JSON object"),
    "deep": (http(b"[" * 90_000), SourceUnavailable, "expected JSON"),
    "native histogram": (
        http(success("vector", [{"metric": {"pod": "p"}, "histogram": [1.5, {}]}])),
        SourceUnavailable,
        "numeric value",
    ),
    "value no number": (http(vector("many")), SourceUnavailable, "numeric value"),
    "value not a string": (http(vector(3)), SourceUnavailable, "numeric value, found {.metric.: {"),
    "no number beside an infinity": (http(vector("+Inf", "many")), SourceUnavailable, "'many'"),
    "400 bad_data": (
        http(failure("bad_data", "1:5: parse error: unclosed parenthesis"), "400 Bad Request"),
        QueryInvalid,
        "unclosed parenthesis",
    ),
    "422 bad_data": (http(failure("bad_data", "no"), "422 Unprocessable Entity"), QueryInvalid, "refuses the query"),
    "422 execution": (
        http(failure("execution", "many-to-many matching"), "422 Unprocessable Entity"),
        SourceUnavailable,
        "many-to-many",
    ),
    "400 of a proxy": (http(b"<html>", "400 Bad Request"), SourceUnavailable, "HTTP 400, without an answer"),
    "401": (http(b"", "401 Unauthorized"), SourceUnavailable, "HTTP 401"),
    "404": (http(b"not found", "404 Not Found"), SourceUnavailable, "check the endpoint's URL"),
    "429": (http(b"", "429 Too Many Requests", Retry_After="3600"), SourceUnavailable, "HTTP 429"),
    "503 JSON": (http(failure("timeout", "query timed out"), "503 Unavailable"), SourceUnavailable, "timed out"),
    "503": (http(b"", "503 Unavailable"), SourceUnavailable, "HTTP 503"),
    "huge": (http(b" " * 300_000), SourceUnavailable, "longer than 100000 bytes"),
    "gzip bomb": (
        http(gzip.compress(b" " * 10_000_000), Content_Encoding="gzip"),
        SourceUnavailable,
        "compressed",
    ),
    "cut off": (cut_off, SourceUnavailable, "main.*IncompleteRead"),
    "no HTTP": (b"\x00\x01garbage\r\n\r\n", SourceUnavailable, "main.*garbage"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_no_whole_vector_is_refused_and_said_why(name: str) -> None:
    reply, error, message = REFUSED[name]
    with serve() as server:
        server.answer = lambda _: reply
        async with source_of(server.url) as source:
            with pytest.raises(error, match=message) as caught:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await source.vector("q")
            await until(lambda: not server.open)  # a connection that went wrong is not kept
    assert type(caught.value) is error
    assert len(server.heads) == 1, "asked once"


async def test_a_healthy_connection_is_kept() -> None:
    with serve(http(vector("1"))) as server:
        async with source_of(server.url) as source:
            for _ in range(5):
                await source.vector("q")
    assert (len(server.heads), server.accepted) == (5, 1)


async def test_a_redirect_is_not_followed() -> None:
    with serve(http(vector("1"))) as elsewhere:
        with serve(http(b"", "302 Found", Location=f"{elsewhere.url}/api/v1/query")) as server:
            async with source_of(server.url) as source:
                with pytest.raises(SourceUnavailable, match="redirect is not followed"):
                    await source.vector("q")
        assert elsewhere.heads == []


async def test_nobody_listens() -> None:
    with nobody() as port:
        async with source_of(f"http://127.0.0.1:{port}") as source:
            with pytest.raises(SourceUnavailable, match="refused"):
                await source.vector("q")


@pytest.mark.parametrize("stream", [silent, drip_body, drip_chunks, drip_head])
async def test_a_slow_answer_ends_at_the_deadline_and_its_thread_is_freed(stream: object) -> None:
    assert callable(stream)
    with serve(stream=stream) as server:
        async with source_of(server.url, limit=0.4, threads=2) as source:
            async with asyncio.timeout(PATIENCE_SECONDS):  # the server itself never comes to an end
                outcomes = await asyncio.gather(*(source.vector("q") for _ in range(6)), return_exceptions=True)
            assert len(server.heads) < len(outcomes), "who waits for a thread uses up its own time"
            assert all(isinstance(outcome, SourceUnavailable) for outcome in outcomes)
            threads = [thread for thread in threading.enumerate() if thread.name.startswith("prometheus-main")]
            assert len(threads) <= 2
            await until(lambda: not source._busy)
            server.stream, server.reply = None, http(vector("7"))
            source._endpoint = replace(source._endpoint, timeout_seconds=30.0)  # it need not be quick to recover
            assert [sample.value for sample in await source.vector("q")] == [7.0], "and recovers by itself"


async def test_a_cancelled_query_frees_its_thread() -> None:
    with serve(stream=silent) as server:
        async with source_of(server.url, limit=30, threads=1) as source:
            asking = asyncio.ensure_future(source.vector("q"))
            await until(lambda: server.heads)
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
            await until(lambda: not source._busy)


async def test_the_loop_runs_on_while_a_query_hangs() -> None:
    with serve(stream=silent) as server:
        async with source_of(server.url, limit=30) as source:
            asking = asyncio.ensure_future(source.vector("q"))
            await until(lambda: server.heads)
            for _ in range(100):
                await asyncio.sleep(0)
            assert not asking.done()
            server.stop.set()
            with pytest.raises(SourceUnavailable):
                await asking


async def test_the_request_carries_query_deadline_and_the_newest_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    with serve(http(vector("1"))) as server:
        async with source_of(server.url + "/", token=str(token)) as source:
            await source.vector('up{a="b c"}')
            token.write_text("two\n")
            await source.vector("q")
            token.unlink()
            with pytest.raises(SourceUnavailable, match="No such file"):
                await source.vector("q")
    first, second = server.heads
    assert first.startswith("GET /api/v1/query?query=up%7Ba%3D%22b+c%22%7D&timeout=")
    assert "Authorization: Bearer one\r\n" in first
    assert "Authorization: Bearer two\r\n" in second
    assert "Accept-Encoding: identity\r\n" in first


async def test_the_environments_proxy_and_netrc_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with serve(http(vector("1"))) as server:
        async with source_of(server.url) as source:
            assert len(await source.vector("q")) == 1


async def test_an_endpoint_over_tls_is_believed_by_the_authority_that_the_admin_names_alone(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "one"), Authority(tmp_path / "other")
    authority.ensure()
    other.ensure()
    with serve(http(vector("1")), tls=authority.issue("p", "p", addresses=["127.0.0.1"]).serving()) as server:
        async with source_of(server.url, ca_file=str(authority.certificate)) as source:
            assert len(await source.vector("q")) == 1
        for ca_file in (str(other.certificate), ""):
            async with source_of(server.url, ca_file=ca_file) as source:
                with pytest.raises(SourceUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
                    await source.vector("q")
        async with source_of(
            server.url.replace("127.0.0.1", "localhost"), ca_file=str(authority.certificate)
        ) as source:
            with pytest.raises(SourceUnavailable, match="Hostname mismatch"):
                await source.vector("q")


async def test_credentials_in_the_url_are_sent_as_such() -> None:
    with serve(http(vector("1"))) as server:
        async with source_of(server.url.replace("//", "//user:p%40%C3%9Fs@")) as source:
            await source.vector("q")
    assert f"Authorization: Basic {b64encode('user:p@ßs'.encode()).decode()}" in server.heads[0]


async def test_a_path_in_the_url_is_kept() -> None:
    with serve(http(vector("1"))) as server:
        async with source_of(f"{server.url}/mimir/prometheus/", limit=20) as source:
            await source.vector("up + 1")
    assert server.heads[0].startswith("GET /mimir/prometheus/api/v1/query?query=up+%2B+1&timeout=20s HTTP/1.1")


async def test_credentials_in_the_url_go_before_a_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret")
    with serve(http(vector("1"))) as server:
        async with source_of(server.url.replace("//", "//user:pass@"), token=str(tmp_path / "token")) as source:
            await source.vector("q")
    assert [line for line in server.heads[0].lower().splitlines() if line.startswith("authorization")] == [
        f"authorization: basic {b64encode(b'user:pass').decode().lower()}"
    ]


@pytest.mark.parametrize("place", ["127.0.0.1:99999", "127.0.0.1:port", "[::1"])
async def test_a_url_that_is_none_is_said_at_each_query_without_its_credentials(place: str) -> None:
    async with source_of(f"http://user:hunter2@{place}", threads=1) as source:
        for _ in range(3):
            with pytest.raises(SourceUnavailable, match="URL cannot be used") as caught:
                await source.vector("q")
            assert "hunter2" not in str(caught.value)


async def test_credentials_in_the_url_are_not_told() -> None:
    with nobody() as port:
        async with source_of(f"http://user:hunter2@127.0.0.1:{port}") as source:
            with pytest.raises(SourceUnavailable) as caught:
                await source.vector("q")
    assert "hunter2" not in str(caught.value)


async def test_a_closed_source_says_so() -> None:
    with serve(http(vector("1"))) as server:
        async with source_of(server.url) as source:
            await source.vector("q")
        with pytest.raises(SourceUnavailable, match="closed"):
            await source.vector("q")


async def give_up(source: PrometheusSource, reached: threading.Event, may_go_on: threading.Event) -> None:
    """Cancel a query once its thread has come so far, and let the thread end."""
    asking = asyncio.ensure_future(source.vector("q"))
    await until(reached.is_set)
    asking.cancel()
    await until(asking.done)
    may_go_on.set()
    await until(lambda: not source._busy)


async def test_a_query_that_is_given_up_while_its_connection_is_made_sends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connects, may_connect = threading.Event(), threading.Event()
    connect = HTTPConnection.connect

    def slowly(connection: HTTPConnection) -> None:
        connects.set()
        may_connect.wait(PATIENCE_SECONDS)
        connect(connection)

    with serve(http(vector("1"))) as server, monkeypatch.context() as patched:
        patched.setattr(HTTPConnection, "connect", slowly)
        async with source_of(server.url) as source:
            await give_up(source, connects, may_connect)
            assert server.heads == []
            assert [sample.value for sample in await source.vector("q")] == [1.0]


async def test_who_is_given_up_as_its_answer_comes_is_asked_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    answered, may_end = threading.Event(), threading.Event()
    ask = _Client.ask

    def late(client: _Client, query: str, deadline: float, before: Vector | None) -> Vector:
        found = ask(client, query, deadline, before)
        answered.set()
        may_end.wait(PATIENCE_SECONDS)
        return found

    with serve(http(vector("1"))) as server, monkeypatch.context() as patched:
        patched.setattr(_Client, "ask", late)
        async with source_of(server.url) as source:
            await give_up(source, answered, may_end)
            assert [sample.value for sample in await source.vector("q")] == [1.0]
