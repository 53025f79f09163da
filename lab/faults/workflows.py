"""What the operator does for a fleet, one row of a table for each piece of work that a fault may meet.

A run has a namespace of its own: three workloads that read requests, and one that only a restart moves. First it is
prepared; what the operator writes from then on is numbered and may be harmed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from lab.bench.api import Api, Json, until
from lab.bench.fleet import LABELS, POLICY, deployment
from lab.bench.trainers import Trainers
from lab.faults.proxy import Line
from lab.faults.rules import Injection, Numbering
from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase
from precision_operator.contract import RETRY

HOT = ("hot-0", "hot-1", "hot-2")
LITERAL = "literal"
SEVERE, MILD = 0.8, 0.25
"""Shares of steps that overflow: an emergency, and what is rolled back in batches."""
PATIENCE_SECONDS = 120.0
"""How long a prepared state is waited for on a busy machine."""

ADMISSION_SECONDS = 90.0
"""How long an API server may not know what is assigned after its start (half a minute), and how long until that is seen."""

_NOBODY = "nobody"
"""There is no node: a scheduler would look for one again and again, and write down that it found none."""
_GROUP = "/apis/precision.genesis.ai/v1alpha1/namespaces"
_AT_ONCE: Json = {"strategy": {"steps": [{"setWeight": 100}]}}
_IN_STEPS: Json = {"strategy": {"steps": [{"setWeight": 25}, {"pause": {"duration": "1s"}}, {"setWeight": 100}]}}
_STEADY: Json = {"evaluation": {"interval": "500ms", "window": "10s", "failureLimit": 0, "maxSampleAge": "30s"}}
"""Of fleets that are promoted and stay in FP16: late scrapes must cause no write."""
_GRADUAL: Json = {"sustain": "3s", "inFlight": "2s", "batchShare": 0.4}
_UNMITIGATED: Json = {"overflow": {"window": "0s"}, "speed": {"window": "0s"}}
_CANARY: Json = {"window": "2m", "limit": "10m", "falseAlarmRate": 0.2}


class Plane(StrEnum):
    """Which control plane a workflow needs."""

    SHARED = "shared"
    """Admission policies; many runs at once."""
    WEBHOOK = "webhook"
    """None: the operator's webhook admits pods."""
    RESTORED = "restored"
    """etcd is restored under it."""


