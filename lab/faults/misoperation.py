"""Odd policies in the place of good ones, on a real API server, beside a neighbour who must not notice."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.bench.api import Json, Refused, until
from lab.bench.fleet import POLICY
from lab.bench.operators import Operators
from lab.errors import LabError
from lab.faults.checker import check
from lab.faults.odd import OddPolicy, odd_policies
from lab.faults.proxy import Line
from lab.faults.recorder import RESOURCES, Recorder
from lab.faults.stage import Stage
from lab.faults.trace import Header, Trace, write_trace
from lab.faults.workflows import SEVERE, Place, policy, rolled_out
from lab.progress import say, step
from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase

PLACES = 4
"""Namespaces in which policies are made odd at the same time."""
TOLD_SECONDS = 30.0
"""How soon a policy says what became of its edit, on a busy machine."""
_RECORDED = frozenset({"Pod", "Deployment", "PrecisionPolicy", "PrecisionAssignment"})
_EVERY = 50
_CONFLICT = 409
_INVALID = (400, 422)
"""What is wrong with the request itself. Any other answer says nothing of the policy."""


@dataclass
class Misoperation:
    """What became of odd policies."""

    refused: int = 0
    """By the API server."""
    taken: int = 0
    """By the API server; the operator said so in the policy's status, or that is a violation."""
    unchanged: int = 0
    """Stored as the good policy: what was odd was an unknown field, or means its default. The operator saw no edit."""
    gaps: int = 0
    """Watches of the recorder that were refused."""
    violations: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Of odd policies that somebody had to answer."""
        return self.refused + self.taken


async def misoperate(stage: Stage, found: Misoperation, *, seed: int, count: int, directory: Path) -> None:
    """Try odd policies, each followed by the good one; then break the neighbour, who must be rolled back as always.

    ``found`` is told of all as it comes, ``directory`` keeps the trace.
    """
    names = [f"odd-{i}" for i in range(PLACES)]
    everyone = [*names, "neighbour"]
    for name in everyone:
        await stage.add(name)
    recorded = [resource for resource in RESOURCES if resource.kind in _RECORDED]
    operators = Operators(
        stage.plane,
        prometheus_url=stage.prometheus.url,
        namespaces=everyone,
        kubeconfig=stage.kubeconfig,
        settings=stage.settings,
        system=names[0],
        label="odd",
    )
    with Recorder(stage.plane.kubeconfig, everyone, resources=recorded) as recorder:
        try:
            operator = await operators.start()
            places = [_place(stage, name) for name in everyone]
            await asyncio.gather(*(place.populate() for place in places))
            await asyncio.gather(*(rolled_out(place) for place in places))
            chosen = odd_policies(policy({})["spec"], seed=seed, count=count)
            with step(f"{len(chosen)} odd policies"):
                await asyncio.gather(
                    *(try_all(place, chosen[i::PLACES], found) for i, place in enumerate(places[:PLACES]))
                )
            await _neighbour_is_well(places[-1], found)
            if operator.exit_code() is not None:
                found.crashes.append(f"exit code {operator.exit_code()}: {operator.log.read_text()[-2000:]}")
            await asyncio.to_thread(recorder.settle)
            header = Header("odd policies", seed, expectations={"unreported": True})  # fleets may still move at the end
            judge(recorder.trace(header), found, directory=directory, secrets=stage.secrets)
        finally:
            await asyncio.to_thread(operators.stop)


def judge(trace: Trace, found: Misoperation, *, directory: Path, secrets: Mapping[str, str]) -> None:
    """Keep the trace, and check it."""
    found.gaps = len(trace.gaps)
    kept = write_trace(trace, directory / "odd-policies.jsonl")
    found.violations += [f"{violation} ({kept})" for violation in check(trace, secrets=secrets)]


def _place(stage: Stage, name: str) -> Place:
    async def nothing() -> None:
        raise LabError("a run without faults", "a fault", "look who calls it")

    return Place(stage.api, stage.trainers, name, Line(), nothing, nothing, nothing)


async def try_all(place: Place, odd: Sequence[OddPolicy], found: Misoperation) -> None:
    """Put each odd policy in the place of the good one, and the good one back."""
    good = policy({})["spec"]
    before = await _put(place, good)
    for one in odd:
        try:
            generation = await _put(place, one.spec)
        except Refused as error:
            if error.status in _INVALID:
                found.refused += 1
            else:
                found.violations.append(f"{one.path} = {_odd_value(one)!r}: {error.found}")
            continue
        if generation == before:
            found.unchanged += 1
            continue
        found.taken += 1
        await _told(place, one, generation, found)
        before = await _put(place, good)
        await _told(place, one, before, found)
        if found.taken % _EVERY == 0:
            say(f"{found.taken} taken, {found.refused} refused by the API server")


async def _put(place: Place, spec: object) -> int:
    """Store a spec; returns the generation of the object then."""
    while True:
        stored: Json = await place.api.get(place.policy_path)
        try:
            changed = await place.api.put(place.policy_path, {**stored, "spec": spec})
        except Refused as error:
            if error.status != _CONFLICT:
                raise
        else:
            return int(changed["metadata"]["generation"])


async def _told(place: Place, one: OddPolicy, generation: int, found: Misoperation) -> None:
    """Wait until the status is about this generation, with conditions."""

    async def told() -> bool:
        status = (await place.api.get(place.policy_path)).get("status", {})
        return bool(status.get("conditions")) and int(status.get("observedGeneration", 0)) >= generation

    try:
        await until(told, what=f"a status of {place.namespace}", seconds=TOLD_SECONDS)
    except LabError:
        found.violations.append(f"{one.path} = {_odd_value(one)!r}: no status about it within {TOLD_SECONDS:g} s")


def _odd_value(one: OddPolicy) -> object:
    value: object = one.spec
    for name in one.path.split("."):
        value = value.get(name, "absent") if isinstance(value, dict) else value
    return value


async def _neighbour_is_well(place: Place, found: Misoperation) -> None:
    if await place.phase() != Phase.HEALTHY:
        found.violations.append(f"the neighbour is in {await place.phase()}, expected Healthy ({POLICY})")
    place.overflow(SEVERE)
    try:
        await place.wait(Phase.HELD, mode=Mode.FP32)
    except LabError as error:
        found.violations.append(f"the neighbour was not rolled back: {error}")
