"""The rendezvous check: all ranks are here before the process group forms, or each of them says which are missing.

The ranks meet at a store. Rank 0 makes up a name for this process group and writes it there. Every rank writes an answer
to that name that only this process could give. Rank 0 then writes who answered, for all to read. So nothing that an earlier
attempt left in the store counts: torchrun's agent keeps one over its attempts (and its count of restarts differs between
nodes, so that it cannot tell them apart), and rank 0 may live longer than a rank that is started again.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from typing import TypeVar

from torch._C._distributed_c10d import Store

from .. import compat
from ..errors import ConfigError, MissingRankError, NoThreadError
from ..values.threads import begin

Result = TypeVar("Result")

_CALL = "precision/call"
_SHOWN = 8
"""Ranks listed in a message; of more it says how many."""
_READ_SECONDS = 2.0
"""How long rank 0, in whose process the store lives, stays for the others to read that the process group is not whole."""
_LATER_SECONDS = 5.0
"""How much later than rank 0 another one gives up: what rank 0 says is the same for all."""


def poll_seconds(world_size: int) -> float:
    """Between two looks into the store: it answers some 2,000 a second, from all ranks together, without trouble."""
    return max(0.02, world_size / 2000)


def name_ranks(ranks: Sequence[int], world_size: int) -> str:
    """As a subject: "rank 2 of 4", "ranks 2, 5 of 8"; the first few, of many."""
    return f"rank{'s' * (len(ranks) > 1)} {_listed(ranks)} of {world_size}"


def _listed(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
    return f"{', '.join(map(str, ranks[:_SHOWN]))}{more}"


def wait_until(condition: Callable[[], bool], seconds: float, world_size: int) -> None:
    """Until it holds, as far as the store shows it, or that time is over."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(poll_seconds(world_size))


def within(seconds: float, call: Callable[[], Result]) -> Result:
    """What ``call`` returns or raises; TimeoutError after that time. A store whose host is silent may never answer."""
    job = begin(call, "store")
    if not wait([job], seconds).done:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return job.result()


@dataclass(frozen=True, slots=True)
class Place:
    """Where the ranks of a process group meet."""

    host: str
    port: int
    by_agent: bool
    """The store lives in torchrun's agent, and all ranks are its clients; else it lives in rank 0."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def from_env(cls) -> Place:
        """As torchrun and ``precision-trainer launch`` describe it. Raises ConfigError: MASTER_PORT is not a port."""
        port = os.environ["MASTER_PORT"].strip()
        if not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise ConfigError(f"MASTER_PORT={port!r}: expected a port, a number in [1, 65535]")
        by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
        return cls(os.environ["MASTER_ADDR"].strip(), int(port), by_agent)

    @property
    def keeper(self) -> str:
        """Whose process the store lives in."""
        return f"torchrun's agent at {self}" if self.by_agent else "rank 0"

    def open(self, timeout_seconds: float, *, serve: bool = False) -> Store:
        """A connection to the store, for one thread: calls wait for one another. RuntimeError: there is none."""
        return compat.open_store(self.host, self.port, timeout_seconds, serve=serve)


@dataclass(frozen=True, slots=True)
class Roll:
    """A process group that is whole."""

    store: Store
    """Of the place."""
    name: str
    """Of this process group: a prefix for keys that no other attempt has read or written."""


def call_roll(place: Place, rank: int, world_size: int, timeout_seconds: float) -> Roll:
    """Wait until all ranks are here.

    Args:
        place: where they meet.
        rank: of this process.
        world_size: how many they are.
        timeout_seconds: how long to wait for the place, and from then on for the ranks.

    Raises:
        ConfigError: the place is not there, or ranks are missing (it names them), or this process is not one of them.
    """
    serves = rank == 0 and not place.by_agent
    if not serves:
        _reach(place, rank, world_size, timeout_seconds)
    try:
        store = place.open(timeout_seconds, serve=serves)
    except RuntimeError as error:
        raise ConfigError(
            f"rank {rank} of {world_size} could not {'listen' if serves else 'join'} at {place} ({_first_line(error)}): "
            "expected rank 0's address, and a port that nobody else has there; correct MASTER_ADDR, MASTER_PORT"
        ) from error
    person = _Person(store, rank, world_size, timeout_seconds, place)
    try:
        name = within(2 * timeout_seconds + 2 * _LATER_SECONDS, person.call if rank == 0 else person.answer)
    except NoThreadError as error:
        raise ConfigError(f"rank {rank} of {world_size} could not wait for the others: {error}") from error
    except (RuntimeError, TimeoutError) as error:
        raise MissingRankError(
            f"rank {rank} of {world_size} lost {place.keeper} while the ranks gathered ({_first_line(error)}): it is gone "
            "or silent; look at its log, then start all ranks again"
        ) from error
    return Roll(store, name)


def _reach(place: Place, rank: int, world_size: int, timeout_seconds: float) -> None:
    """Wait for the store with a socket of our own: torch's takes up to twice the time and fills the log meanwhile."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        left = max(0.1, deadline - time.monotonic())
        try:
            socket.create_connection((place.host, place.port), timeout=left).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise MissingRankError(
                    f"rank {rank} of {world_size} cannot connect to {place} within {timeout_seconds:g} s ({error}): "
                    f"{place.keeper} is not there, or MASTER_ADDR and MASTER_PORT are wrong; look at its log"
                ) from error
        time.sleep(poll_seconds(world_size))


