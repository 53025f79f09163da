"""How long the loop of an operator process stands still, seen from outside: /livez is answered by that loop.

A probe that waits was sent while the loop was busy, so the slowest answer is the longest stall, but for up to one pause
between two probes. The time for which the operator's loop or the prober was ready to run and other processes had the CPU is
left out, as the kernel counts it: the figure is the operator's own. Probes come from a process of their own.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

from lab.errors import LabError

EVERY_SECONDS = 0.01


class Pulse:
    """Probes during a ``with``."""

    def __init__(self, port: int, pid: int) -> None:
        """``port``: of the operator's /livez; ``pid``: its process, whose main thread has the loop."""
        self._command = [sys.executable, "-m", "lab.isolation.pulse", str(port), str(pid)]
        self.slowest_seconds = 0.0

    def __enter__(self) -> Pulse:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        said, _ = self._process.communicate("", timeout=90)
        if self._process.returncode:
            raise LabError("an operator that answers", "none", "read the operator's log")
        self.slowest_seconds = float(said)


def _delayed_seconds(*threads: Path) -> float:
    """For how long these threads were ready to run and did not run."""
    return sum(int((thread / "schedstat").read_text().split()[1]) for thread in threads) / 1e9


def _probe(port: int, pid: int, stop: threading.Event) -> float:
    """Probe until stopped; the slowest answer in seconds."""
    threads = Path(f"/proc/{pid}/task/{pid}"), Path("/proc/thread-self").resolve()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    slowest = 0.0
    while not stop.wait(EVERY_SECONDS):
        before, began = _delayed_seconds(*threads), time.monotonic()
        connection.request("GET", "/livez")
        connection.getresponse().read()
        took = time.monotonic() - began
        slowest = max(slowest, took - (_delayed_seconds(*threads) - before))
    connection.close()
    return slowest


def main() -> int:
    """Probe until standard input ends; print the slowest answer."""
    stop = threading.Event()

    def until_told() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=until_told, daemon=True).start()
    print(_probe(int(sys.argv[1]), int(sys.argv[2]), stop))
    return 0


if __name__ == "__main__":
    sys.exit(main())
