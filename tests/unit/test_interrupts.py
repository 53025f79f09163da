"""SIGTERM stops what a program of the laboratory started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab.process import call
from lab.waiting import wait_for

CALL = """
import sys
from lab.interrupts import take_sigterm_as_interrupt
from lab.process import call
take_sigterm_as_interrupt()
call([sys.executable, "-c", CHILD, sys.argv[1]])
"""
CHILD = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
try:
    (folder / "ready").touch()
    time.sleep(300)
finally:
    (folder / "cleaned").touch()
"""
LOOP = """
import asyncio, pathlib, sys
from lab.interrupts import take_sigterm_as_interrupt
folder = pathlib.Path(sys.argv[1])
async def main():
    try:
        (folder / "ready").touch()
        await asyncio.sleep(300)
    finally:
        await asyncio.sleep(0)
        (folder / "cleaned").touch()
take_sigterm_as_interrupt()
asyncio.run(main())
"""


@pytest.mark.parametrize("script", [f"CHILD = {CHILD!r}{CALL}", LOOP], ids=["a program", "an event loop"])
def test_what_was_started_cleans_up_when_sigterm_comes(tmp_path: Path, script: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    with subprocess.Popen([sys.executable, "-c", script, tmp_path], env=environment, stderr=subprocess.DEVNULL) as run:
        try:
            wait_for((tmp_path / "ready").exists, what="it to begin", seconds=30)
            run.send_signal(signal.SIGTERM)
            run.wait(timeout=30)
        finally:
            run.kill()
    assert (tmp_path / "cleaned").exists()


def test_a_program_does_not_outlive_a_fault_of_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    wait = subprocess.Popen.wait

    def fault(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if not started:
            started.append(process)
            raise LookupError
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", fault)
    with pytest.raises(LookupError):
        call([sys.executable, "-c", "import time; time.sleep(30)"])
    assert started[0].poll() == -signal.SIGKILL
