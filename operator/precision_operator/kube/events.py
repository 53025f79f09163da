"""Events on a policy, for ``kubectl describe``: the same Event again raises a count instead of making an object."""

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256

from precision_operator.api.text import bounded
from precision_operator.errors import KubeError, NotFound
from precision_operator.kube.port import EVENTS, POLICIES, JsonObject, KubeApi

log = logging.getLogger(__name__)

COMPONENT = "precision-operator"
MESSAGE_LIMIT = 1024
"""Bytes of a message that the API server takes."""


@dataclass(frozen=True, slots=True)
class PolicyRef:
    """The policy that an Event is about."""

    namespace: str
    name: str
    uid: str


@dataclass(slots=True)
class _Recorded:
    name: str
    count: int


def _now() -> datetime:
    return datetime.now(UTC)


class EventRecorder:
    """Records Events; never raises into the reconciler, and remembers at most ``capacity`` of them."""

    def __init__(
        self,
        api: KubeApi,
        *,
        identity: str,
        now: Callable[[], datetime] = _now,
        capacity: int = 1024,
    ) -> None:
        self._api = api
        self._identity = identity
        self._now = now
        self._capacity = capacity
        self._recorded: OrderedDict[tuple[PolicyRef, str, str], _Recorded] = OrderedDict()

    async def emit(self, ref: PolicyRef, reason: str, message: str, warning: bool = False) -> None:
        """Say it. A failure is logged: an Event is worth no reconcile."""
        message = bounded(message).encode()[:MESSAGE_LIMIT].decode(errors="ignore")
        key = (ref, reason, message)
        try:
            await self._emit(key, warning=warning)
        except KubeError as error:
            log.warning("event not recorded", extra={"event": reason, "policy": ref.name, "error": str(error)})

    async def _emit(self, key: tuple[PolicyRef, str, str], *, warning: bool) -> None:
        stamp = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        known = self._recorded.get(key)
        if known is not None:
            self._recorded.move_to_end(key)
            try:
                known.count += 1
                await self._api.merge_patch(
                    EVENTS, key[0].namespace, known.name, {"count": known.count, "lastTimestamp": stamp}
                )
                return
            except NotFound:  # the API server keeps Events for an hour
                self._recorded.pop(key, None)
        name = self._name(key)
        await self._api.create(EVENTS, key[0].namespace, self._body(key, name, stamp, warning=warning))
        self._recorded[key] = _Recorded(name, 1)
        while len(self._recorded) > self._capacity:
            self._recorded.popitem(last=False)

    def _name(self, key: tuple[PolicyRef, str, str]) -> str:
        """A name that no other process, and no other time, gives."""
        salt = f"{self._identity} {self._now().isoformat()} {key}"
        return f"{key[0].name[:200]}.{sha256(salt.encode()).hexdigest()[:16]}"

    def _body(self, key: tuple[PolicyRef, str, str], name: str, stamp: str, *, warning: bool) -> JsonObject:
        ref, reason, message = key
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": ref.namespace},
            "involvedObject": {
                "apiVersion": POLICIES.api_version,
                "kind": "PrecisionPolicy",
                "namespace": ref.namespace,
                "name": ref.name,
                "uid": ref.uid,
            },
            "reason": reason,
            "message": message,
            "type": "Warning" if warning else "Normal",
            "count": 1,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._identity,
        }
