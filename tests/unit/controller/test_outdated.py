"""A policy that people change in mid-pass: what was decided on the old one is not written any more."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress

import pytest

from precision_operator.api.modes import Mode
from precision_operator.api.policy import Policy, PolicyKey
from precision_operator.api.state import Phase, State
from precision_operator.core.decide import decide
from precision_operator.core.model import Observation
from precision_operator.errors import Conflict, Unavailable
from precision_operator.kube.port import ASSIGNMENTS, POLICIES, JsonObject
from tests.support.controller import KEY
from tests.support.reconciling import FAST, NAMES, OVERFLOW, Rig, promoted

AT_ONCE = {**FAST, "strategy": {"steps": [{"setWeight": 100}]}}
LEFT_OUT = len(NAMES) - 1
Change = Callable[[Rig], None]


def edit(rig: Rig) -> None:
    rig.policy["spec"]["evaluation"] = {**rig.policy["spec"]["evaluation"], "failureLimit": 1}
    rig.policy["metadata"]["generation"] += 1


def suspend(rig: Rig) -> None:
    rig.policy["spec"]["suspend"] = True
    rig.policy["metadata"]["generation"] += 1


def observe(rig: Rig) -> None:
    rig.policy["spec"]["enforcement"] = "Observe"
    rig.policy["metadata"]["generation"] += 1


def command(rig: Rig) -> None:
    rig.policy["metadata"].setdefault("annotations", {})["precision.genesis.ai/abort"] = "1"


def recreate(rig: Rig) -> None:
    rig.policy["metadata"]["uid"] = "another"
    rig.policy["metadata"]["generation"] -= 1


def reapply(rig: Rig) -> None:
    """What decides nothing: labels, annotations of others, and the status."""
    metadata = rig.policy["metadata"]
    metadata["labels"] = metadata["annotations"] = {"applied": "again"}
    rig.policy["status"] = {**rig.policy.get("status", {}), "members": 7}
    metadata["resourceVersion"] = "another"


def seen(rig: Rig, change: Change) -> None:
    change(rig)
    rig.inventory.observe(POLICIES, rig.policy, deleted=False)


def delete(rig: Rig) -> None:
    """The watch says so; what is read is deleted too late for this pass."""
    rig.inventory.observe(POLICIES, rig.policy, deleted=True)


def assignment(rig: Rig) -> JsonObject:
    return rig.kube.objects[ASSIGNMENTS.plural, KEY.namespace, KEY.name]


def at_the_first_pod(rig: Rig, change: Callable[[], object]) -> None:
    """What happens while the first pod of a pass is written, which is after the commit."""

    def before_write(verb: str, key: tuple[str, str, str]) -> None:
        if key[0] == "pods":
            rig.kube.before_write = lambda verb, key: None
            change()

    rig.kube.before_write = before_write


@pytest.mark.parametrize("change", [edit, suspend, observe, command, recreate])
async def test_a_promotion_is_not_carried_on_once_its_policy_has_changed(change: Change) -> None:
    rig = Rig()
    rig.fleet(*NAMES, **AT_ONCE)
    at_the_first_pod(rig, lambda: seen(rig, change))
    await rig.until(lambda: rig.pod_writes != [])
    assert len(rig.pod_writes) == 1
    assert rig.state.enforce, "the commit had been made before"


async def test_what_was_left_out_is_looked_at_again_at_once_and_goes_on() -> None:
    rig = Rig()
    rig.fleet(*NAMES, **AT_ONCE)
    at_the_first_pod(rig, lambda: seen(rig, edit))
    while not rig.pod_writes:
        ended = await rig.go()
        await rig.manual.advance(1.0)
    assert ended is not None
    assert (ended.next_seconds, ended.failures) == (0.0, ())
    await rig.go()
    assert set(rig.modes.values()) == {Mode.FP16}


async def test_a_promotion_is_not_carried_on_once_its_policy_is_gone() -> None:
    rig = Rig()
    rig.fleet(*NAMES, **AT_ONCE)
    at_the_first_pod(rig, lambda: delete(rig))
    await rig.until(lambda: rig.pod_writes != [])
    assert len(rig.pod_writes) == 1


def lose(rig: Rig, body: JsonObject) -> None:
    """A person deletes the assignment, and the watch says so."""
    rig.kube.objects.pop((ASSIGNMENTS.plural, KEY.namespace, KEY.name), None)
    rig.inventory.observe(ASSIGNMENTS, body, deleted=True)


def make_anew(rig: Rig, body: JsonObject) -> None:
    """It has another uid by now."""
    lose(rig, body)
    rig.inventory.observe(ASSIGNMENTS, {**body, "metadata": {**body["metadata"], "uid": "z"}}, deleted=False)  # type: ignore[dict-item]


async def about_to_write(*, rolls_back: bool) -> Rig:
    """A fleet whose next pass promotes all of it, or rolls all of it back."""
    rig = Rig()
    rig.fleet(*NAMES, **AT_ONCE)
    if rolls_back:
        await rig.until(lambda: rig.assigned and rig.state.phase is Phase.HEALTHY)
        rig.trainers.bad = {f"{name}-abc-1": OVERFLOW for name in NAMES}
        rig.kube.writes.clear()
    return rig


@pytest.mark.parametrize("change", [lose, make_anew])
@pytest.mark.parametrize("rolls_back", [False, True])
async def test_only_a_rollback_is_carried_on_once_its_assignment_is_gone(
    change: Callable[[Rig, JsonObject], None], rolls_back: bool
) -> None:
    rig = await about_to_write(rolls_back=rolls_back)
    at_the_first_pod(rig, lambda: change(rig, assignment(rig)))
    await rig.until(lambda: rig.pod_writes != [])
    assert len(rig.pod_writes) == (len(NAMES) if rolls_back else 1)


async def test_an_assignment_that_the_watch_does_not_know_yet_stops_no_write(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.fleet(*NAMES, **AT_ONCE)
    watch = rig.watch

    def behind() -> None:
        watch()
        rig.inventory.relisted(ASSIGNMENTS, None, ())

    monkeypatch.setattr(rig, "watch", behind)
    await rig.until(lambda: rig.pod_writes != [])
    assert len(rig.pod_writes) == len(NAMES)


async def test_what_decides_nothing_stops_no_write() -> None:
    rig = Rig()
    rig.fleet(*NAMES, **AT_ONCE)
    at_the_first_pod(rig, lambda: seen(rig, reapply))
    await rig.until(lambda: rig.pod_writes != [])
    assert len(rig.pod_writes) == len(NAMES)


@pytest.mark.parametrize("catches_up", [False, True])
async def test_a_watch_that_is_behind_what_was_read_stops_no_write(
    catches_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    rig.fleet(*NAMES, **AT_ONCE)
    watch = rig.watch

    def behind() -> None:
        watch()
        rig.policy["metadata"]["generation"] += 1

    monkeypatch.setattr(rig, "watch", behind)
    at_the_first_pod(rig, watch if catches_up else lambda: None)
    await rig.until(lambda: rig.pod_writes != [])
    assert len(rig.pod_writes) == len(NAMES)


@pytest.mark.parametrize("between", [edit, suspend])
@pytest.mark.parametrize("rolls_back", [False, True])
async def test_a_watch_that_catches_up_in_steps_stops_no_write(
    between: Change, rolls_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells of the policy as it was, and in mid-pass of one that is older than what was read."""
    rig = await about_to_write(rolls_back=rolls_back)
    watch, newest = rig.watch, copy.deepcopy(rig.policy)

    def two_behind() -> None:
        watch()
        between(rig)
        older.append(copy.deepcopy(rig.policy))
        rig.policy["spec"] = newest["spec"]
        rig.policy["metadata"]["generation"] += 1

    older = list[JsonObject]()
    monkeypatch.setattr(rig, "watch", two_behind)
    at_the_first_pod(rig, lambda: rig.inventory.observe(POLICIES, older[-1], deleted=False))
    await rig.until(lambda: rig.pod_writes != [])
    assert len(rig.pod_writes) == len(NAMES)


