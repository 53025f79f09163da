"""The HTTP side of the metrics: ``/metrics`` for Prometheus, ``/healthz`` for probes, JSON for people. Rank 0 only."""

from __future__ import annotations

import functools
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from ..errors import ConfigError
from . import api
from .metrics import Metrics


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], metrics: Metrics, stale_seconds: float) -> None:
        self.metrics = metrics
        self.stale_seconds = stale_seconds
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(metrics)
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10.0
    """Seconds a silent client may keep a thread."""

    def do_GET(self) -> None:
        """Answer the paths we have."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            encode, content_type = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, content_type, encode(self.server.registry))
        elif path == "/healthz":
            age = time.monotonic() - self.server.metrics.last_step_at
            healthy = age <= self.server.stale_seconds
            body = json.dumps({"ok": healthy, "last_step_age_seconds": round(age, 3)}).encode()
            self._answer(200 if healthy else 503, "application/json", body)
        elif path in api.PATHS:
            value = api.PATHS[path](self.server.metrics, self.server.stale_seconds)
            self._answer(200, "application/json", api.encode(value))
        else:
            there = ", ".join(("/metrics", "/healthz", *api.PATHS))
            self._answer(404, "text/plain; charset=utf-8", f"there are {there}\n".encode())

    def _answer(self, code: int, content_type: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silent: a line for every scrape would bury the training's own."""


class Exporter:
    """Serves until closed, from daemon threads."""

    def __init__(self, metrics: Metrics, port: int, address: str = "", stale_seconds: float = 300.0) -> None:
        """Listen on ``port`` (0: any free one). ``/healthz`` fails once no step ended for ``stale_seconds``.

        Raises:
            ConfigError: the port cannot be had.
        """
        try:
            self._server = _Server((address, port), metrics, stale_seconds)
        except OSError as error:
            raise ConfigError(
                f"metrics port {port} cannot be opened ({error}); free it or choose another with --metrics-port"
            ) from None
        self.port: int = self._server.server_address[1]
        serve = functools.partial(self._server.serve_forever, poll_interval=0.2)
        threading.Thread(target=serve, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
