"""What admission is asked before anything depends on it, and what its answers are worth."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from precision_operator.api.policy import PolicyKey
from precision_operator.controller.echo import (
    PATIENCE_SECONDS,
    SERVERS_FRESH_SECONDS,
    SETTLE_SECONDS,
    UNKNOWN_SERVERS,
    Echo,
    Echoes,
    moved_on,
)
from precision_operator.core.model import Admission
from precision_operator.errors import Forbidden, Unavailable
from precision_operator.kube.port import ASSIGNMENTS, POLICIES
from precision_operator.reasons import Reason
from precision_operator.webhook.mode import AdmissionMode
from precision_operator.webhook.replicas import Replicas
from tests.support import objects as b
from tests.support.manual_clock import ManualClock, finished, settle
from tests.support.server import Server

KEY = PolicyKey("default", "p")
A, B, C = "https://10.0.0.1:6443", "https://10.0.0.2:6443", "https://[fd00::3]:6443"


def server(*addresses: str, generation: int = 7) -> Server:
    kube = Server(*addresses)
    kube.put(POLICIES, b.policy())
    kube.put(ASSIGNMENTS, {"metadata": {"name": "p"}, "generation": generation})
    return kube


class Asking:
    """Questions to one server, and how long each took."""

    def __init__(self, kube: Server) -> None:
        self.clock = ManualClock()
        self._echoes = Echoes(kube, self.clock)

    async def __call__(self, generation: int = 7, *, awaited: bool = True) -> tuple[Echo, float]:
        began = self.clock.now
        echo = await finished(self.clock, self._echoes.ask(KEY, generation=generation, awaited=awaited))
        return echo, round(self.clock.now - began, 2)


async def test_every_api_server_is_asked_at_once_and_one_answer_each_is_enough() -> None:
    kube = server("10.0.0.1", "10.0.0.2", "fd00::3")
    echo, seconds = await Asking(kube)()
    assert echo.confirmed
    assert sorted(kube.asked) == [A, B, C]
    assert seconds == 0
    assert echo.policy is not None
    assert kube.writes == []


class Beside(Replicas):
    """Replicas of the webhook that answer what a test wants."""

    def __init__(self, against: Admission | None) -> None:
        self.against = against
        self.asked: list[tuple[str, str, int, bool]] = []

    async def ask(self, namespace: str, name: str, *, generation: int, awaited: bool = True) -> Admission | None:
        self.asked.append((namespace, name, generation, awaited))
        return self.against


@pytest.mark.parametrize("against", [None, Admission(None, Reason.WEBHOOK_UNREACHABLE, "one does not answer")])
async def test_in_webhook_mode_an_echo_counts_once_every_replica_knows_the_generation(
    against: Admission | None,
) -> None:
    replicas = Beside(against)
    echoes = Echoes(server("10.0.0.1"), ManualClock(), mode=AdmissionMode.WEBHOOK, replicas=replicas)
    echo = await echoes.ask(KEY, generation=7)
    assert echo.confirmed is (against is None)
    assert against is None or echo.admission == against
    assert replicas.asked == [("default", "p", 7, True)]
    assert echo.policy is not None


async def test_replicas_are_asked_without_a_policy_too() -> None:
    clock, replicas = ManualClock(), Beside(None)
    echoes = Echoes(server(), clock, mode=AdmissionMode.WEBHOOK, replicas=replicas)
    assert (await finished(clock, echoes.without_policy(KEY, 9))).confirmed
    assert replicas.asked == [("default", "p", 9, True)]


@pytest.mark.parametrize(
    ("mode", "shown", "missing"),
    [
        (AdmissionMode.POLICY, "by admission policy", "manifests/admission are not installed"),
        (AdmissionMode.WEBHOOK, "by the operator's webhook", "gets no answer of the webhook"),
    ],
)
async def test_a_person_can_see_who_gives_new_pods_their_mode(mode: AdmissionMode, shown: str, missing: str) -> None:
    kube = server("10.0.0.1")
    echoes = Echoes(kube, ManualClock(), mode=mode)
    assert shown in (await echoes.ask(KEY, generation=7)).admission.message
    kube.installed = False
    assert missing in (await echoes.ask(KEY, generation=7, awaited=False)).admission.message


async def test_a_server_that_is_not_ready_is_not_asked() -> None:
    kube = server("10.0.0.1", "10.0.0.2")
    slice_: Any = kube.objects["endpointslices", "default", "kubernetes"]
    slice_["endpoints"][1]["conditions"]["ready"] = False
    await Asking(kube)()
    assert kube.asked == [A]


async def test_one_server_that_is_behind_is_asked_until_it_knows() -> None:
    kube = server("10.0.0.1", "10.0.0.2")
    kube.known = {B: 6}
    asking = Asking(kube)
    task = asyncio.ensure_future(asking())
    await asking.clock.advance(1.0)
    assert not task.done()
    kube.known = {}
    echo, seconds = await task if task.done() else await finished(asking.clock, task)
    assert echo.confirmed
    assert seconds < PATIENCE_SECONDS
    assert kube.asked.count(A) == 1
    assert 5 < kube.asked.count(B) < 30, "with ever longer pauses in between"


async def test_patience_ends_and_says_who_is_behind() -> None:
    kube = server("10.0.0.1", "10.0.0.2")
    kube.known = {B: 6}
    echo, seconds = await Asking(kube)()
    assert (echo.admission.enforced, echo.admission.reason) == (False, "AdmissionBehind")
    assert B in echo.admission.message
    assert "generation 6" in echo.admission.message
    assert PATIENCE_SECONDS <= seconds < PATIENCE_SECONDS + 0.2


async def test_what_is_not_new_is_asked_once() -> None:
    kube = server("10.0.0.1")
    kube.known = {A: 6}
    echo, seconds = await Asking(kube)(awaited=False)
    assert not echo.confirmed
    assert (kube.asked, seconds) == ([A], 0)


async def test_a_later_generation_than_the_one_asked_for_will_do() -> None:
    kube = server("10.0.0.1", generation=9)
    echo, _ = await Asking(kube)(8)
    assert echo.confirmed


async def test_admission_that_knows_no_assignments_is_told_from_one_that_is_behind() -> None:
    kube = server("10.0.0.1")
    kube.installed = False
    echo, _ = await Asking(kube)()
    assert (echo.admission.enforced, echo.admission.reason) == (False, "NotEnforcing")
    assert "manifests/admission" in echo.admission.message
    assert echo.policy is not None, "what the policy is now is known all the same"


@pytest.mark.parametrize(
    "answer",
    [
        "0123456789abcdef/p/7",
        "/p/7",
        "p/7",
        "x",
        "/" * 100_000,
        "{nonce}/q/7",
        "{nonce}/p/٧",
        "{nonce}/p/",
        "{nonce}/p/-7",
    ],
)
async def test_a_replayed_or_forged_answer_is_none(answer: str) -> None:
    kube = server("10.0.0.1")
    kube.echo = answer
    echo, _ = await Asking(kube)()
    assert (echo.admission.enforced, echo.admission.reason) == (False, "NotEnforcing")
    again, _ = await Asking(kube)()
    assert again.admission == echo.admission, "the message holds nothing that changes: it is the same Event"


async def test_every_question_has_a_nonce_of_its_own() -> None:
    kube, seen = server("10.0.0.1", "10.0.0.2"), set()
    for _ in range(3):
        echo, _ = await Asking(kube)()
        assert echo.policy is not None
        policy: Any = echo.policy
        seen.add(policy["metadata"]["annotations"]["precision.genesis.ai/echo"])
    assert len(seen) == 3


async def test_servers_that_cannot_be_listed_are_asked_through_their_balancer_over_several_connections() -> None:
    kube = server()
    echo, seconds = await Asking(kube)()
    assert echo.confirmed
    assert kube.asked == [""] * UNKNOWN_SERVERS
    assert SETTLE_SECONDS <= seconds < SETTLE_SECONDS + 0.2
    kube.asked.clear()
    echo, seconds = await Asking(kube)(awaited=False)
    assert echo.confirmed
    assert (len(kube.asked), seconds) == (UNKNOWN_SERVERS, 0), "nothing has to settle"


async def test_a_server_that_cannot_be_reached_from_here_is_asked_through_the_balancer_for_a_while() -> None:
    kube = server("10.0.0.1", "10.0.0.2")
    kube.failing = {B: Unavailable("no route")}
    asking = Asking(kube)
    echo, _ = await asking()
    assert echo.confirmed
    assert kube.asked.count("") == UNKNOWN_SERVERS
    kube.asked.clear()
    await asking()
    assert kube.asked == [""] * UNKNOWN_SERVERS
    kube.failing.clear()
    kube.asked.clear()
    await asking.clock.advance(SERVERS_FRESH_SECONDS)
    await asking()
    assert sorted(kube.asked) == [A, B]


async def test_where_no_api_server_answers_nothing_is_known() -> None:
    kube = server()
    kube.failing = {"": Unavailable("away")}
    echo, _ = await Asking(kube)()
    assert (echo.admission.enforced, echo.admission.reason, echo.policy) == (None, "Unavailable", None)


async def test_a_right_that_is_missing_is_not_taken_for_a_no() -> None:
    kube = server("10.0.0.1")
    kube.failing = {A: Forbidden("may not patch precisionpolicies")}
    echo, _ = await Asking(kube)()
    assert (echo.admission.enforced, echo.admission.reason) == (None, "Forbidden")


async def test_a_policy_that_is_gone_cannot_be_asked_about() -> None:
    kube = server("10.0.0.1")
    del kube.objects["precisionpolicies", "default", "p"]
    echo, _ = await Asking(kube)()
    assert (echo.admission.enforced, echo.admission.reason, echo.policy) == (None, "PolicyGone", None)
    clock = ManualClock()
    task = asyncio.ensure_future(Echoes(kube, clock).without_policy(KEY, 7))
    await clock.advance(SETTLE_SECONDS / 2)
    assert not task.done()
    await clock.advance(SETTLE_SECONDS / 2)
    assert (await task).confirmed


async def test_the_servers_are_listed_again_in_time() -> None:
    kube = server("10.0.0.1")
    asking = Asking(kube)
    for _ in range(3):
        await asking()
    assert kube.reads.count(("get", "endpointslices", "kubernetes")) == 1
    server_two: Any = kube.objects["endpointslices", "default", "kubernetes"]
    server_two["endpoints"].append({"addresses": ["10.0.0.2"]})
    await asking.clock.advance(SERVERS_FRESH_SECONDS)
    kube.asked.clear()
    await asking()
    assert sorted(kube.asked) == [A, B]
    await settle()


def changed(**metadata: object) -> dict[str, Any]:
    policy = b.policy(annotations={"precision.genesis.ai/promote": "3"})
    policy["metadata"] |= metadata
    return policy


def test_a_decision_on_a_policy_that_changed_since_is_out_of_date() -> None:
    asked = changed()
    assert moved_on(asked, None) is None
    assert moved_on(asked, changed(resourceVersion="9", managedFields=[])) is None
    echoed = {
        "precision.genesis.ai/promote": "3",
        "precision.genesis.ai/echo": "x",
        "precision.genesis.ai/echo-nonce": "y",
    }
    assert moved_on(asked, changed(annotations=echoed)) is None
    for newer in (
        changed(uid="another"),
        changed(generation=2),
        changed(annotations={}),
        changed(annotations={"precision.genesis.ai/promote": "3", "precision.genesis.ai/abort": "3"}),
    ):
        assert moved_on(asked, newer) is not None
