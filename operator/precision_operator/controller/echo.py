"""Which generation of an assignment does admission know? A dry run of a patch of its policy answers, at every API server.

Pods are taken away, and workloads promoted, only after the committed generation was echoed: a pod that is created
before may still start in the mode before. See manifests/admission/echo.yaml. Of a webhook, an echo reaches one replica only:
the others are asked beside it.
"""

import asyncio
import logging
import secrets
from dataclasses import dataclass

from precision_operator.api.policy import PolicyKey
from precision_operator.api.wire import generation_text, mapping, text
from precision_operator.contract import ECHO, ECHO_NONCE
from precision_operator.core.model import Admission
from precision_operator.errors import Conflict, KubeError, NotFound, Unavailable
from precision_operator.kube.endpoints import ready_servers
from precision_operator.kube.port import ENDPOINT_SLICES, POLICIES, JsonObject, KubeApi
from precision_operator.reasons import Reason
from precision_operator.runtime.clock import Clock
from precision_operator.webhook.mode import AdmissionMode
from precision_operator.webhook.replicas import Replicas

_LOG = logging.getLogger(__name__)

PATIENCE_SECONDS = 2.0
"""How long a committed generation is waited for: 95 of 100 are echoed within 0.1 s."""

PAUSE_SECONDS = (0.005, 0.01, 0.02, 0.04, 0.08)
"""Between two questions; the last one again and again."""

SERVERS_FRESH_SECONDS = 30.0
"""How often the addresses of the API servers are read."""

UNKNOWN_SERVERS = 5
"""Connections over which a load balancer is asked: what stands behind it cannot be seen."""

SETTLE_SECONDS = 1.0
"""How long is waited where not every API server can be asked."""


@dataclass(frozen=True, slots=True)
class Echo:
    """What was answered."""

    admission: Admission
    policy: JsonObject | None = None
    """The policy as the last API server has it; None: it gave no answer, or there is no policy."""

    @property
    def confirmed(self) -> bool:
        """Every API server that was asked gives new pods what is assigned."""
        return self.admission.enforced is True


class Echoes:
    """Asks admission. Belongs to one event loop."""

    def __init__(
        self,
        api: KubeApi,
        clock: Clock,
        *,
        mode: AdmissionMode = AdmissionMode.POLICY,
        replicas: Replicas | None = None,
    ) -> None:
        """``replicas``: those of the webhook, in that mode."""
        self._api = api
        self._mode = mode
        self._replicas = replicas
        self._clock = clock
        self._servers: tuple[float, tuple[str, ...]] = (-SERVERS_FRESH_SECONDS, ())

    async def ask(self, key: PolicyKey, *, generation: int, awaited: bool = True) -> Echo:
        """Ask every API server whether it knows at least ``generation``, and every replica of the webhook.

        ``awaited``: the generation is new, so each is asked until it knows it, or patience ends; else once.
        """
        answer = await self._ask_servers(key, generation, awaited=awaited)
        return await self._beside(key, generation, answer, awaited=awaited) if answer.confirmed else answer

    async def _beside(self, key: PolicyKey, generation: int, answer: Echo, *, awaited: bool) -> Echo:
        if self._replicas is None:
            return answer
        against = await self._replicas.ask(key.namespace, key.name, generation=generation, awaited=awaited)
        return answer if against is None else Echo(against, answer.policy)

    async def _ask_servers(self, key: PolicyKey, generation: int, *, awaited: bool) -> Echo:
        servers = await self._known_servers()
        asked = (self._until(key, generation, server, awaited=awaited) for server in servers)
        try:
            if servers:
                answers = await asyncio.gather(*asked)
                return next((answer for answer in answers if not answer.confirmed), answers[-1])
        except Unavailable as error:
            # Endpoints that cannot be reached from here: only the configured address can be asked.
            _LOG.info("API servers cannot be asked one by one: %s", error, extra={"policy": key.name})
            self._servers = (self._clock.monotonic(), ())
        return await self._behind_a_balancer(key, generation, awaited=awaited)

    async def _behind_a_balancer(self, key: PolicyKey, generation: int, *, awaited: bool) -> Echo:
        answer = Echo(Admission())
        for _ in range(UNKNOWN_SERVERS):
            try:
                answer = await self._until(key, generation, "", awaited=awaited)
            except Unavailable as error:
                return Echo(Admission(None, error.reason, str(error)))
            if not answer.confirmed:
                return answer
        if awaited:
            await self._clock.sleep(SETTLE_SECONDS)
        return answer

    async def without_policy(self, key: PolicyKey, generation: int) -> Echo:
        """After a policy's deletion no API server can be asked: what was committed has had its time after this."""
        await self._clock.sleep(SETTLE_SECONDS)
        return await self._beside(key, generation, Echo(_ENFORCING[self._mode]), awaited=True)

    async def _until(self, key: PolicyKey, generation: int, server: str, *, awaited: bool) -> Echo:
        """One API server's answer.

        Raises:
            Unavailable: it cannot be reached.
        """
        began, attempt = self._clock.monotonic(), 0
        while True:
            answer = await self._once(key, generation, server)
            if answer.confirmed or not awaited or self._clock.monotonic() - began >= PATIENCE_SECONDS:
                return answer
            await self._clock.sleep(PAUSE_SECONDS[min(attempt, len(PAUSE_SECONDS) - 1)])
            attempt += 1

    async def _once(self, key: PolicyKey, generation: int, server: str) -> Echo:
        nonce = secrets.token_hex(8)
        patch: JsonObject = {"metadata": {"annotations": {ECHO_NONCE: nonce, ECHO: None}}}
        try:
            body = await self._api.dry_run(POLICIES, key.namespace, key.name, patch, server=server)
        except NotFound as error:
            return Echo(Admission(None, Reason.POLICY_GONE, str(error)))
        except Unavailable:
            raise
        except KubeError as error:
            return Echo(Admission(None, error.reason, f"admission cannot be asked: {error}"))
        echoed = text(mapping(mapping(body.get("metadata")).get("annotations")).get(ECHO))
        if not echoed:
            return Echo(
                Admission(False, Reason.NOT_ENFORCING, f"{server or 'the API server'} {_SILENT[self._mode]}"), body
            )
        against = _judged(echoed, nonce, key.name, generation, server)
        return Echo(against or _ENFORCING[self._mode], body)

    async def _known_servers(self) -> tuple[str, ...]:
        """Base URLs of the API servers that say that they are there; none where they cannot be read or reached."""
        at, known = self._servers
        now = self._clock.monotonic()
        if now - at < SERVERS_FRESH_SECONDS:
            return known
        try:
            found = tuple(
                ready_servers(await self._api.get(ENDPOINT_SLICES, "default", "kubernetes"), default_port=443)
            )
        except KubeError as error:
            _LOG.info("the API servers' addresses cannot be read: %s", error, extra={"reason": error.reason})
            found = ()
        self._servers = (now, found)
        return found


