"""The switch that stops every action: obeyed within seconds, by what is under way too, and never on by accident."""

from __future__ import annotations

import asyncio

import pytest

from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase
from precision_operator.controller.halt import ANSWER_SECONDS, HALT_CONFIG_MAP, READ_SECONDS, REASON_CHARACTERS, Halt
from precision_operator.errors import Forbidden, Halted, KubeError, Unavailable
from precision_operator.kube.port import CONFIG_MAPS, POLICIES, JsonObject, Resource
from precision_operator.reasons import Reason
from tests.support.controller import Controller
from tests.support.fake_kube import FakeKube
from tests.support.manual_clock import ManualClock, finished, late


class Failing(FakeKube):
    """An API server that answers a read of the switch with an error, where a test says so."""

    error: KubeError | None = None

    async def get(self, resource: Resource, namespace: str, name: str) -> JsonObject:
        if self.error is not None and resource == CONFIG_MAPS:
            raise self.error
        return await super().get(resource, namespace, name)


def turn_on(kube: FakeKube, reason: str = "") -> None:
    """Somebody makes the ConfigMap."""
    metadata: JsonObject = {"name": HALT_CONFIG_MAP, "namespace": "system"}
    kube.put(CONFIG_MAPS, {"metadata": metadata, "data": {"reason": reason}} if reason else {"metadata": metadata})


def turn_off(kube: FakeKube) -> None:
    """Somebody deletes it."""
    del kube.objects["configmaps", "system", HALT_CONFIG_MAP]


async def test_the_switch_is_seen_at_the_next_read_and_every_policy_is_looked_at() -> None:
    kube, clock, turned = Failing(), ManualClock(), list[bool]()
    halt = Halt(kube, clock, namespace="system", changed=lambda: turned.append(halt.cause is not None))
    task = asyncio.ensure_future(halt.run())
    await clock.advance(10 * READ_SECONDS)
    assert (halt.known, turned) == (True, [False]), "read for the first time, and never turned"
    turn_on(kube, "GPU driver 570 is being rolled back")
    await clock.advance(READ_SECONDS)
    assert halt.cause is not None
    assert halt.cause.reason is Reason.HALTED
    assert "system halts every policy: GPU driver 570" in halt.cause.message
    turn_off(kube)
    await clock.advance(READ_SECONDS)
    assert turned == [False, True, False]
    assert READ_SECONDS < 5
    task.cancel()


async def test_a_read_that_is_not_answered_keeps_nobody_from_the_next_one() -> None:
    class Hanging(FakeKube):
        lost = False

        async def get(self, resource: Resource, namespace: str, name: str) -> JsonObject:
            if self.lost:
                self.lost = False
                await asyncio.Event().wait()
            return await super().get(resource, namespace, name)

    kube, clock = Hanging(), ManualClock()
    halt = Halt(kube, clock, namespace="system")
    task = asyncio.ensure_future(halt.run())
    await clock.advance(0.0)
    assert halt.known
    turn_on(kube)
    kube.lost = True
    await clock.advance(READ_SECONDS)
    assert halt.cause is None
    await clock.advance(ANSWER_SECONDS)
    assert halt.cause is not None
    assert READ_SECONDS + ANSWER_SECONDS < 5
    task.cancel()


async def test_a_first_read_is_waited_for_however_slow_the_api_server_is(monkeypatch: pytest.MonkeyPatch) -> None:
    kube, clock = FakeKube(), ManualClock()
    halt = Halt(kube, clock, namespace="system")
    turn_on(kube)
    monkeypatch.setattr(kube, "get", late(clock, 3 * ANSWER_SECONDS, kube.get))
    await finished(clock, halt.read())
    assert (halt.known, halt.cause is not None) == (True, True)


