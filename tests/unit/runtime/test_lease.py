"""The elector against a Lease kept in memory: never two leaders, steps down in time, survives the API's errors."""

import asyncio
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from precision_operator.errors import Conflict, HistoryRewound, NotFound, OperatorError, Unavailable
from precision_operator.kube.port import UNCONDITIONAL, Deletion, JsonObject, JsonValue, Operation, Resource
from precision_operator.runtime.lease import LeaseElector, micro_time
from precision_operator.settings import LeaseSettings
from tests.support.manual_clock import ManualClock, settle

SETTINGS = LeaseSettings()


@dataclass
class OneLease:
    """The server's side: one object with optimistic locking, and a way to break."""

    body: JsonObject | None = None
    version: int = 0
    fail: OperatorError | None = None
    hang: bool = False
    calls: list[str] = field(default_factory=list)

    async def _enter(self, verb: str) -> None:
        self.calls.append(verb)
        if self.hang:
            await asyncio.Event().wait()
        if self.fail is not None:
            raise self.fail

    def _store(self, body: JsonObject) -> JsonObject:
        self.version += 1
        stored = copy.deepcopy(body)
        metadata = stored["metadata"]
        assert isinstance(metadata, dict)
        metadata["resourceVersion"] = str(self.version)
        self.body = stored
        return copy.deepcopy(stored)

    @property
    def spec(self) -> dict[str, JsonValue]:
        assert self.body is not None
        spec = self.body["spec"]
        assert isinstance(spec, dict)
        return spec

    async def get(self, resource: Resource, namespace: str, name: str) -> JsonObject:
        await self._enter("get")
        if self.body is None:
            raise NotFound("no lease")
        return copy.deepcopy(self.body)

    async def create(self, resource: Resource, namespace: str, body: JsonObject) -> JsonObject:
        await self._enter("create")
        if self.body is not None:
            raise Conflict("exists")
        return self._store(body)

    async def replace(self, resource: Resource, namespace: str, name: str, body: JsonObject) -> JsonObject:
        await self._enter("replace")
        metadata = body["metadata"]
        assert isinstance(metadata, dict)
        if metadata["resourceVersion"] != str(self.version):
            raise Conflict("changed")
        return self._store(body)

    async def list(
        self, resource: Resource, namespace: str, *, label_selector: str = "", most_bytes: int | None = None
    ) -> Sequence[JsonObject]:
        raise NotImplementedError

    async def list_metadata(
        self, resource: Resource, namespace: str, *, label_selector: str = ""
    ) -> Sequence[JsonObject]:
        raise NotImplementedError

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, JsonValue], *, subresource: str = ""
    ) -> JsonObject:
        raise NotImplementedError

    async def json_patch(self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]) -> None:
        raise NotImplementedError

    async def delete(self, resource: Resource, namespace: str, name: str, deletion: Deletion = UNCONDITIONAL) -> None:
        raise NotImplementedError

    async def evict(self, namespace: str, pod: str, deletion: Deletion = UNCONDITIONAL) -> None:
        raise NotImplementedError

    async def dry_run(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, JsonValue], *, server: str = ""
    ) -> JsonObject:
        raise NotImplementedError

    async def log(self, namespace: str, pod: str, container: str, *, since: str, previous: bool = False) -> str:
        raise NotImplementedError


class Candidate:
    """An elector at work, with what it told."""

    def __init__(self, lease: OneLease, clock: ManualClock, name: str) -> None:
        self.told: list[str] = []
        self.elector = LeaseElector(
            lease,
            SETTINGS,
            "ns",
            name,
            clock,
            on_started_leading=lambda epoch: self.told.append(f"started {epoch}"),
            on_stopped_leading=lambda: self.told.append("stopped"),
            jitter=lambda: 0.0,
        )
        self.stop = asyncio.Event()
        self.task = asyncio.ensure_future(self.elector.run(self.stop))

    async def kill(self) -> None:
        """As SIGKILL: nothing is released."""
        self.elector._body = None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_the_first_creates_the_lease_and_leads() -> None:
    lease, clock = OneLease(), ManualClock()
    one = Candidate(lease, clock, "pod-1")
    await settle()
    assert one.elector.is_leader
    assert one.elector.leading.is_set()
    assert one.told == ["started 1"]
    assert str(lease.spec["holderIdentity"]).startswith("pod-1_")
    assert lease.spec["renewTime"] == micro_time(clock.time())
    await clock.advance(60)
    assert one.told == ["started 1"]
    assert lease.spec["leaseTransitions"] == 1
    assert lease.calls.count("get") == 1, "a leader renews without reading"
    await one.kill()