_ENFORCING = {
    mode: Admission(True, Reason.ENFORCING, f"every API server gives new pods the mode that is assigned, by {how}")
    for mode, how in ((AdmissionMode.POLICY, "admission policy"), (AdmissionMode.WEBHOOK, "the operator's webhook"))
}
_EXEMPT = "or this is kube-system or the operator's own namespace, where nothing is enforced"
_SILENT = {
    AdmissionMode.POLICY: (
        "does not know PrecisionAssignments in admission: the policies of manifests/admission are not installed, not "
        f"served by this version of Kubernetes, it was started a moment ago, {_EXEMPT}"
    ),
    AdmissionMode.WEBHOOK: (
        "gets no answer of the webhook: its configuration precision-webhook.precision.genesis.ai is not installed, no "
        f"replica is ready, it cannot be reached, its certificate is not trusted, {_EXEMPT}"
    ),
}
"""Why there may be no echo."""


def _judged(echoed: str, nonce: str, name: str, generation: int, server: str) -> Admission | None:
    """What stands against an echo; None: nothing."""
    where = server or "the API server"
    given, _, rest = echoed.partition("/")
    assignment, _, number = rest.partition("/")
    known = generation_text(number)
    if given != nonce or assignment != name or known is None:
        text = f"{where} gives an answer to another question: something else writes {ECHO} on the policy"
        return Admission(False, Reason.NOT_ENFORCING, text)
    if known < generation:
        text = f"admission at {where} knows generation {known} of the assignment, and {generation} is committed"
        return Admission(False, Reason.ADMISSION_BEHIND, text)
    return None


def moved_on(asked: JsonObject, answered: JsonObject | None) -> Conflict | None:
    """Why a decision on ``asked`` is out of date, where admission has seen a newer policy."""
    if answered is None:
        return None
    before, after = mapping(asked.get("metadata")), mapping(answered.get("metadata"))
    for name in ("uid", "generation"):
        if before.get(name) != after.get(name):
            return Conflict(f"the policy's {name} was {before.get(name)} and is {after.get(name)}; gather again")
    ours = {ECHO, ECHO_NONCE}
    annotations = [{k: v for k, v in mapping(m.get("annotations")).items() if k not in ours} for m in (before, after)]
    if annotations[0] != annotations[1]:
        return Conflict("the policy's annotations changed; gather again")
    return None
