"""A started command of the trainer: its log lines, its metrics, and how it is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.training.forked import Forked

ROOT = Path(__file__).parents[3]
SMALL = ["--width", "16", "--layers", "1", "--context", "8", "--batch-size", "2"]
TRAIN = ["-m", "precision_trainer", "train", "transformer"]
TORCHRUN = ["-m", "precision_trainer.torchrun", "--standalone", "--nproc-per-node", "2"]
LAUNCH = ["-m", "precision_trainer", "launch", "--nproc-per-node", "2", "--master-port", "0"]
PATIENT_LAUNCH = ["-m", "tests.support.training.patient_launch", *LAUNCH[2:]]
WITH_TESTS = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'trainer_image'}"}
"""Finds what stands in tests/support too."""
WAIT_SECONDS = 300.0
"""For what a process is to come to, its end too: on a starved machine its import of torch alone takes 80 s."""


class Process:
    """One started command, its output in a file, its metrics on a port that it chooses and says."""

    def __init__(
        self, directory: Path, command: list[str], env: Mapping[str, str] | None = None, *, forked: bool = False
    ) -> None:
        """``forked``: without importing torch anew (see Forked)."""
        self.request = directory / "request"
        descriptor, path = tempfile.mkstemp(dir=directory, prefix="output-")
        os.close(descriptor)
        # For appending: reading here must not move the place at which the process writes.
        self._output = open(path, "a+", encoding="utf-8")  # noqa: SIM115  (closed in close)
        self._lines: list[dict[str, Any]] = []
        self._read = 0
        """Where the first line begins that is not in ``_lines``: a condition looks every 50 ms, a trainer may say much."""
        settings = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "trainer_image"),
            "PRECISION_REQUEST_FILE": str(self.request),
            "PRECISION_ALLOW_CPU": "true",
            "TRAINER_METRICS_PORT": "0",
            "TRAINER_CHECKPOINT_DIR": str(directory / "checkpoints"),
            "OMP_NUM_THREADS": "1",
            **(env or {}),
        }
        self.process: subprocess.Popen[bytes] | Forked
        if forked:
            self.process = Forked([*command, *SMALL], settings, Path(path))
            return
        # As a careless parent starts it: with the signals blocked, which is inherited.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        try:
            self.process = subprocess.Popen(
                [sys.executable, *command, *SMALL],
                env=settings,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The whole ones: of the last, only a part may be written yet."""
        self._output.seek(self._read)
        while (line := self._output.readline()).endswith("\n"):
            self._read = self._output.tell()
            if line.startswith("{"):
                self._lines.append(json.loads(line))
        return list(self._lines)

    @property
    def text(self) -> str:
        self._output.seek(0)
        return self._output.read()

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == name]

    def page(self, path: str) -> str:
        """What is served there, since the last restart; nothing before it is, or where the answer is an error."""
        served = self.events("metrics")
        if not served:
            return ""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{served[-1]['port']}{path}", timeout=60) as response:
                page: str = response.read().decode()
                return page
        except OSError:
            return ""

    def metrics(self) -> str:
        """The page, or nothing before it is served."""
        return self.page("/metrics")

    def value(self, name: str) -> float:
        """Of a metric without labels; 0 before it is there."""
        lines = (line.split() for line in self.metrics().splitlines() if line.startswith(f"{name} "))
        return next((float(line[1]) for line in lines), 0.0)

    def until(self, condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.text
            assert self.process.poll() is None, self.text
            time.sleep(0.05)

    def until_metric(self, line: str) -> None:
        self.until(lambda: f"\n{line}" in self.metrics())

    def until_training(self) -> None:
        """Some steps of this process have ended."""
        self.until(lambda: self.value("genesis_training_steps_total") > 5)

    def until_event(self, name: str) -> dict[str, Any]:
        """The first of that name, once it is there."""
        self.until(lambda: bool(self.events(name)))
        return self.events(name)[0]

    def kill(self) -> None:
        """SIGKILL for it and its children, as for a pod whose grace is exceeded or whose node is lost."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(WAIT_SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
        for orphan in self._orphans():
            with suppress(ProcessLookupError):
                os.kill(orphan, signal.SIGKILL)
        self._output.close()

    def _orphans(self) -> list[int]:
        """Ranks that a killed torchrun left: they have sessions of their own, and this one's environment."""
        mark = f"PRECISION_REQUEST_FILE={self.request}".encode()
        found = []
        for folder in Path("/proc").iterdir():
            with suppress(OSError):
                if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found