async def test_shutdown_releases_and_the_other_leads_at_once() -> None:
    lease, clock = OneLease(), ManualClock()
    one = Candidate(lease, clock, "pod-1")
    await settle()
    two = Candidate(lease, clock, "pod-2")
    await clock.advance(3)
    assert not two.elector.is_leader
    one.stop.set()
    await one.task
    assert one.told == ["started 1", "stopped"]
    assert lease.spec["holderIdentity"] == ""
    await clock.advance(1)
    assert two.told == ["started 2"]
    assert two.elector.epoch == 2
    await two.kill()


async def test_a_dead_leader_is_followed_after_the_lease_but_not_before() -> None:
    lease, clock = OneLease(), ManualClock()
    one = Candidate(lease, clock, "pod-1")
    await settle()
    two = Candidate(lease, clock, "pod-2")
    await clock.advance(10)
    await one.kill()
    await clock.advance(4.9)
    assert not two.elector.is_leader
    await clock.advance(2.2)
    assert (two.elector.is_leader, two.elector.epoch) == (True, 2)
    await two.kill()


@pytest.mark.parametrize("outage", ["error", "hang"])
async def test_a_leader_that_cannot_renew_steps_down_in_time_and_comes_back(outage: str) -> None:
    lease, clock = OneLease(), ManualClock()
    one = Candidate(lease, clock, "pod-1")
    await clock.advance(10)
    lease.fail, lease.hang = (Unavailable("away"), False) if outage == "error" else (None, True)
    renewed = clock.now
    while one.elector.is_leader:
        await clock.advance(0.1)
    assert clock.now - renewed <= SETTINGS.renew_seconds + 0.1
    assert one.told == ["started 1", "stopped"], "told in the same moment"
    lease.fail, lease.hang = None, False
    await clock.advance(4)
    assert (one.elector.is_leader, one.elector.epoch) == (True, 1), "nobody led meanwhile"
    await one.kill()


async def test_who_was_frozen_does_not_lead_when_it_thaws() -> None:
    lease, clock = OneLease(), ManualClock()
    one = Candidate(lease, clock, "pod-1")
    await settle()
    two_clock = ManualClock()
    two = Candidate(lease, two_clock, "pod-2")
    await two_clock.advance(7)  # only the second one's time passed: the first is frozen
    assert two.elector.is_leader
    clock.now += 7
    assert not one.elector.is_leader, "before any of its tasks has run"
    await clock.advance(2)
    assert one.told == ["started 1", "stopped"]
    assert lease.spec["holderIdentity"] == two.elector.identity
    assert two.elector.is_leader
    await one.kill()
    await two.kill()


async def test_a_foreign_write_is_a_conflict_and_the_leader_yields() -> None:
    lease, clock = OneLease(), ManualClock()
    one = Candidate(lease, clock, "pod-1")
    await settle()
    lease.spec.update({"holderIdentity": "somebody", "leaseTransitions": 7, "leaseDurationSeconds": 2})
    lease.version += 1
    metadata = lease.body["metadata"] if lease.body else None
    assert isinstance(metadata, dict)
    metadata["resourceVersion"] = str(lease.version)
    await clock.advance(2)
    assert one.told == ["started 1", "stopped"]
    await clock.advance(7)
    assert one.told[2:] == ["started 8"], "and takes it again when it expires"
    assert (one.elector.leads(1), one.elector.leads(8)) == (False, True), "what it decided before is not written"
    await one.kill()


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "standby"])
async def test_a_lease_older_than_it_was_ends_the_process_because_watches_would_be_silent(leads: bool) -> None:
    lease, clock = OneLease(version=600), ManualClock()
    one = Candidate(lease, clock, "pod-1")
    await settle()
    two = Candidate(lease, clock, "pod-2")
    await settle()
    lease.version = 500
    lease._store(lease.body or {})
    await clock.advance(4)
    ended = one if leads else two
    assert isinstance(ended.task.exception(), HistoryRewound)
    await one.kill()
    await two.kill()


async def test_a_lease_without_a_revision_ends_nothing() -> None:
    lease, clock = OneLease(version=600), ManualClock()
    one, two = Candidate(lease, clock, "pod-1"), Candidate(lease, clock, "pod-2")
    await settle()
    metadata = lease.body["metadata"] if lease.body else None
    assert isinstance(metadata, dict)
    metadata["resourceVersion"] = ""
    await clock.advance(2)
    assert not two.task.done()
    await one.kill()
    await two.kill()


async def test_an_odd_record_is_read_tolerantly() -> None:
    lease, clock = OneLease(), ManualClock()
    lease._store(
        {"metadata": {"name": "precision-operator"}, "spec": {"leaseTransitions": "x", "leaseDurationSeconds": None}}
    )
    one = Candidate(lease, clock, "pod-1")
    await settle()
    assert one.elector.is_leader
    await one.kill()


def test_micro_time_is_what_kubernetes_reads() -> None:
    assert micro_time(0.25) == "1970-01-01T00:00:00.250000Z"
