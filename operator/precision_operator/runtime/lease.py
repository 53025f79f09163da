"""Leader election over one Lease.

Our own, because the elector of ``kubernetes.aio`` renews on after the led task died, sets no time-out on its requests,
trusts the wall clock and does not release. The Lease keeps two operators from working at once *most of the time*; the
safety comes from the compare-and-swap of the status and the ``test`` in every patch.

- A record expires by our own monotonic clock, counted from when we *saw* it change: skewed clocks do not matter.
- ``is_leader`` is computed from the time of the last renewal, so that a process that was stopped (SIGSTOP, a frozen
  node) finds itself not leading at its first instruction after, before any loop of ours has run.
- Each write is a PUT with the resourceVersion that was read. An outcome that is not known counts as failed.
"""

import asyncio
import logging
import math
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from precision_operator.api.wire import count_text, integer, mapping, text
from precision_operator.errors import Conflict, HistoryRewound, KubeError, NotFound
from precision_operator.kube.port import LEASES, JsonObject, KubeApi
from precision_operator.reasons import Reason
from precision_operator.runtime.clock import Clock, SystemClock, wait_event, within
from precision_operator.settings import LeaseSettings

_LOG = logging.getLogger(__name__)


def micro_time(seconds: float) -> str:
    """Seconds since the epoch as Kubernetes' MicroTime (RFC 3339, microseconds, UTC)."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True, slots=True)
class _Record:
    """What a Lease says, read tolerantly."""

    holder: str
    renewed: str
    transitions: int
    duration_seconds: float

    @classmethod
    def read(cls, body: JsonObject) -> "_Record":
        spec = _spec(body)
        return cls(
            holder=text(spec.get("holderIdentity")),
            renewed=text(spec.get("renewTime")),
            transitions=integer(spec.get("leaseTransitions"), 0),
            duration_seconds=float(integer(spec.get("leaseDurationSeconds"), 0)),
        )


def _nothing(_: int = 0) -> None:
    """The callback of who asked for none."""


def _revision(body: JsonObject) -> int:
    """Of the cluster, when the Lease was written; 0 where it is no number."""
    return count_text(text(mapping(body.get("metadata")).get("resourceVersion"))) or 0


def _spec(body: JsonObject) -> JsonObject:
    """A copy, which may be changed."""
    spec = body.get("spec")
    return dict(spec) if isinstance(spec, dict) else {}


class LeaseElector:
    """Campaigns for the Lease, keeps it, and steps down in time.

    ``on_started_leading`` gets the epoch; both callbacks must return at once, and what they raise ends ``run``.
    """

    def __init__(
        self,
        api: KubeApi,
        settings: LeaseSettings,
        namespace: str,
        identity: str,
        clock: Clock | None = None,
        *,
        on_started_leading: Callable[[int], None] = _nothing,
        on_stopped_leading: Callable[[], None] = _nothing,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._api = api
        self._settings = settings
        self._namespace = namespace
        self._clock: Clock = clock or SystemClock()
        self._on_started = on_started_leading
        self._on_stopped = on_stopped_leading
        self._jitter = jitter
        self.identity = f"{identity}_{uuid.uuid4().hex[:8]}"
        """Our name in the Lease: unique to this process, so that one restarted in the same pod is somebody else."""
        self.leading = asyncio.Event()
        """Set while we lead. Where it matters, ask ``is_leader``: it needs no loop to run."""
        self._epoch = 0
        self._body: JsonObject | None = None
        self._seen: _Record | None = None
        self._revision = 0
        self._seen_at = 0.0
        self._renewed_at = -math.inf

    @property
    def is_leader(self) -> bool:
        """Whether we lead now: we hold the Lease and our last renewal began less than ``renew_seconds`` ago."""
        return self._clock.monotonic() < self._renewed_at + self._settings.renew_seconds

    @property
    def epoch(self) -> int:
        """``leaseTransitions`` of our leadership, or of the last one: rises with every change of leader."""
        return self._epoch

    def leads(self, epoch: int) -> bool:
        """Whether the leadership of that epoch goes on: once another has led, ours is a new one."""
        return self.is_leader and self._epoch == epoch

    async def run(self, stop: asyncio.Event) -> None:
        """Campaign until ``stop`` is set, then give the Lease back. Errors of the API are logged and tried again.

        Stop the led work before setting ``stop``: the next leader starts at once after.

        Raises:
            HistoryRewound: the Lease is older than it was: the process must be started anew.
        """
        try:
            while not stop.is_set():
                await self._attempt()
                self._announce()
                await wait_event(self._clock, stop, self._pause_seconds())
                self._announce()
        finally:
            held = self.is_leader
            self._renewed_at = -math.inf
            self._announce()
            if held:
                await self._release()

    async def _attempt(self) -> None:
        limit = self._settings.renew_seconds / 2
        if self.is_leader:
            limit = min(limit, self._renewed_at + self._settings.renew_seconds - self._clock.monotonic())
        try:
            await within(self._clock, limit, self._acquire_or_renew())
        except Conflict:
            self._body = None
            _LOG.info("the lease was written by somebody else; reading it again", extra={"reason": Reason.CONFLICT})
        except (KubeError, TimeoutError) as error:
            self._body = None
            _LOG.warning(
                "could not reach the lease: %s; trying again",
                error,
                extra={
                    "reason": error.reason if isinstance(error, KubeError) else Reason.UNAVAILABLE,
                    "leading": self.is_leader,
                },
            )

    async def _acquire_or_renew(self) -> None:
        self._announce()  # a leadership that ran out is over before another begins
        body = self._body if self.is_leader else None
        if body is None:
            try:
                body = await self._api.get(LEASES, self._namespace, self._settings.name)
            except NotFound:
                await self._write(None, transitions=1)
                return
            self._see(body)
        record = _Record.read(body)
        if record.holder == self.identity:
            await self._write(body, transitions=record.transitions)
        else:
            self._renewed_at = -math.inf  # whoever holds it now took it by the rules
            if not record.holder or self._expires_in(record) <= 0:
                await self._write(body, transitions=record.transitions + 1)

    async def _write(self, body: JsonObject | None, *, transitions: int) -> None:
        began, now = self._clock.monotonic(), micro_time(self._clock.time())
        spec = _spec(body or {})
        if spec.get("holderIdentity") != self.identity:
            spec["acquireTime"] = now
        spec |= {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, math.ceil(self._settings.duration_seconds)),
            "renewTime": now,
            "leaseTransitions": transitions,
        }
        if body is None:
            new = await self._api.create(
                LEASES,
                self._namespace,
                {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": self._settings.name, "namespace": self._namespace},
                    "spec": spec,
                },
            )
        else:
            new = await self._api.replace(LEASES, self._namespace, self._settings.name, {**body, "spec": spec})
        self._body = new
        self._see(new)
        self._epoch = transitions
        self._renewed_at = began

    async def _release(self) -> None:
        """Leave the Lease without holder, so that the next leader need not wait for it to expire."""
        body = self._body
        if body is None:
            return
        spec = _spec(body)
        spec |= {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": micro_time(self._clock.time())}
        write = self._api.replace(LEASES, self._namespace, self._settings.name, {**body, "spec": spec})
        try:
            await within(self._clock, self._settings.renew_seconds / 2, write)
        except (KubeError, TimeoutError) as error:
            _LOG.warning(
                "could not release the lease: %s; it expires by itself",
                error,
                extra={"reason": Reason.LEASE_NOT_RELEASED},
            )

    def _see(self, body: JsonObject) -> None:
        record, revision = _Record.read(body), _revision(body)
        if 0 < revision < self._revision:
            raise HistoryRewound(
                f"the lease: expected revision {self._revision} or a later one, found {revision}: "
                "etcd was restored from a backup; the process ends, to begin anew with a list of everything"
            )
        self._revision = max(self._revision, revision)
        if record != self._seen:
            self._seen, self._seen_at = record, self._clock.monotonic()

    def _expires_in(self, record: _Record) -> float:
        duration = max(self._settings.duration_seconds, record.duration_seconds)
        return self._seen_at + duration - self._clock.monotonic()

    def _pause_seconds(self) -> float:
        """Until the next attempt: up to a fifth earlier than asked, and no later than something happens."""
        pause = self._settings.retry_seconds * (1.0 - 0.2 * self._jitter())
        if self.is_leader:
            left = self._renewed_at + self._settings.renew_seconds - self._clock.monotonic()
            return max(0.0, min(pause, left))
        if self._seen is not None and self._seen.holder:
            left = self._expires_in(self._seen)
            if 0 < left < pause:
                return left
        return pause

    def _announce(self) -> None:
        """Call back on a change of leadership, once each."""
        if self.is_leader and not self.leading.is_set():
            self.leading.set()
            _LOG.info("leading", extra={"reason": Reason.LEADING, "identity": self.identity, "epoch": self._epoch})
            self._on_started(self._epoch)
        elif not self.is_leader and self.leading.is_set():
            self.leading.clear()
            _LOG.warning("not leading any more", extra={"reason": Reason.NOT_LEADING, "identity": self.identity})
            self._on_stopped()