@dataclass
class Place:
    """A namespace with its fleet, and what a workflow may do there."""

    api: Api
    trainers: Trainers
    namespace: str
    line: Line
    kill_leader: Callable[[], Awaitable[None]]
    """SIGKILL; once for all that run at the same time."""
    back_up: Callable[[], Awaitable[None]]
    """Copy etcd, when all that run at the same time have come here."""
    restore: Callable[[], Awaitable[None]]
    """Bring that copy back, when all that run at the same time have come here."""

    @property
    def policy_path(self) -> str:
        """Where the policy is."""
        return f"{_GROUP}/{self.namespace}/precisionpolicies/{POLICY}"

    async def populate(self) -> None:
        """Make the fleet, and wait until it trains."""
        made = [*(deployment(name, replicas=1) for name in HOT), deployment(LITERAL, replicas=1, hot=False)]
        for body in made:
            body["spec"]["template"]["spec"]["schedulerName"] = _NOBODY
        await self.api.create(f"/apis/apps/v1/namespaces/{self.namespace}/deployments", made)

        async def training() -> bool:
            return len(self.trainers.modes(self.namespace)) == len(made)

        await until(training, what=f"the pods in {self.namespace}", seconds=PATIENCE_SECONDS)

    async def apply(self, spec: Mapping[str, object]) -> None:
        """Create the policy."""
        await self.api.post(f"{_GROUP}/{self.namespace}/precisionpolicies", policy(spec))

    async def change(self, patch: Mapping[str, object]) -> None:
        """Merge-patch the policy."""
        await self.api.merge(self.policy_path, patch)

    async def delete(self) -> None:
        """Delete the policy."""
        await self.api.delete(self.policy_path)

    def overflow(self, share: float) -> None:
        """Half of the fleet overflows so often in reduced precision; 0: it is well again."""
        for name in HOT[:2]:
            self.trainers.overflow[(self.namespace, name)] = share

    async def wait(self, *phases: str, mode: Mode, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until the policy is in one of these phases, and every process trains in this mode.

        Raises:
            DeadlineExceeded: it was not in time.
        """

        async def there() -> bool:
            modes = self.trainers.modes(self.namespace)
            return set().union(*modes.values()) == {mode} and await self.phase() in phases

        what = f"{self.namespace} in {' or '.join(phases)} and in {mode}"
        await until(there, what=what, seconds=seconds, every=0.5)

    async def admitted(self) -> None:
        """Wait until no policy says that admission is not enforced: an API server that was just started may not know it yet.

        Raises:
            DeadlineExceeded: it was not in time.
        """

        async def enforced() -> bool:
            conditions = ((await self._only("precisionassignments")) or {}).get("state", {}).get("conditions", [])
            return not any(c["type"] == "AdmissionEnforced" and c["status"] == "False" for c in conditions)

        await until(enforced, what=f"admission enforced in {self.namespace}", seconds=ADMISSION_SECONDS, every=0.5)

    async def phase(self) -> str:
        """The policy's phase by its assignment: that is what is committed."""
        found = await self._only("precisionassignments")
        return str((found or {}).get("state", {}).get("phase", ""))

    async def asked(self, phase: Phase) -> int:
        """What a command answers, once people are told of this phase."""

        async def told() -> int | None:
            status = (await self._only("precisionpolicies") or {}).get("status", {})
            return int(status["transitionId"]) if status.get("phase") == phase else None

        return await until(told, what=f"{phase} in the policy's status", seconds=PATIENCE_SECONDS)

    async def _only(self, plural: str) -> Json | None:
        items = (await self.api.get(f"{_GROUP}/{self.namespace}/{plural}"))["items"]
        return items[0] if items else None

    def arm(self, injections: Sequence[Injection]) -> None:
        """From now on writes are numbered, and those of the injections are harmed."""
        self.line.numbering = Numbering()
        self.line.injections = injections


Step = Callable[[Place], Awaitable[None]]


@dataclass(frozen=True)
class Workflow:
    """What is prepared, what is done then, and where it must end."""

    name: str
    act: Step
    phases: tuple[str, ...]
    mode: Mode
    spec: Json = field(default_factory=dict)
    prepare: Step | None = None
    """None: the fleet is rolled out."""
    plane: Plane = Plane.SHARED
    reduced: bool = False
    """Its policy ends deleted, and its assignment reduced to what is held."""
    operators: int = 1
    slow: bool = False
    """It waits for long: a sample has the least of it."""


def policy(spec: Mapping[str, object]) -> Json:
    """A policy that is quick to decide."""
    return {
        "apiVersion": "precision.genesis.ai/v1alpha1",
        "kind": "PrecisionPolicy",
        "metadata": {"name": POLICY},
        "spec": {
            "selector": {"matchLabels": LABELS},
            "evaluation": {"interval": "500ms", "window": "4s", "failureLimit": 0, "maxSampleAge": "5s"},
            "criteria": {"speed": {"enabled": False}},
            "reenable": {"prerequisites": [], "backoff": "0s", "dwell": "0s"},
            **_AT_ONCE,
            **spec,
        },
    }


async def rolled_out(place: Place, spec: Mapping[str, object] | None = None) -> None:
    """Everything in FP16."""
    await place.apply(spec or {})
    await place.wait(Phase.HEALTHY, mode=Mode.FP16)


async def rolled_back(place: Place) -> None:
    """Everything in FP32 after an emergency, and its cause mended."""
    await rolled_out(place, _STEADY)
    place.overflow(SEVERE)
    await place.wait(Phase.HELD, mode=Mode.FP32)
    place.overflow(0.0)


async def _nothing(place: Place) -> None:
    """The namespace is enough."""


async def _roll_out(place: Place) -> None:
    await place.apply(_IN_STEPS)


async def _break_severely(place: Place) -> None:
    place.overflow(SEVERE)


async def _break_mildly(place: Place) -> None:
    place.overflow(MILD)


async def _retry(place: Place) -> None:
    answer = f"{await place.asked(Phase.HELD)}: mended"
    await place.change({"metadata": {"annotations": {RETRY: answer}}})


async def _retarget(place: Place) -> None:
    await place.change({"spec": {"target": "bf16"}})


async def _begin_rollback(place: Place) -> None:
    place.overflow(SEVERE)

    async def rolling_back() -> bool:
        return await place.phase() in (Phase.ROLLING_BACK, Phase.HELD)

    await until(rolling_back, what="a rollback", seconds=PATIENCE_SECONDS, every=0.2)


async def _delete(place: Place) -> None:
    await _begin_rollback(place)
    await place.delete()


async def _take_over(place: Place) -> None:
    await _begin_rollback(place)
    await place.kill_leader()


async def _roll_out_and_break(place: Place) -> None:
    await rolled_out(place)
    place.overflow(SEVERE)


async def _backed_up_then_rolled_back(place: Place) -> None:
    await rolled_out(place, _STEADY)
    await place.back_up()
    place.overflow(SEVERE)
    await place.wait(Phase.HELD, mode=Mode.FP32)
    place.overflow(0.0)


async def _restore(place: Place) -> None:
    """The processes have seen younger generations than the API server knows."""
    await place.restore()


WORKFLOWS = (
    Workflow("rollout", _roll_out, (Phase.HEALTHY,), Mode.FP16, prepare=_nothing),
    Workflow("emergency", _break_severely, (Phase.HELD,), Mode.FP32),
    Workflow(
        "gradual",
        _break_mildly,
        (Phase.HELD,),
        Mode.FP32,
        spec={"rollback": {"gradual": _GRADUAL, "mitigation": _UNMITIGATED}},
        slow=True,
    ),
    Workflow(
        "canary",
        _break_mildly,
        (Phase.HELD,),
        Mode.FP32,
        spec={
            "rollback": {
                "strategies": {"P2": "Canary"},
                "gradual": _GRADUAL,
                "canary": _CANARY,
                "mitigation": _UNMITIGATED,
            }
        },
        slow=True,
    ),
    Workflow("retry", _retry, (Phase.HEALTHY,), Mode.FP16, prepare=rolled_back, slow=True),
    Workflow("target", _retarget, (Phase.HEALTHY,), Mode.BF16),
    Workflow("deletion", _delete, (Phase.HELD,), Mode.FP32, reduced=True),
    Workflow("takeover", _take_over, (Phase.HELD,), Mode.FP32, operators=2),
    Workflow("webhook", _roll_out_and_break, (Phase.HELD,), Mode.FP32, prepare=_nothing, plane=Plane.WEBHOOK),
    Workflow(
        "restore",
        _restore,
        (Phase.HEALTHY,),
        Mode.FP16,
        prepare=_backed_up_then_rolled_back,
        plane=Plane.RESTORED,
    ),
)
"""All of them; ``make faults`` runs each."""


def workflow(name: str) -> Workflow:
    """By its name.

    Raises:
        KeyError: there is none.
    """
    return {workflow.name: workflow for workflow in WORKFLOWS}[name]


async def run(place: Place, work: Workflow, injections: Sequence[Injection], *, seconds: float) -> None:
    """Prepare, arm, act, and wait for the end.

    Raises:
        DeadlineExceeded: it did not come within ``seconds`` after the act.
    """
    await (work.prepare(place) if work.prepare is not None else rolled_out(place, work.spec))
    place.arm(injections)
    await work.act(place)
    await place.wait(*work.phases, mode=work.mode, seconds=seconds)
