"""What a tenant writes onto pods and policies costs the operator a bounded number of writes, and never a rollback."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.isolation.texts import corpus
from precision_operator.api.commands import ANNOTATIONS
from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase
from precision_operator.api.text import MESSAGE_CHARACTERS
from precision_operator.contract import (
    ABORT,
    ADMITTED,
    ENABLE,
    INJECTED,
    MAX_GENERATION,
    MAX_POD_GENERATION,
    MODE,
    REQUEST,
)
from tests.support.controller import Controller
from tests.support.manual_clock import ManualClock, finished

pytestmark = pytest.mark.slow

NAMES = ("a", "b", "c")
FAST: dict[str, Any] = {
    "evaluation": {"interval": "15s", "failureLimit": 0, "minSamples": 1, "window": "60s"},
    "strategy": {"steps": [{"setWeight": 100}]},
    "rollback": {"mitigation": {"overflow": {"window": "0s"}}},
}
CORPUS = corpus()


class Rig:
    """A controller whose time is moved by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.controller = Controller(self.clock)

    async def passes(self, count: int, *, until: Phase | None = None) -> None:
        """So many passes, an interval apart; fewer where the phase comes before."""
        for _ in range(count):
            await finished(self.clock, self.controller.turn())
            await self.clock.advance(15.0)
            if until is not None and self.controller.assigned and self.controller.state.phase is until:
                return

    async def steady_writes(self) -> list[tuple[str, str, str]]:
        """What ten passes write, once ten have passed."""
        await self.passes(10)
        self.controller.kube.writes.clear()
        await self.passes(10)
        return self.controller.kube.writes

    def annotate(self, pod: str, annotations: dict[str, str]) -> None:
        """A stranger writes onto a pod."""
        body: Any = self.controller.kube.objects["pods", "default", f"{pod}-abc-1"]
        body["metadata"]["annotations"] = {**body["metadata"]["annotations"], **annotations}

    async def breach(self) -> None:
        """Everything overflows, until the fleet is held."""
        self.controller.trainers.bad = {f"{name}-abc-1": {"overflow": 0.9} for name in NAMES}
        await self.passes(40, until=Phase.HELD)
        assert self.controller.state.phase is Phase.HELD
        assert set(self.controller.modes.values()) == {Mode.FP32}


async def promoted() -> Rig:
    rig = Rig()
    rig.controller.fleet(*NAMES, **FAST)
    await rig.passes(40, until=Phase.HEALTHY)
    assert rig.controller.state.phase is Phase.HEALTHY
    return rig


@pytest.mark.parametrize("generation", [MAX_GENERATION, MAX_GENERATION - 1, MAX_POD_GENERATION + 1, MAX_POD_GENERATION])
@pytest.mark.parametrize("where", ["request", "admitted", "both"])
async def test_after_a_forged_generation_a_steady_fleet_costs_no_write(generation: int, where: str) -> None:
    rig = await promoted()
    forged = {
        REQUEST: json.dumps({"generation": generation, "mode": "fp16"}),
        ADMITTED: f"fleet/{generation}/fp16",
    }
    rig.annotate("a", {key: value for key, value in forged.items() if where in (key.rpartition("/")[2], "both")})
    assert await rig.steady_writes() == []
    assert rig.controller.state.phase is Phase.HEALTHY
    await rig.breach()
    assert await rig.steady_writes() == []


@pytest.mark.parametrize("name", CORPUS)
async def test_whatever_stands_on_a_pod_the_fleet_is_rolled_back_and_then_costs_no_write(name: str) -> None:
    rig = await promoted()
    rig.annotate("a", dict.fromkeys((REQUEST, ADMITTED, ENABLE, MODE, INJECTED), CORPUS[name]))
    await rig.passes(10)
    assert rig.controller.summary.total == len(NAMES), "no workload is lost"
    await rig.breach()
    assert await rig.steady_writes() == []


@pytest.mark.parametrize("name", CORPUS)
async def test_whatever_stands_in_a_policys_commands_it_is_held_and_then_costs_no_write(name: str) -> None:
    rig = await promoted()
    commands = {key: CORPUS[name] for command in ANNOTATIONS for key in (command, f"{command}-by")}
    rig.controller.policy["metadata"]["annotations"] = commands
    await rig.passes(2)
    number = rig.controller.state.transition_id
    said = {key: f"{number}: {CORPUS[name]}" for key in ANNOTATIONS if key == ABORT}
    rig.controller.policy["metadata"]["annotations"] = {**commands, **said}
    await rig.passes(40, until=Phase.HELD)
    assert rig.controller.state.phase is Phase.HELD
    assert set(rig.controller.modes.values()) == {Mode.FP32}
    messages = [rig.controller.state.message, rig.controller.summary.message]
    messages += [
        str(body.get("message", "")) for (plural, *_), body in rig.controller.kube.objects.items() if plural == "events"
    ]
    assert all(len(message) <= MESSAGE_CHARACTERS and message.isprintable() for message in messages)
    assert await rig.steady_writes() == []
