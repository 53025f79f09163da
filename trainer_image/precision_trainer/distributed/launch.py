"""Starts the ranks of a process group inside one container, with nothing but the standard library.

torchrun does the same and works too (``python -m precision_trainer.torchrun`` for the exit codes of a stop). This one starts
faster: no torch in the parent.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ..errors import EXIT_DIVERGED, EXIT_FAILED, EXIT_OK, EXIT_STOPPED, STOPPED, ConfigError, ranks_failed
from ..names import DEFAULT_PORT
from ..values.logs import JsonLog

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_CANDIDATES = 8192
"""Ports below the ephemeral ones to choose from: enough that two process groups seldom choose alike."""
_POLL_SECONDS = 0.05
_PEER_GRACE_SECONDS = 5.0
"""After one rank died, how long the others may take to notice and end by themselves."""


def free_port(ephemeral: Path = _EPHEMERAL) -> int:
    """A TCP port that was free a moment ago and that no other program is given by chance before rank 0 takes it.

    So it lies outside the kernel's ``ephemeral`` range, from which connect() and a bind to port 0 (our own exporter's, say)
    are served.

    Raises:
        ConfigError: none of the ports outside the range that were tried is free.
    """
    try:
        first, last = map(int, ephemeral.read_text(encoding="ascii").split())
    except OSError:  # not Linux
        first, last = 32768, 60999
    outside = range(max(1024, first - _CANDIDATES), first) or range(last + 1, 65536) or range(first, last + 1)
    # Not Python's own generator: scripts seed it, and two that are seeded alike would be given the same port.
    for port in random.SystemRandom().sample(outside, len(outside)):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise ConfigError(
        f"expected a free TCP port from {outside.start} to {outside.stop - 1} for the ranks to meet at, found all of them "
        "taken; name one with --master-port"
    )


def launch(command: Sequence[str], ranks: int, port: int = int(DEFAULT_PORT), grace_seconds: float = 25.0) -> int:
    """Run ``python -m precision_trainer <command>`` as ``ranks`` processes until all ended.

    Args:
        command: arguments of the trainer, e.g. ``["train", "transformer"]``.
        ranks: world size, all on this machine.
        port: for the process group's rendezvous on 127.0.0.1; 0: any free one.
        grace_seconds: from SIGTERM to SIGKILL for ranks that do not end.

    Returns:
        0 if every rank ended with 0; 17 if one diverged; 143 if some were stopped and none failed; else the first failing
        rank's code (1 if it was killed).
    """
    stop = threading.Event()
    # Whoever started us may have blocked them, and that is inherited: nobody could stop the process group.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    log = JsonLog(-1, ranks)
    base = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port or free_port()),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "precision_trainer", *command],
            env={"OMP_NUM_THREADS": "1", **os.environ, **base, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    deadline = float("inf")
    asked = False
    failed: list[int] = []
    while True:
        # Every one is polled every time: a short-circuit would leave a dead rank unseen.
        codes = [process.poll() for process in processes]
        if not failed:
            failed = _failed(codes, asked=asked)
            if failed:
                died = failed[0]
                log.error("rank_died", f"rank {died} ended with {codes[died]}; ending the others", failed=died)
                deadline = min(deadline, time.monotonic() + _PEER_GRACE_SECONDS)
        if all(code is not None for code in codes):
            break
        if stop.is_set() and not asked:
            asked = True
            deadline = min(deadline, time.monotonic() + grace_seconds)
            for process in processes:
                process.send_signal(signal.SIGTERM)
        if time.monotonic() > deadline:
            for process in processes:
                process.kill()
        if asked:
            time.sleep(_POLL_SECONDS)
        else:
            stop.wait(_POLL_SECONDS)
    if failed:
        log.error("failed", ranks_failed(failed, codes), kind="RanksFailed")
    return _exit_code(codes, failed)


def _exit_code(codes: Sequence[int | None], failed: Sequence[int]) -> int:
    """What all ranks together ended with; ``failed``: ranks that ended with an error, the cause first."""
    if EXIT_DIVERGED in codes:
        return EXIT_DIVERGED
    if not failed:
        return EXIT_STOPPED if any(codes) else EXIT_OK
    code = codes[failed[0]]
    return code if code is not None and code >= 0 else EXIT_FAILED


def _failed(codes: Sequence[int | None], *, asked: bool) -> list[int]:
    """Ranks that ended with an error; the killed ones first, for they are the cause and the others the consequence.

    ``asked``: whether we have passed a stop on. Then it may have ended a rank that was too young to take it.
    """
    fine = STOPPED if asked else (EXIT_OK, EXIT_STOPPED)
    ended = (rank for rank, code in enumerate(codes) if code is not None and code not in fine)
    return sorted(ended, key=lambda rank: (codes[rank] or 0) > 0)
