"""Keeps the fleet moving: breaks trainers, mends them, and retries, so that writes are in flight when things die."""

from __future__ import annotations

import random
import subprocess
import threading
from collections.abc import Callable, Sequence
from enum import StrEnum

from lab.cluster.kubectl import Json
from lab.errors import LabError
from lab.trainers import PREFIX, Fleet
from precision_operator.api.commands import Prerequisite
from precision_operator.api.state import Phase

_TICK_SECONDS = 1.0
_OVERFLOW = "overflow=0.8"
_PROMOTED_SECONDS = (5.0, 25.0)
"""How long a promoted fleet is left alone."""


class Move(StrEnum):
    """What the person does next."""

    WAIT = "wait"
    BREAK = "break"
    MEND = "mend"
    RETRY = "retry"


def next_move(phase: str, *, broken: bool, patient: bool) -> Move:
    """``broken``: trainers overflow on purpose. ``patient``: a promoted fleet is to be left alone for now."""
    if phase == Phase.HELD:
        return Move.MEND if broken else Move.RETRY
    if phase == Phase.HEALTHY and not broken and not patient:
        return Move.BREAK
    return Move.WAIT


class Person:
    """Works in a thread while `with` lasts. What an API server that is away refuses is tried again."""

    def __init__(self, fleet: Fleet, victims: Sequence[str], *, seed: int, say: Callable[[str], None]) -> None:
        self._fleet = fleet
        self._victims = victims
        self._say = say
        self._dice = random.Random(seed)
        self._wanted = self._thrown = ""
        self._healthy_seconds = 0.0
        self._leave_seconds = self._dice.uniform(*_PROMOTED_SECONDS)
        self._phase = ""
        self._stop = threading.Event()
        self._tired = threading.Event()
        self._thread = threading.Thread(target=self._run, name="person", daemon=True)
        self.retried: set[int] = set()
        """Transitions that were answered with a retry."""

    def __enter__(self) -> Person:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=150)  # kubectl may wait that long

    def rest(self) -> None:
        """Break nothing more; what is broken is mended and retried once it is held."""
        self._tired.set()

    @property
    def content_seconds(self) -> float:
        """For how long nothing was left to do: nothing is broken, and the fleet is promoted."""
        return 0.0 if self._wanted or self._thrown else self._healthy_seconds

    def _run(self) -> None:
        while not self._stop.wait(_TICK_SECONDS):
            try:
                self._tick()
            except (LabError, subprocess.TimeoutExpired, ValueError, KeyError):
                continue  # the API server is away, or a pod is

    def _tick(self) -> None:
        status = self._fleet.status()
        phase = str(status.get("phase", ""))
        if phase != self._phase:
            self._say(f"policy: {phase} {status.get('progress', '')}")
        self._phase = phase
        self._healthy_seconds = self._healthy_seconds + _TICK_SECONDS if phase == Phase.HEALTHY else 0.0
        if self._thrown != self._wanted:
            self._throw()
            return
        patient = self._tired.is_set() or self._healthy_seconds < self._leave_seconds
        match next_move(phase, broken=bool(self._wanted), patient=patient):
            case Move.BREAK:
                self._wanted = _OVERFLOW
            case Move.MEND:
                self._wanted = ""
                self._leave_seconds = self._dice.uniform(*_PROMOTED_SECONDS)
            case Move.RETRY:
                self._retry(status)
            case Move.WAIT:
                pass

    def _throw(self) -> None:
        """The switches of all victims; none or all count as thrown, as the API server may go in between."""
        self._say(f"{', '.join(self._victims)}: {self._wanted or 'mended'}")
        for name in self._victims:
            self._fleet.fault(name, self._wanted)
        self._thrown = self._wanted

    def _retry(self, status: Json) -> None:
        number = int(status["transitionId"])
        if number not in self.retried:  # it stays written until an operator reads it
            acknowledged = [f"{PREFIX}/ack-{item}={number}: soak" for item in Prerequisite]
            self._fleet.annotate(*acknowledged, f"{PREFIX}/retry={number}: mended")
            self.retried.add(number)
