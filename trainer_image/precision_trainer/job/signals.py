"""Being asked to stop, also as PID 1 and also while a library call blocks.

The stop signals are blocked in every thread and taken by one thread with sigwait. So they are noticed at once even if
the main thread sits in a native call (joining a process group, importing torch for 18 s). As PID 1, where the kernel drops
signals that have no handler, they are not lost: a blocked signal is kept.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from ..errors import EXIT_STOPPED
from ..values.logs import JsonLog

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_EARLY_EXIT_SECONDS = 2.0


class StopFlag:
    """Set by SIGTERM or SIGINT. Until :meth:`training_begins`, such a signal ends the process at once: nothing is
    lost yet."""

    def __init__(self, log: JsonLog) -> None:
        self._log = log
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._training = False
        self.at_early_exit: Callable[[], None] | None = None
        """Called, for a moment at most, before a signal ends the process at once."""
        self.name: str | None = None
        """The signal's name, once one came."""

    @classmethod
    def install(cls, log: JsonLog) -> StopFlag:
        """Block the signals and start the thread. Main thread only, before other threads: they inherit the block."""
        flag = cls(log)
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        threading.Thread(target=flag._wait_for_signals, name="signals", daemon=True).start()
        return flag

    @property
    def asked(self) -> bool:
        """Whether a stop was asked for."""
        return self._event.is_set()

    def set(self, name: str) -> None:
        """What a signal does."""
        with self._lock:
            self.name = name
            self._event.set()
            if not self._training:
                self._log.event("stopping", step=None, signal=name, message="before training began; nothing to save")
                if self.at_early_exit is not None:
                    # A thread of its own: a volume that does not answer must not keep the process.
                    leaving = threading.Thread(target=self.at_early_exit, name="early exit", daemon=True)
                    leaving.start()
                    leaving.join(_EARLY_EXIT_SECONDS)
                os._exit(EXIT_STOPPED)

    def training_begins(self) -> None:
        """From here on a stop goes through a step boundary and a checkpoint."""
        with self._lock:
            self._training = True

    def wait(self, seconds: float) -> bool:
        """Sleep, but no longer than until a stop is asked for; True if it was."""
        return self._event.wait(seconds)

    def _wait_for_signals(self) -> None:
        while True:
            self.set(signal.Signals(signal.sigwait(_SIGNALS)).name)