class _Person:
    """One rank at the rendezvous check."""

    def __init__(self, store: Store, rank: int, world_size: int, timeout_seconds: float, place: Place) -> None:
        self._store, self._rank, self._world_size = store, rank, world_size
        self._timeout, self._place = timeout_seconds, place
        self._self = f"process {os.getpid()} on {socket.gethostname()}, {secrets.token_hex(4)}, WORLD_SIZE {world_size}"

    def call(self) -> str:
        """Rank 0: the process group's name, once all answered to it."""
        name = f"precision/{secrets.token_hex(8)}"
        self._store.set(f"{name}/joined/0", self._self)
        self._store.set(_CALL, name)
        joined = [f"{name}/joined/{rank}" for rank in range(self._world_size)]
        wait_until(lambda: self._store.check(joined), self._timeout, self._world_size)
        here = [rank for rank, key in enumerate(joined) if self._store.check([key])]
        people = {str(rank): self._store.get(joined[rank]).decode() for rank in here}
        self._store.set(f"{name}/roll", json.dumps(people))
        fault = self._fault(people)
        if fault is not None:
            if not self._place.by_agent:
                read = [f"{name}/read/{rank}" for rank in here if rank]
                wait_until(lambda: self._store.check(read), _READ_SECONDS, self._world_size)
            raise fault
        return name

    def answer(self) -> str:
        """Every other rank: the same."""
        name, roll = "", ""
        deadline = time.monotonic() + self._timeout
        while time.monotonic() < deadline:
            latest = self._store.get(_CALL).decode() if self._store.check([_CALL]) else ""
            if latest != name:
                name, roll = latest, ""
                self._store.set(f"{name}/joined/{self._rank}", self._self)
                deadline = time.monotonic() + self._timeout + _LATER_SECONDS
            if name and not roll and self._store.check([f"{name}/roll"]):
                roll = self._store.get(f"{name}/roll").decode()
                people: dict[str, str] = json.loads(roll)
                if people.get(str(self._rank)) == self._self:
                    self._store.set(f"{name}/read/{self._rank}", "")
                    fault = self._fault(people)
                    if fault is not None:
                        raise fault
                    return name
            time.sleep(poll_seconds(self._world_size))
        if roll:
            raise self._other_size(json.loads(roll)) or self._not_ours(json.loads(roll))
        here = [rank for rank in range(self._world_size) if name and self._store.check([f"{name}/joined/{rank}"])]
        raise self._incomplete(here or [self._rank])

    def _incomplete(self, here: Sequence[int]) -> ConfigError:
        missing = [rank for rank in range(self._world_size) if rank not in here]
        return MissingRankError(
            f"{name_ranks(missing, self._world_size)} did not join at {self._place} within {self._timeout:g} s; here: "
            f"{_listed(here)}; look whether the missing ones were started, and at their logs"
        )

    def _fault(self, people: dict[str, str]) -> ConfigError | None:
        """What is wrong with the process group that the roll shows."""
        here = [int(rank) for rank in people]
        return self._other_size(people) or (self._incomplete(here) if len(here) < self._world_size else None)

    def _other_size(self, people: dict[str, str]) -> ConfigError | None:
        sizes = {rank: person.rpartition(" ")[2] for rank, person in people.items()}
        sizes[str(self._rank)] = str(self._world_size)
        other = next((rank for rank, size in sizes.items() if size != sizes["0"]), None)
        if other is None:
            return None
        return ConfigError(
            f"ranks disagree on WORLD_SIZE: rank 0 has {sizes['0']}, rank {other} has {sizes[other]}; start all ranks with "
            "the same number"
        )

    def _not_ours(self, people: dict[str, str]) -> ConfigError:
        other = people.get(str(self._rank), "none")
        return ConfigError(
            f"rank {self._rank} of {self._world_size} ({self._self}) is not of the process group at {self._place}: its "
            f"rank {self._rank} is {other}; a rank cannot be started again alone, nor twice: end all ranks, then start all"
        )


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