@pytest.mark.parametrize("on", [True, False])
async def test_a_switch_that_cannot_be_read_stays_as_it_was_and_that_is_said_once(
    on: bool, caplog: pytest.LogCaptureFixture
) -> None:
    kube = Failing()
    halt = Halt(kube, ManualClock(), namespace="system")
    if on:
        turn_on(kube)
    await halt.read()
    kube.error = Unavailable("no answer")
    for _ in range(5):
        await halt.read()
    assert (halt.cause is not None) is on
    said = [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]
    assert len(said) == 1
    assert said[0].endswith(": halted" if on else ": not halted")


async def test_nothing_is_decided_before_it_was_read_unless_it_may_never_be() -> None:
    kube = Failing()
    halt = Halt(kube, ManualClock(), namespace="system")
    kube.error = Unavailable("no answer")
    await halt.read()
    assert not halt.known
    kube.error = Forbidden("configmaps is forbidden", status=403)
    await halt.read()
    assert (halt.known, halt.cause) == (True, None), "without the right, an emergency is rolled back all the same"


async def test_what_an_admin_writes_is_bounded_and_cleaned() -> None:
    kube = Failing()
    halt = Halt(kube, ManualClock(), namespace="system")
    turn_on(kube, "a\x1b[31m\n" + "x" * 10_000)
    await halt.read()
    assert halt.cause is not None
    assert halt.cause.message.isprintable()
    assert len(halt.cause.message) < REASON_CHARACTERS + 100


async def test_a_halted_fleet_is_neither_moved_nor_rolled_back_and_says_so() -> None:
    clock = ManualClock()
    controller = Controller(clock)
    controller.fleet("a", "b", evaluation={"interval": "15s", "failureLimit": 0, "minSamples": 1, "window": "60s"})
    for _ in range(4):
        await finished(clock, controller.turn())
        await clock.advance(15.0)
    assert controller.state.phase is Phase.PROGRESSING
    turn_on(controller.kube, "maintenance")
    await controller.halt.read()
    before = controller.modes
    assert Mode.FP16 in before.values()
    controller.trainers.bad = {name: {"divergence": 9.0} for name in controller.modes}
    for _ in range(4):
        await finished(clock, controller.turn())
        await clock.advance(60.0)
    assert (controller.modes, controller.state.phase) == (before, Phase.PROGRESSING)
    assert (controller.summary.reason, controller.summary.message) == (
        "Halted",
        "ConfigMap precision-halt in system halts every policy: maintenance",
    )
    writes = len(controller.kube.writes)
    await finished(clock, controller.turn())
    assert len(controller.kube.writes) == writes, "a halted fleet costs no write"
    turn_off(controller.kube)
    await controller.halt.read()
    for _ in range(4):
        await finished(clock, controller.turn())
        await clock.advance(15.0)
    assert Mode.FP16 not in controller.modes.values()


async def test_a_switch_that_is_turned_while_a_pass_gathers_wins_over_its_decision() -> None:
    clock = ManualClock()
    controller = Controller(clock)
    controller.fleet("a")
    await finished(clock, controller.turn())
    turn_on(controller.kube)

    original = controller.gatherer.gather

    async def gather(*arguments: object) -> object:
        found = await original(*arguments)  # type: ignore[arg-type]
        await controller.halt.read()
        return found

    controller.gatherer.gather = gather  # type: ignore[method-assign,assignment]
    generation = controller.state.generation
    with pytest.raises(Halted, match="halts every policy"):
        await finished(clock, controller.turn())
    assert controller.state.generation == generation


async def test_an_assignment_without_its_policy_stays_while_all_is_halted() -> None:
    clock = ManualClock()
    controller = Controller(clock)
    controller.fleet("a")
    await finished(clock, controller.turn())
    del controller.kube.objects[POLICIES.plural, "default", "fleet"]
    turn_on(controller.kube)
    await controller.halt.read()
    await finished(clock, controller.turn())
    assert controller.assigned
    turn_off(controller.kube)
    await controller.halt.read()
    await finished(clock, controller.turn())
    assert not controller.assigned
