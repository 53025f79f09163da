"""Writes down every revision of every object that matters, straight from the API server.

One watch for each resource, of the whole cluster, each in a thread. A watch that ends is taken up at its last revision.
An API server that knows that revision no more (compacted, or it was just restarted and nothing was written since) is
listed again. A ``Gap`` in the trace says so then, with the objects that were written meanwhile: usually none.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import urllib3
from kubernetes import client, config

from lab.faults.trace import Entry, Header, Note, Object, Trace, bounded
from lab.waiting import wait_for
from precision_operator.api.wire import integer, mapping, sequence, text

_PAUSE_SECONDS = 0.2
_REFUSED_WITHIN_SECONDS = 0.5
"""An API server that does not know the revision says so at once, as the watch's first event."""
_GONE = 410


@dataclass(frozen=True, slots=True)
class Recorded:
    """A resource that is recorded."""

    kind: str
    path: str
    """Of its group and version, below the server's address."""
    plural: str
    namespaced: bool = True


RESOURCES = (
    Recorded("Pod", "/api/v1", "pods"),
    Recorded("Deployment", "/apis/apps/v1", "deployments"),
    Recorded("StatefulSet", "/apis/apps/v1", "statefulsets"),
    Recorded("Job", "/apis/batch/v1", "jobs"),
    Recorded("Lease", "/apis/coordination.k8s.io/v1", "leases"),
    Recorded("PrecisionPolicy", "/apis/precision.genesis.ai/v1alpha1", "precisionpolicies"),
    Recorded("PrecisionAssignment", "/apis/precision.genesis.ai/v1alpha1", "precisionassignments"),
    Recorded("PrecisionIncident", "/apis/precision.genesis.ai/v1alpha1", "precisionincidents"),
    Recorded("Namespace", "/api/v1", "namespaces", namespaced=False),
)


class Recorder:
    """Records the given namespaces while `with` lasts. Its methods may be called from any thread.

    Args:
        kubeconfig: credentials that may list and watch; a cluster administrator's. Not through a proxy.
        namespaces: whose objects are recorded. ``Namespace`` objects are recorded of all.
    """

    def __init__(
        self, kubeconfig: Path, namespaces: Sequence[str], *, resources: Sequence[Recorded] = RESOURCES
    ) -> None:
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._entries: list[Entry] = []
        self._highest = 0
        self._era = 0
        self._stopped = threading.Event()
        settings = _settings(kubeconfig)
        self._streams = [_Stream(self, settings, resource, frozenset(namespaces)) for resource in resources]

    def __enter__(self) -> Recorder:
        for stream in self._streams:
            stream.thread.start()
        try:
            for stream in self._streams:
                wait_for(stream.listed.is_set, what=f"a first list of {stream.resource.plural}", seconds=60, every=0.05)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        for stream in self._streams:
            stream.close()
        for stream in self._streams:
            stream.thread.join(timeout=30)

    def note(self, kind: Note, body: Object, *, revision: int | None = None) -> None:
        """Write down what is no object, at a revision that is known, or else at the highest seen until now."""
        with self._lock:
            at = revision if revision is not None else self._highest
            self._entries.append(Entry(at, time.monotonic() - self._began, kind, body, era=self._era))

    def restored(self) -> None:
        """Say that etcd was restored from a snapshot. Call it while the API server is away."""
        with self._lock:
            self._era, self._highest = self._era + 1, 0
        self.note(Note.RESTORED, {})

    def settle(self, *, seconds: float = 30.0) -> None:
        """Wait until all watches are open and all that is stored now was seen; what was not in time is a gap.

        Call it at the end, and after a restart of the API server before more is written.
        """
        for stream in self._streams:
            stream.settle(seconds)

    def trace(self, header: Header) -> Trace:
        """All that was recorded until now; call `settle` before."""
        with self._lock:
            return Trace.of(header, list(self._entries))

    @property
    def stopped(self) -> threading.Event:
        """Set once nothing more is recorded."""
        return self._stopped

    @property
    def era(self) -> int:
        """How often etcd was restored."""
        with self._lock:
            return self._era

    @property
    def highest(self) -> int:
        """The highest revision seen, of this era."""
        with self._lock:
            return self._highest

    def add(self, kind: str, body: Object, *, deleted: bool, revision: int, era: int) -> None:
        """Write down an object's revision."""
        with self._lock:
            if era == self._era:
                self._highest = max(self._highest, revision)
            at = time.monotonic() - self._began
            self._entries.append(Entry(revision, at, kind, bounded(body), deleted=deleted, era=era))


