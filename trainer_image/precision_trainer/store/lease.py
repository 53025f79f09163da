"""One writer per checkpoint directory: rank 0 takes a lease before it loads, and keeps it with a heartbeat.

A process that finds the lease taken waits until it is released, or until the holder gave no heartbeat for LEASE_SECONDS. It
never ends because of that. A holder that lost its lease (it was frozen for longer than that) trains on, and writes nothing
into the directory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path

from ..errors import CheckpointError
from ..telemetry.metrics import Metrics
from ..values.logs import JsonLog
from ..values.threads import begin, briefly
from .lease_file import OwnFile, Record, Sight, claim, newest
from .lease_judge import LEASE_SECONDS, Judge, how_to_find

_BEATS = 6
"""Heartbeats in that time: some may be late, or fail."""
_POLL_SECONDS = 0.2
_TELL_SECONDS = 10.0
"""Between two lines of one that waits."""
_JOIN_SECONDS = 2.0
RELEASE_SECONDS = 10.0
"""How long a process waits for the volume while it gives the lease back; else the next one waits until it has expired."""


class Lease:
    """Rank 0's right to write into a checkpoint directory."""

    def __init__(
        self, directory: str, holder: str, *, log: JsonLog, metrics: Metrics, seconds: float = LEASE_SECONDS
    ) -> None:
        """Of ``directory``, for ``holder``; nothing is taken yet. ``seconds``: see LEASE_SECONDS."""
        self._root, self._log, self._metrics, self._seconds = Path(directory), log, metrics, seconds
        self._holder, self._process = holder, secrets.token_hex(8)
        self._judge = Judge(self._root, holder, seconds)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._heart: Future[None] | None = None
        self._own: OwnFile | None = None
        self._taking_back = threading.Lock()
        self._device: int | None = None
        """Of the volume on which it was held."""
        self._lost: str | None = None
        """What to say of it, once another process has taken it."""
        self._error: str | None = None
        self._waited = 0.0
        self._tell_at = 0.0
        self._unread: OSError | None = None
        self._read_at = time.monotonic()
        self.unchanged: Callable[[], bool] = lambda: True
        """Whether this process left all checkpoints that are there; else a lost lease is not taken back."""
        metrics.set({"genesis_checkpoint_lease_wait_seconds": 0.0, "genesis_checkpoint_lease_held": 0.0})

    @property
    def refused(self) -> str | None:
        """Why the volume does not take the lease; None if it does, or if there was nothing to write yet."""
        return self._error if self._own is None and self._lost is None else None

    # --- by the thread that starts training ---------------------------------------------------------------------------

    def take(self, wait_seconds: float) -> bool:
        """Take the lease; wait at most ``wait_seconds`` now.

        Returns:
            False: another process still holds it, call again. True: go on. Where the volume refuses to store a lease,
            training goes on without one, and writes no checkpoints until it is there (:attr:`refused`).
        """
        started = now = time.monotonic()
        while not self._attempt():
            if now - started >= wait_seconds:
                return False
            self._tell_waiting()
            time.sleep(_POLL_SECONDS)
            before, now = now, time.monotonic()
            self._waited += now - before
            self._metrics.starting()
            self._metrics.set({"genesis_checkpoint_lease_wait_seconds": self._waited})
        self._begin_beating()
        return True

    def _begin_beating(self) -> None:
        heart = self._heart = begin(self._run, "lease")
        if heart.done() and (error := heart.exception()) is not None:
            self._trouble(error)

    def _attempt(self) -> bool:
        """One look, and the lease if it is free; whether the wait is over."""
        try:
            sight = newest(self._root)
            self._unread, self._read_at = None, time.monotonic()
        except OSError as error:
            # Who writes there is not known. It may pass, as when a server is restarted.
            self._unread = error
            if time.monotonic() - self._read_at < self._seconds:
                return False
            self._trouble(error)
            return True
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            return self._claim(sight)
        except OSError as error:
            self._trouble(error)
            return True

    def _claim(self, sight: Sight | None) -> bool:
        reason = self._judge(sight)
        if reason is None:
            return False
        record = Record(self._holder, self._process, self._seconds)
        own = claim(self._root, 1 if sight is None else sight.number + 1, record)
        if own is None:
            return False
        with self._lock:
            self._own, self._lost, self._error, self._device = own, None, None, own.device
        self._metrics.set({"genesis_checkpoint_lease_held": 1.0})
        self._log.event(
            "checkpoint_lease_acquired",
            reason=reason.value,
            holder=self._holder,
            previous_holder=sight.holder if sight is not None else None,
            waited_seconds=round(self._waited, 3),
            path=str(own.path),
        )
        return True

    def _tell_waiting(self) -> None:
        if self._waited < self._tell_at:
            return
        self._tell_at += _TELL_SECONDS
        holder, found = self._judge.seen, f"{self._judge.seen} writes checkpoints to {self._root}"
        if self._unread is not None:
            found = f"the lease in {self._root} cannot be read ({self._unread})"
        self._log.event(
            "checkpoint_lease_waiting",
            holder=holder,
            age_seconds=round(self._judge.age, 3),
            waited_seconds=round(self._waited, 3),
            message=f"{found}: waiting until the lease is released, or without a heartbeat for {self._judge.limit:g} s. "
            f"{how_to_find(holder)}".rstrip(),
        )

    # --- by any thread ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Before every write into the directory: look whether the lease is still this process' own.

        Raises:
            CheckpointError: it is not, or that cannot be known now.
        """
        if self._heart is not None and self._heart.done() and not self._ended.is_set():
            self._begin_beating()  # there was no thread for it
        own = self._own
        if own is not None:
            try:
                if not own.superseded():
                    return
            except OSError as error:
                raise CheckpointError(
                    f"the lease on {self._root} cannot be read ({error}); check that the volume is mounted"
                ) from error
            self._lose(own)
        if self._lost is not None and not self._ended.is_set():
            with contextlib.suppress(OSError, CheckpointError):
                if newest(self._root) is None:  # somebody removed it: the next heartbeat may come too late
                    self._take_back()
        with self._lock:
            own, lost, refusal = self._own, self._lost, self._error
        if own is None:  # nor taken back, here or by a heartbeat meanwhile
            raise CheckpointError(lost or f"no lease on {self._root} ({refusal}); check that the volume is writable")

    def release(self) -> None:
        """Give it back, after the last write. Never raises, nor waits for ever; harmless if it is not held."""
        briefly(self._release, "lease release", RELEASE_SECONDS)

    def _release(self) -> None:
        self._ended.set()
        if self._heart is not None:
            wait([self._heart], _JOIN_SECONDS)
        with self._lock:
            own, self._own = self._own, None
        if own is None:
            return
        try:
            if not own.superseded():
                own.beat(released=True)
                self._log.event("checkpoint_lease_released", holder=self._holder, path=str(own.path))
        except OSError as error:
            self._log.warning(
                "checkpoint_lease_failed",
                f"the lease on {self._root} was not released ({error}): the next process waits {self._seconds:g} s for it",
            )
        own.close()
        self._metrics.set({"genesis_checkpoint_lease_held": 0.0})

    def _lose(self, own: OwnFile) -> None:
        message = self._describe_loss()
        with self._lock:
            if self._own is not own:
                return
            self._own, self._lost = None, message
        own.close()
        self._metrics.set({"genesis_checkpoint_lease_held": 0.0})
        self._log.error("checkpoint_lease_lost", message, holder=self._holder)

    def _describe_loss(self) -> str:
        sight, is_there = None, True
        with contextlib.suppress(OSError):
            sight, is_there = newest(self._root), self._root.exists()
        if sight is None:
            return (
                f"{'the lease file in ' * is_there}{self._root} was removed: this process trains on. It takes a new lease, "
                "unless another volume is mounted there now, or none; then mount it again"
            )
        other = sight.holder
        found = f"{other or 'another process'} has taken the lease on {self._root}"
        return (
            f"{found}: this process writes no checkpoints there, and trains on. It takes the lease back if the other gives "
            f"it up before it has written a checkpoint; else end one of the two. {how_to_find(other)}"
        ).rstrip()

    # --- the heartbeat's thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended.wait(self._seconds / _BEATS):
            try:
                own = self._own
                if own is not None:
                    self._beat(own)
                if self._own is None:
                    self._take_back()
                self._recovered()
            except (OSError, CheckpointError) as error:
                self._trouble(error)

    def _beat(self, own: OwnFile) -> None:
        if own.superseded():
            self._lose(own)
            return
        try:
            own.beat()
        except FileNotFoundError:
            self._lose(own)

    def _take_back(self) -> None:
        """The lease, if it is free and no other process has written; the directory too, where somebody removed it.

        Raises:
            OSError: the volume refuses, or it is not the one on which the lease was held.
        """
        with self._taking_back:
            if self._own is not None:
                return
            sight = newest(self._root)
            if sight is None:
                self._return_to_volume()
            if self.unchanged():
                self._claim(sight)

    def _return_to_volume(self) -> None:
        is_there = self._root.exists()
        device = os.stat(self._root if is_there else self._root.parent).st_dev
        # Below a volume that was unmounted there is another one: what is written there fills the node's disk, and is hidden
        # once the volume is back.
        if self._device not in (None, device):
            raise OSError(
                errno.ENODEV, "the volume on which the checkpoints were is not mounted there", str(self._root)
            )
        if not is_there:
            self._root.mkdir()
            self._log.warning(
                "checkpoint_directory_made",
                f"{self._root} was removed while training ran, with the checkpoints in it: it is made anew, on the same "
                "volume, and the next checkpoint is written there",
            )

    def _trouble(self, error: BaseException) -> None:
        self._metrics.add({"genesis_checkpoint_lease_errors": 1.0})
        known, self._error = self._error, str(error)
        if known is None:
            self._log.error(
                "checkpoint_lease_failed",
                f"the lease in {self._root} cannot be written or read ({error}): training goes on, but after "
                f"{self._seconds:g} s another process may take the directory; check that the volume is mounted, "
                "writable for this user, and not full",
            )

    def _recovered(self) -> None:
        if self._error is not None and self._own is not None:
            self._error = None
            self._log.event("checkpoint_lease_recovered", holder=self._holder)
