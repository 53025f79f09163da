"""Being asked to stop, also as PID 1 and also while a library call blocks.

Python's own handler writes a signal's number into a pipe, and a thread reads it. So a stop is noticed at once even if the
main thread sits in a native call (joining a process group, importing torch for 18 s), and as PID 1, where the kernel drops
signals that have no handler. Nothing stays blocked: what a person's code starts would inherit that, and could not be ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from ..errors import EXIT_STOPPED
from ..values.logs import JsonLog
from ..values.threads import briefly

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
        self.at_stop: Callable[[], None] | None = None
        """Called where a signal came, in another thread, and quickly; before :attr:`at_early_exit`."""
        self.name: str | None = None
        """The signal's name, once one came."""

    @classmethod
    def install(cls, log: JsonLog) -> StopFlag:
        """Take the signals from here on, also those that whoever started us has blocked. Main thread only."""
        flag = cls(log)
        incoming, outgoing = os.pipe()
        os.set_blocking(outgoing, False)
        threading.Thread(target=flag._wait_for_signals, args=(incoming,), name="signals", daemon=True).start()

        def pass_on(number: int, frame: FrameType | None) -> None:
            # Once more: a person's code (asyncio, say) may have put a descriptor of its own in the place of ours.
            with contextlib.suppress(OSError):
                os.write(outgoing, bytes([number]))

        signal.set_wakeup_fd(outgoing, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, pass_on)
            # A person's native code need not know that a call can be interrupted.
            signal.siginterrupt(number, False)
        _leave_forks_alone(pass_on, outgoing)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
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
                for leave in (self.at_stop, self.at_early_exit):
                    if leave is not None:
                        # A volume that does not answer must not keep the process.
                        briefly(leave, "early exit", _EARLY_EXIT_SECONDS)
                os._exit(EXIT_STOPPED)
        if self.at_stop is not None:
            self.at_stop()

    def training_begins(self) -> None:
        """From here on a stop goes through a step boundary and a checkpoint."""
        with self._lock:
            self._training = True

    def wait(self, seconds: float) -> bool:
        """Sleep, but no longer than until a stop is asked for; True if it was."""
        return self._event.wait(seconds)

    def _wait_for_signals(self, incoming: int) -> None:
        while True:
            # Also the numbers of other signals that a person's code handles.
            number = os.read(incoming, 1)[0]
            if number in _SIGNALS:
                self.set(signal.Signals(number).name)


def _leave_forks_alone(pass_on: Callable[[int, FrameType | None], None], outgoing: int) -> None:
    """A fork is nothing of ours: a signal to it must not stop training, and SIGTERM must end it.

    A signal to this whole process group is ours alone, for training goes on to a boundary, and needs its workers. So a
    fork does not notice SIGINT, which terminals send; and where we lead a session, as torchrun has it, it gets a process
    group of its own.
    """
    masks = threading.local()

    def before() -> None:
        # Until its handlers are not ours any more.
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def in_parent() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def in_child() -> None:
        replaced = signal.set_wakeup_fd(-1)
        if replaced not in (-1, outgoing):
            signal.set_wakeup_fd(replaced)
        if signal.getsignal(signal.SIGTERM) is pass_on:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is pass_on:
            signal.signal(signal.SIGINT, lambda *_: None)
        if os.getsid(0) == os.getppid():
            os.setpgid(0, 0)
        in_parent()

    os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)