class _Stream:
    """One resource: lists once, then watches, from where the last watch ended.

    ``namespaces``: what is of another one is not written down.
    """

    def __init__(
        self, recorder: Recorder, settings: client.Configuration, resource: Recorded, namespaces: frozenset[str]
    ) -> None:
        self.resource = resource
        self.listed = threading.Event()
        self._url = f"{settings.host}{resource.path}/{resource.plural}"
        self._namespaces = namespaces if resource.namespaced else frozenset({""})
        self._recorder = recorder
        self._known: dict[tuple[str, str], Object] = {}
        self._guard = threading.Lock()
        self._revision = 0
        self._era = 0
        self._watch: urllib3.BaseHTTPResponse | None = None
        self._opened_at: float | None = None
        self._http = urllib3.PoolManager(
            ca_certs=settings.ssl_ca_cert,
            cert_file=settings.cert_file,
            key_file=settings.key_file,
            retries=False,
            maxsize=2,
        )
        self.thread = threading.Thread(target=self._run, name=f"record {resource.plural}", daemon=True)

    def close(self) -> None:
        """End the watch."""
        watch = self._watch
        if watch is not None:
            watch.shutdown()

    def settle(self, seconds: float) -> None:
        """Wait until all that a quorum list has was seen."""
        ends = time.monotonic() + seconds
        missing = "not listed"
        while time.monotonic() < ends:
            try:
                items, _ = self._list()
            except (OSError, urllib3.exceptions.HTTPError) as error:
                missing = repr(error)
            else:
                with self._guard:
                    seen = {key: _revision(body) for key, body in self._known.items()}
                if {_key(item): _revision(item) for item in items} == seen and self._open():
                    return
                missing = "what is stored differs from what was seen"
            time.sleep(_PAUSE_SECONDS)
        self._gap(missing, ["?"])

    def _open(self) -> bool:
        opened = self._opened_at
        return opened is not None and time.monotonic() - opened > _REFUSED_WITHIN_SECONDS

    def _run(self) -> None:
        while not self._recorder.stopped.is_set():
            try:
                if not self.listed.is_set():
                    self._relist(None)
                    self.listed.set()
                elif self._recorder.era != self._era:
                    self._relist(None)
                for event in self._events():
                    self._take(event)
            except _CompactedError as error:
                self._relist_until_done(str(error))
            except (OSError, ValueError, urllib3.exceptions.HTTPError):
                self._recorder.stopped.wait(_PAUSE_SECONDS)  # the API server is away: on from the same revision

    def _relist_until_done(self, gap: str) -> None:
        while not self._recorder.stopped.is_set():
            try:
                self._relist(gap)
            except (OSError, ValueError, urllib3.exceptions.HTTPError):
                self._recorder.stopped.wait(_PAUSE_SECONDS)
            else:
                return

    def _relist(self, gap: str | None) -> None:
        era = self._recorder.era
        items, revision = self._list()
        with self._guard:
            now = {_key(item): item for item in items}
            gone = [key for key in self._known if key not in now]
            new = [k for k in now if k not in self._known or _revision(self._known[k]) != _revision(now[k])]
            if era != self._era:
                gone, new = [], list(now)  # a restore is no deletion
            elif gap is not None:
                self._gap(gap, [f"{namespace}/{name}" for namespace, name in (*gone, *new)])
            for key in gone:
                self._add(self._known[key], deleted=True, revision=revision, era=era)
            for key in new:
                self._add(now[key], deleted=False, revision=_revision(now[key]), era=era)
            self._known, self._revision, self._era = now, revision, era

    def _list(self) -> tuple[list[Object], int]:
        answer = self._http.request("GET", self._url, timeout=10.0)
        if answer.status != 200:
            raise OSError(f"list of {self.resource.plural}: {answer.status}")
        body = answer.json()
        items = [mapping(item) for item in sequence(body["items"])]
        return [item for item in items if self._ours(item)], int(body["metadata"]["resourceVersion"])

    def _ours(self, body: Object) -> bool:
        return _key(body)[0] in self._namespaces

    def _events(self) -> Iterator[Object]:
        query = {"watch": "true", "resourceVersion": str(self._revision), "allowWatchBookmarks": "true"}
        timeout = urllib3.Timeout(connect=5.0, read=90.0)  # a bookmark comes every minute at least
        with closing(
            self._http.request("GET", self._url, fields=query, preload_content=False, timeout=timeout)
        ) as watch:
            if watch.status == _GONE:
                raise _CompactedError("the revisions after the last one seen are compacted")
            if watch.status != 200:
                raise OSError(f"watch of {self.resource.plural}: {watch.status}")
            self._watch, self._opened_at = watch, time.monotonic()
            rest = b""
            try:
                for chunk in watch.stream(amt=None):
                    *lines, rest = (rest + chunk).split(b"\n")
                    yield from (json.loads(line) for line in lines)
            finally:
                self._opened_at = None

    def _take(self, event: Object) -> None:
        body, kind = mapping(event.get("object")), event.get("type")
        if kind == "ERROR":
            if integer(body.get("code"), 0) == _GONE:
                raise _CompactedError(text(body.get("message"), "compacted"))
            raise OSError(f"watch of {self.resource.plural}: {text(body.get('message'))}")
        with self._guard:
            revision = _revision(body)
            if kind != "BOOKMARK" and self._ours(body):
                deleted = kind == "DELETED"
                self._add(body, deleted=deleted, revision=revision, era=self._era)
                self._known.pop(_key(body), None)
                if not deleted:
                    self._known[_key(body)] = bounded(body)
            self._revision = revision

    def _add(self, body: Object, *, deleted: bool, revision: int, era: int) -> None:
        self._recorder.add(self.resource.kind, body, deleted=deleted, revision=revision, era=era)

    def _gap(self, reason: str, changed: list[str]) -> None:
        body = {"resource": self.resource.plural, "kind": self.resource.kind, "reason": reason, "changed": changed}
        known = self._revision if self._era == self._recorder.era else None
        self._recorder.note(Note.GAP, body, revision=known)


class _CompactedError(Exception):
    """The watch cannot go on where it ended."""


def _settings(kubeconfig: Path) -> client.Configuration:
    settings = client.Configuration()
    config.load_kube_config(str(kubeconfig), client_configuration=settings)  # type: ignore[no-untyped-call]
    return settings


def _key(body: Object) -> tuple[str, str]:
    metadata = mapping(body.get("metadata"))
    return text(metadata.get("namespace")), text(metadata.get("name"))


def _revision(body: Object) -> int:
    return int(text(mapping(body.get("metadata")).get("resourceVersion"), "0"))
