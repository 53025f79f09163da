"""Series that are written by hand, because no device here reports them; served as an exporter serves them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

DCGM = Path(__file__).parent / "dcgm.prom"
"""Of the exporter of devices."""
TRAINER = Path(__file__).parent / "trainer.prom"
"""Of a trainer on a GPU."""


class _Exposition(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = (TRAINER if self.path == "/trainer" else DCGM).read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is to be said of a scrape."""


@contextmanager
def served() -> Iterator[str]:
    """``host:port`` of an HTTP server with the series: the exporter's at ``/metrics``, the trainer's at ``/trainer``."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Exposition)
    thread = threading.Thread(target=server.serve_forever, name="written series", daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
