"""Processes forked from a server that has imported torch, which takes most of a trainer's start."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path

PRELOADED = ("torch", "torch._dynamo", "torch.nn.parallel.distributed")
"""Torch, what the first step of any training imports of it, and what DDP does."""


def context() -> ForkServerContext:
    """Of the server that this process has, or starts with its first fork."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(list(PRELOADED))
    return found


class Forked:
    """``python -m module arguments``, forked: as much of ``subprocess.Popen`` as is asked of it."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], output: Path) -> None:
        """``command``: from ``-m`` on. It writes to the end of ``output``."""
        option, *command = command
        assert option == "-m", f"{option}: expected a module"
        mine, its = context().Pipe(duplex=False)
        self._process = context().Process(target=_run, args=(command, dict(env), output, its))
        self._process.start()
        its.close()
        # Until it leads a process group: before, whoever ends it with all its children would end nobody.
        with mine, suppress(EOFError):
            mine.recv()

    @property
    def pid(self) -> int:
        """Its own, and that of its process group."""
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """Its exit code, once it has ended; TimeoutExpired if it does not."""
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """To it alone; nothing where it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _run(command: list[str], env: dict[str, str], output: Path, begun: Connection) -> None:
    os.setsid()
    begun.close()
    # As a careless parent starts it: see Process.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = env.get("PYTHONPATH", "").split(os.pathsep)
    sys.argv = list(command)
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)
