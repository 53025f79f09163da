"""Are the installed admission policies the ones that we ship? Compared field by field, and remembered a while."""

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from itertools import chain

from precision_operator.admission.objects import GROUP, PLURALS, VERSIONS, Shipped, shipped, spec_of
from precision_operator.api.wire import mapping, sequence
from precision_operator.core.model import Admission
from precision_operator.errors import KubeError, NotFound
from precision_operator.kube.port import JsonObject, KubeApi, Resource
from precision_operator.reasons import Reason
from precision_operator.runtime.clock import Clock
from precision_operator.webhook.mode import AdmissionMode

FRESH_SECONDS = 60.0
"""How long it is believed that everything is as shipped."""

RETRY_SECONDS = 5.0
"""How soon is compared again where something is not."""

AT_ONCE = 4
"""Objects that are read at once: fewer than the connections that the client keeps for reads, a Lease among them."""

_DEFAULTS: Mapping[str, object] = {"failurePolicy": "Fail", "matchPolicy": "Equivalent", "scope": "*"}
"""What the API server writes into a spec that leaves it open, beside empty values."""

_NAMESPACES = "namespaceSelector"
_EXCLUDING = ("NotIn", "DoesNotExist")

_ACCOUNT = re.compile(r"system:serviceaccount:[a-z0-9-]+:[a-z0-9.-]+")
_SHIPPED_NAMESPACE = "precision-system"


def _next_step(ours: Shipped) -> str:
    folder = "manifests/webhook" if "webhook" in ours.name else "manifests/admission"
    return f"upgrade the chart, or apply {folder}"


class InstalledPolicies:
    """Compares; belongs to one event loop."""

    def __init__(
        self,
        api: KubeApi,
        clock: Clock,
        *,
        namespace: str,
        mode: AdmissionMode = AdmissionMode.POLICY,
        ours: Iterable[Shipped] | None = None,
    ) -> None:
        """``namespace``: the operator's own, which the shipped policies leave out."""
        self._api = api
        self._clock = clock
        self._namespace = namespace
        self._ours = tuple(ours) if ours is not None else shipped(webhook=mode is AdmissionMode.WEBHOOK)
        self._known: Admission | None = None
        self._until = -FRESH_SECONDS
        self._comparing = asyncio.Lock()

    async def differs(self) -> Admission | None:
        """What is not as shipped; None: everything is. Whoever asks during a comparison shares its result."""
        async with self._comparing:
            if self._clock.monotonic() >= self._until:
                self._known = await self._compare()
                self._until = self._clock.monotonic() + (FRESH_SECONDS if self._known is None else RETRY_SECONDS)
            return self._known

    async def _compare(self) -> Admission | None:
        """A few at once, in order; what follows the first few with a difference is not read."""
        for start in range(0, len(self._ours), AT_ONCE):
            found = await asyncio.gather(*(self._differs(ours) for ours in self._ours[start : start + AT_ONCE]))
            differing = next((answer for answer in found if answer is not None), None)
            if differing is not None:
                return differing
        return None

    async def _differs(self, ours: Shipped) -> Admission | None:
        try:
            body = await self._read(ours)
        except NotFound:
            if not ours.needed:
                return None  # an admin may leave out a guard of people; the operator tries its own fence itself
            text = f"{ours.kind} {ours.name} is not installed: {_next_step(ours)}"
            return Admission(False, Reason.ADMISSION_NOT_INSTALLED, text)
        except KubeError as error:
            return Admission(None, error.reason, f"{ours.kind} {ours.name} cannot be read: {error}")
        mine, theirs = self._normal(ours.spec), self._normal(spec_of(body))
        where = difference(mine, _without_exclusions(theirs, mine))
        if where is None:
            return None
        text = f"{ours.kind} {ours.name} is not the shipped one: {where} differs: {_next_step(ours)}"
        return Admission(False, Reason.ADMISSION_DIFFERS, text)

    async def _read(self, ours: Shipped) -> JsonObject:
        plural = PLURALS[ours.kind]
        for version in VERSIONS[:-1]:
            try:
                return await self._api.get(Resource(GROUP, version, plural), "", ours.name)
            except NotFound:
                continue
        return await self._api.get(Resource(GROUP, VERSIONS[-1], plural), "", ours.name)

    def _normal(self, spec: Mapping[str, object]) -> object:
        """Without what an installation chooses: the operator's account, and its namespace."""
        raw = _ACCOUNT.sub("<operator>", json.dumps(spec))
        for namespace in {_SHIPPED_NAMESPACE, self._namespace}:
            raw = raw.replace(json.dumps(namespace), '"<operator>"')
        return json.loads(raw)


def _without_exclusions(installed: object, ours: object) -> object:
    """Without what a cloud adds to webhooks of others to keep them away from namespaces of its own.

    It stays a difference where our webhooks are not all kept away alike: else the echo shows where nothing is enforced.
    """
    webhooks = [mapping(webhook) for webhook in sequence(mapping(installed).get("webhooks"))]
    selectors = [mapping(webhook.get(_NAMESPACES)) for webhook in webhooks]
    if not selectors or any(selector != selectors[0] for selector in selectors):
        return installed
    shipped_ones = [
        mapping(webhook.get(_NAMESPACES)) for webhook in map(mapping, sequence(mapping(ours).get("webhooks")))
    ]
    known = [entry for selector in shipped_ones for entry in sequence(selector.get("matchExpressions"))]
    found = sequence(selectors[0].get("matchExpressions"))
    kept = [entry for entry in found if entry in known or mapping(entry).get("operator") not in _EXCLUDING]
    selector = {**selectors[0], "matchExpressions": kept}
    return {**mapping(installed), "webhooks": [{**webhook, _NAMESPACES: selector} for webhook in webhooks]}


def difference(ours: object, installed: object, path: str = "spec") -> str | None:
    """The path of the first field that is not so; what the API server fills in itself is passed over."""
    if isinstance(ours, dict):
        there = mapping(installed)
        added = (f"{path}.{key}" for key, value in there.items() if key not in ours and not _filled_in(key, value))
        found = (difference(value, there.get(key), f"{path}.{key}") for key, value in ours.items())
        return next((where for where in chain(found, added) if where is not None), None)
    if isinstance(ours, list):
        there_list = sequence(installed)
        if len(there_list) != len(ours):
            return path
        pairs = enumerate(zip(ours, there_list, strict=True))
        found = (difference(mine, theirs, f"{path}[{index}]") for index, (mine, theirs) in pairs)
        return next((where for where in found if where is not None), None)
    return None if ours == installed else path


def _filled_in(key: str, value: object) -> bool:
    return not value or _DEFAULTS.get(key) == value