@pytest.mark.parametrize(
    ("change", "left_out"),
    [(edit, 0), (command, 0), (recreate, 0), (reapply, 0), (suspend, LEFT_OUT), (observe, LEFT_OUT)],
)
async def test_a_rollback_goes_on_unless_its_policy_stops_it(change: Change, left_out: int) -> None:
    rig = await promoted()
    rig.kube.writes.clear()
    at_the_first_pod(rig, lambda: seen(rig, change))
    rig.trainers.bad = {f"{name}-abc-1": OVERFLOW for name in NAMES}
    await rig.until(lambda: rig.pod_writes != [])
    assert len(rig.pod_writes) == len(NAMES) - left_out
    await rig.go()
    await rig.go()
    assert len(rig.pod_writes) == len(NAMES) - left_out


async def test_a_rollback_goes_on_though_its_policy_is_deleted() -> None:
    rig = await promoted()
    rig.kube.writes.clear()
    at_the_first_pod(rig, lambda: delete(rig))
    rig.trainers.bad = {f"{name}-abc-1": OVERFLOW for name in NAMES}
    await rig.until(lambda: rig.pod_writes != [])
    assert len(rig.pod_writes) == len(NAMES)


@pytest.mark.parametrize(("change", "commits"), [(edit, False), (suspend, False), (reapply, True)])
async def test_no_promotion_is_committed_on_a_policy_that_has_changed_since(
    change: Change, commits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    rig.fleet(*NAMES, **AT_ONCE)
    confirm = rig.reconciler._committer._confirm

    async def confirmed(*args: object) -> None:
        await confirm(*args)  # type: ignore[arg-type]
        seen(rig, change)

    monkeypatch.setattr(rig.reconciler._committer, "_confirm", confirmed)
    if commits:
        await rig.until(lambda: rig.assigned and rig.state.enforce)
    else:
        with pytest.raises(Conflict, match="changed meanwhile"):
            await rig.until(lambda: rig.assigned and rig.state.enforce)
    assert rig.state.enforce is commits


@pytest.mark.parametrize("delivery", ["Auto", "NewOnly"])
@pytest.mark.parametrize(("change", "commits"), [(edit, True), (command, True), (suspend, False)])
async def test_a_workload_is_held_by_itself_though_its_policy_changes_before_the_commit(
    delivery: str, change: Change, commits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await promoted()
    rig.policy["spec"]["delivery"] = delivery
    edit(rig)
    for _ in range(3):
        await rig.go()
        await rig.manual.advance(15.0)
    gather = rig.gatherer.gather

    async def changed(key: PolicyKey, policy: Policy, state: State) -> Observation:
        found = await gather(key, policy, state)
        if decide(policy, state, found, rig.manual.time()).state.phase is Phase.DEGRADED:
            seen(rig, change)
        return found

    monkeypatch.setattr(rig.gatherer, "gather", changed)
    rig.trainers.bad = {"a-abc-1": OVERFLOW}
    if commits:
        await rig.until(lambda: rig.state.phase is not Phase.HEALTHY)
        assert rig.state.phase is Phase.DEGRADED
    else:
        with pytest.raises(Conflict, match="changed meanwhile"):
            await rig.until(lambda: rig.state.phase is Phase.DEGRADED)


LATE = ("late1", "late2", "late3")
RESTARTED = "restarted"
MOST_PASSES = 40


def unselect(rig: Rig) -> None:
    rig.policy["spec"]["selector"] = {"matchLabels": {"fleet": "nobody"}}
    rig.policy["metadata"]["generation"] += 1


async def joined_beside_a_breach(change: Callable[[Rig], object]) -> list[str]:
    """The pods written in a pass that promotes those that joined and rolls one back; the first write brings a change."""
    rig = await promoted(*(f"w{number}" for number in range(8)))
    for name in LATE:
        rig.workload(name)
    written: list[str] = []

    def before_write(verb: str, key: tuple[str, str, str]) -> None:
        if key[0] != "pods":
            return
        if not written and not rig.state.held:
            rig.trainers.bad = {"w0-abc-1": OVERFLOW}
            raise Unavailable("not yet", status=503)
        written.append(key[2])
        if len(written) == 1:
            change(rig)

    rig.kube.before_write = before_write
    await rig.until(lambda: written != [])
    return written


@pytest.mark.parametrize(
    "change",
    [lambda rig: seen(rig, unselect), lambda rig: seen(rig, command), delete, lambda rig: lose(rig, assignment(rig))],
    ids=["edit", "command", "deletion of the policy", "deletion of the assignment"],
)
async def test_once_what_was_decided_on_changed_a_rollback_goes_on_and_no_promotion_beside_it(
    change: Callable[[Rig], object],
) -> None:
    assert await joined_beside_a_breach(change) == ["late1-abc-1", "w0-abc-1"]


async def test_what_stops_a_rollback_stops_the_promotions_beside_it() -> None:
    assert await joined_beside_a_breach(lambda rig: seen(rig, suspend)) == ["late1-abc-1"]


async def test_where_nothing_changes_promotions_go_on_beside_a_rollback() -> None:
    written = await joined_beside_a_breach(lambda rig: None)
    assert written == [*(f"{name}-abc-1" for name in LATE), "w0-abc-1"]


async def without_a_place(*, goes: bool = True) -> Rig:
    """A fleet that is guarded, but for one that is held by itself: its pod is taken away and has no replacement.

    ``goes``: or that write is refused, and sent again in each pass.
    """
    rig = Rig()
    rig.fleet(*(f"w{number}" for number in range(8)), **FAST)
    rig.workload(RESTARTED, hot=False)
    number = 1
    for _ in range(MOST_PASSES):
        await rig.go()
        if not any(name.startswith(RESTARTED) for name in rig.modes):
            number += 1
            rig.replace(RESTARTED, hot=False, number=number)
        await rig.manual.advance(15.0)
        if rig.state.phase is Phase.HEALTHY:
            break

    def refused(verb: str, key: tuple[str, str, str]) -> None:
        if key[0] in ("pods", "pods/eviction") and not goes:
            raise Unavailable("it stays", status=503)

    rig.kube.before_write = refused
    rig.trainers.bad = {f"{RESTARTED}-abc-{number}": OVERFLOW}
    await rig.until(lambda: bool(rig.state.restarts) and (not goes or len(rig.modes) == 8))
    return rig


@pytest.mark.parametrize("change", [lambda rig: seen(rig, unselect), delete], ids=["edit", "deletion"])
async def test_promotions_beside_a_held_workload_without_a_place_are_left_out(change: Callable[[Rig], object]) -> None:
    rig = await without_a_place()
    for name in LATE:
        rig.workload(name)
    rig.kube.writes.clear()
    at_the_first_pod(rig, lambda: change(rig))
    await rig.until(lambda: rig.pod_writes != [])
    assert len(rig.pod_writes) == 1


def changed_once_confirmed(rig: Rig, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    confirm = rig.reconciler._committer._confirm

    async def confirmed(*args: object) -> None:
        await confirm(*args)  # type: ignore[arg-type]
        seen(rig, change)

    monkeypatch.setattr(rig.reconciler._committer, "_confirm", confirmed)


async def test_no_promotion_is_committed_beside_a_held_workload_once_its_policy_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await without_a_place()
    for name in LATE:
        rig.workload(name)
    changed_once_confirmed(rig, edit, monkeypatch)
    with pytest.raises(Conflict, match="changed meanwhile"):
        await rig.until(lambda: len(rig.state.members) > 9)


async def test_what_a_rollback_writes_does_not_wait_though_a_promotion_is_committed_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await without_a_place(goes=False)
    for name in LATE:
        rig.workload(name)
    changed_once_confirmed(rig, edit, monkeypatch)
    await rig.until(lambda: len(rig.state.members) > 9)


async def test_a_first_rollback_does_not_wait_though_another_fallback_is_committed_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await promoted()
    rig.policy["spec"].update(fallback="bf16", delivery="NewOnly")
    rig.policy["metadata"]["generation"] += 1
    rig.trainers.bad = {"a-abc-1": OVERFLOW}
    gather, confirm = rig.gatherer.gather, rig.reconciler._committer._confirm
    phase = Phase.HEALTHY

    async def gathered(key: PolicyKey, policy: Policy, state: State) -> Observation:
        nonlocal phase
        found = await gather(key, policy, state)
        phase = decide(policy, state, found, rig.manual.time()).state.phase
        return found

    async def confirmed(*args: object) -> None:
        if phase is Phase.HEALTHY:
            raise Unavailable("the new fallback is committed with the rollback, and not before", status=503)
        await confirm(*args)  # type: ignore[arg-type]
        seen(rig, edit)

    monkeypatch.setattr(rig.gatherer, "gather", gathered)
    monkeypatch.setattr(rig.reconciler._committer, "_confirm", confirmed)
    for _ in range(MOST_PASSES):
        with suppress(Unavailable):
            await rig.go()
        await rig.manual.advance(15.0)
        if rig.state.held:
            break
    assert (rig.state.phase, rig.state.fallback) == (Phase.DEGRADED, Mode.BF16)
