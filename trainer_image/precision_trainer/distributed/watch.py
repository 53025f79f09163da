"""Who is missing, once a collective failed: the library only says that somebody is.

Each rank has a thread that waits in the store, at no cost to training, until the process group ends. A rank that lost a
peer asks all whether they live. Those without an answer are gone or silent. One that answers but did not lose a peer itself
has not come to the collective. All living ranks find the same, also those that are still in the collective.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from torch._C._distributed_c10d import PrefixStore, Store

from ..values.threads import begin
from .rendezvous import Place, Roll, name_ranks, wait_until

_ANSWER_SECONDS = 2.0
"""How long a process may take to answer. Far below any grace between SIGTERM and SIGKILL, and below the time that
``launch`` gives the others after a death."""
_PARTING_SECONDS = 1.0
"""How long the store's keeper stays for the others to finish with it."""
_NOTICE_SECONDS = 0.1
"""How soon a connection shows that the keeper died. Using one that is broken would fill the log."""
_CONNECT_SECONDS = 10.0
_FOR_EVER = timedelta(days=3650)
_END = "end"
"""The key that all wait for; holds ``lost``, or the rank that left."""
_LOST = "lost"


@dataclass(frozen=True, slots=True)
class Loss:
    """What became of a process group."""

    world_size: int
    keeper: str = ""
    """Set where nobody could be asked, because this is gone: whose process the store lives in."""
    left: int | None = None
    """The rank that ended by itself, of its own accord or with an error of its own."""
    missing: tuple[int, ...] = ()
    """Ranks whose process does not answer; with a keeper, that one's alone is known."""
    absent: tuple[int, ...] = ()
    """Ranks whose process lives, but that were not in the collective."""

    @property
    def of_training(self) -> bool:
        """A rank ended with an error of its own or hangs, so no pod or node is gone."""
        return self.left is not None or 0 < len(self.absent) < self.world_size

    def __str__(self) -> str:
        if self.keeper:
            return f"{self.keeper} is gone or silent"
        if self.left is not None:
            return f"{name_ranks((self.left,), self.world_size)} has left"
        if self.missing:
            return f"{name_ranks(self.missing, self.world_size)} {'is' if len(self.missing) == 1 else 'are'} gone or silent"
        if self.absent and len(self.absent) < self.world_size:
            return f"all live, but {name_ranks(self.absent, self.world_size)} did not come to the collective"
        return f"all {self.world_size} ranks live: look at the network between them"


class PeerWatch:
    """Answers for this rank as long as its process lives, and finds out who does not."""

    def __init__(self, place: Place, roll: Roll, rank: int, world_size: int) -> None:
        """Begin to answer; until :meth:`close`. RuntimeError: the store takes no further connection."""
        self._place, self._rank, self._world_size = place, rank, world_size
        prefix = f"{roll.name}/watch"
        self._store = PrefixStore(prefix, roll.store)
        self._keeps = rank == 0 and not place.by_agent
        self._loss: Loss | None = None
        self._ended = threading.Event()
        # A connection of its own: the thread waits on it, and others' calls would wait for it.
        waiting = PrefixStore(prefix, place.open(_CONNECT_SECONDS))
        threading.Thread(target=self._answer, args=(waiting,), name="process-group", daemon=True).start()

    def find(self) -> Loss:
        """Who is missing, now that a collective failed; takes about two seconds, never much longer."""
        if not self._ended.wait(_NOTICE_SECONDS):
            begin(partial(self._end, _LOST), "process-group")
            self._ended.wait(_ANSWER_SECONDS + _PARTING_SECONDS)
        self._ended.set()
        return self._loss or self._without_keeper()

    def close(self) -> None:
        """Leave; harmless after a loss."""
        if not self._ended.is_set():
            begin(partial(self._end, str(self._rank)), "process-group")
            self._ended.wait(2 * _PARTING_SECONDS)

    def _without_keeper(self) -> Loss:
        if self._place.by_agent:
            return Loss(self._world_size, keeper=self._place.keeper)
        return Loss(self._world_size, keeper=name_ranks((0,), self._world_size), missing=(0,))

    def _end(self, why: str) -> None:
        # Where the keeper is gone, the other thread has seen it as well, and says so.
        with contextlib.suppress(RuntimeError):
            self._store.set(f"lost/{self._rank}", why)
            self._store.add("lost", 1)
            # Not compare_set: in older stores it does not wake those that wait.
            if self._store.add("ends", 1) == 1:
                self._store.set(_END, why)

    def _answer(self, store: Store) -> None:
        try:
            store.wait([_END], _FOR_EVER)
            why = store.get(_END).decode()
            self._loss = self._look(store) if why == _LOST else Loss(self._world_size, left=int(why))
            self._part(store)
        except RuntimeError:
            self._loss = self._loss or self._without_keeper()
        finally:
            self._ended.set()

    def _look(self, store: Store) -> Loss:
        """Answer, and see who else does."""
        store.set(f"here/{self._rank}", "")
        store.add("here", 1)
        size, ranks = self._world_size, range(self._world_size)
        wait_until(lambda: min(store.add("here", 0), store.add("lost", 0)) >= size, _ANSWER_SECONDS, size)
        missing = tuple(rank for rank in ranks if not store.check([f"here/{rank}"]))
        absent = () if missing else tuple(rank for rank in ranks if not store.check([f"lost/{rank}"]))
        return Loss(self._world_size, missing=missing, absent=absent)

    def _part(self, store: Store) -> None:
        """Be done with the store; its keeper, with whom it goes, waits for the others for a moment."""
        store.add("done", 1)
        if self._keeps:
            others = self._world_size - len(self._loss.missing if self._loss else ())
            wait_until(lambda: store.add("done", 0) >= others, _PARTING_SECONDS, self._world_size)
