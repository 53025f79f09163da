"""What a pass knows before it decides: who can still be asked, who may join, what the window still reaches."""

from dataclasses import replace

import pytest

from lab.model.world import NAN, World
from precision_operator.api.assignment import RESERVE_BYTES, fleet_bytes
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Delivery, Severity
from precision_operator.api.state import Failing, Phase
from precision_operator.contract import MAX_GENERATION, MAX_POD_GENERATION
from precision_operator.core.decide import decide
from precision_operator.core.derive import derive_facts
from precision_operator.core.facts import Facts
from precision_operator.core.model import PodSignals, PodView, Request
from precision_operator.core.progress import observed_mode
from precision_operator.reasons import Cause, Reason
from tests.support.fleets import answer, change, condition, fleet, held_names, promoted, respec, until
from tests.support.views import key, literal, pod, reported


def facts(world: World) -> Facts:
    return derive_facts(world.policy, world.state, world.observe(), world.now)


def undeclared(world: World, name: str, *hot: bool) -> None:
    """A workload whose template has lost the contract, its pods as they were."""
    pods = tuple(PodView(f"{name}-{n}", f"{name}-{n}", hot=one, started_mode=Mode.FP16) for n, one in enumerate(hot))
    world.modes.update({view.name: (Mode.FP16, 0) for view in pods})
    change(world, name, hot=False, literal=False, pods=pods, replicas=len(pods))


def test_of_workloads_without_the_contract_those_with_a_pod_that_reads_requests_can_be_rescued() -> None:
    world = fleet()
    undeclared(world, "hot-0", False)
    undeclared(world, "hot-1", True, False)
    found = facts(world)
    assert found.stuck == (key("hot-0"), key("hot-1"))
    assert [w.name for w, _ in found.fleet.rescuable] == ["hot-1"]


def test_of_two_kinds_with_the_same_name_only_the_one_that_cannot_be_moved_is_stuck() -> None:
    world = fleet()
    undeclared(world, "hot-0", True)
    twin = replace(world.workloads["hot-1"], key="apps/StatefulSet/hot-0")
    seen = world.observe()
    found = derive_facts(world.policy, world.state, replace(seen, workloads=(*seen.workloads, twin)), world.now)
    assert found.stuck == (key("hot-0"),)
    assert [w.key for w, _ in found.fleet.rescuable] == [key("hot-0")]
    assert twin.key in {w.key for w, _ in found.movable}


def test_what_cannot_be_moved_joins_no_cohort_and_keeps_the_place_it_has() -> None:
    world = fleet()
    undeclared(world, "hot-0", False)
    assert key("hot-0") not in facts(world).places.in_cohort(len(facts(world).attempt.stages) - 1, ()).members
    world = promoted()
    members = world.state.members
    undeclared(world, "hot-0", False)
    assert key("hot-0") in facts(world).places.in_cohort(len(facts(world).attempt.stages) - 1, members).members


def test_the_window_is_clear_once_it_holds_nothing_from_before_the_last_answer() -> None:
    world = promoted()
    world.bad = {"hot-2": {Signal.NON_FINITE: 3.0}}
    world.run(4)
    incident, window = world.state.incident, world.policy.spec.evaluation.window_seconds
    assert incident is not None
    for ago, clear in ((window - 1.0, False), (window, True)):
        last = replace(incident, decided_at=world.now - 2 * window, last_ack_at=world.now - ago)
        world.state = replace(world.state, incident=last)
        assert facts(world).window_clear is clear


def test_what_the_window_still_reaches_is_not_known_before_the_metrics_have_been_read() -> None:
    world = promoted()
    assert derive_facts(world.policy, world.state, replace(world.observe(), evaluation=None), world.now).window_clear
    world.bad = {"hot-2": {Signal.NON_FINITE: 3.0}}
    world.run(4)
    world.bad, world.now = {}, world.now + 3600.0
    answer(world, "retry")
    unread = replace(world.observe(), evaluation=None)
    assert [h.name for h in decide(world.policy, world.state, unread, world.now).state.held] == ["hot-2"]
    assert world.decide().state.held == ()


def test_how_long_something_has_stood_is_known_before_the_metrics_have_been_read() -> None:
    world = fleet()
    unread = replace(world.observe(), evaluation=None)
    assert derive_facts(world.policy, world.state, unread, world.now).stood_seconds(world.now - 60.0) == 60.0


def test_who_crashes_while_it_is_moved_has_failed_though_its_last_samples_still_show_the_old_precision() -> None:
    world = fleet()
    world.unresponsive = set(world.workloads) - {"literal"}
    world.run(2, 1.0)
    (member,) = world.state.members
    assert world.state.phase is Phase.PROGRESSING
    assert world.step(1.0).state.failing == (), "asked, and merely slow to acknowledge"
    world.crash(member.rpartition("/")[2])
    assert (world.step(1.0).state.phase, world.state.reason) == (Phase.ROLLING_BACK, "TrainingFailing")


def test_a_pod_that_crashes_while_it_is_moved_has_failed_though_it_is_seen_and_the_others_train() -> None:
    world = fleet(strategy={"steps": [{"setWeight": 100}, {"pause": {"duration": "1h"}}]})
    world.add("two", pods=2)
    world.run(3)
    seen = world.observe()
    (two,), evaluation = [w for w in seen.workloads if w.name == "two"], seen.evaluation
    assert evaluation is not None
    (crashing, other), rest = two.pods, [w for w in seen.workloads if w is not two]
    two = replace(two, pods=(replace(crashing, crashing=True), other))
    pods = {**evaluation.pods, crashing.name: replace(evaluation.pods[crashing.name], mode=Mode.FP32)}
    seen = replace(seen, workloads=(*rest, two), evaluation=replace(evaluation, pods=pods))
    found = derive_facts(world.policy, world.state, seen, world.now)
    assert world.state.phase is Phase.PROGRESSING
    assert found.verdict_of[two.key].breaches == (Signal.FAILURES,)


def test_of_what_lost_the_contract_and_can_be_rescued_only_members_are_judged() -> None:
    world = promoted()
    undeclared(world, "hot-0", True)
    assert key("hot-0") in facts(world).verdict_of
    members = tuple(member for member in world.state.members if member != key("hot-0"))
    world.state = replace(world.state, members=members)
    assert [w.name for w, _ in facts(world).fleet.rescuable] == ["hot-0"]
    assert key("hot-0") not in facts(world).verdict_of


def test_of_a_workload_without_a_pod_nothing_is_judged() -> None:
    world = promoted()
    world.scale("hot-0", 0)
    change(world, "hot-0", pods=())
    assert key("hot-0") not in facts(world).verdict_of


@pytest.mark.parametrize("crashing", [False, True])
def test_a_workload_is_not_judged_in_a_mode_that_only_some_of_its_pods_were_asked_for(*, crashing: bool) -> None:
    world = promoted()
    (asked,) = world.workloads["hot-0"].pods
    change(world, "hot-0", pods=(asked, replace(asked, name="new", uid="new", request=None, crashing=crashing)))
    assert key("hot-0") not in facts(world).verdict_of


@pytest.mark.parametrize(
    ("phase", "stands", "judged"),
    [(Phase.HEALTHY, False, True), (Phase.PROGRESSING, True, True), (Phase.PROGRESSING, False, False)],
    ids=["promoted", "in breach", "on its way"],
)
def test_who_was_asked_and_reports_another_mode_is_judged_once_it_was_promoted_or_while_it_breaches(
    phase: Phase, *, stands: bool, judged: bool
) -> None:
    world = promoted()
    (one,) = world.workloads["hot-0"].pods
    world.modes[one.name] = (Mode.FP32, world.state.generation)
    breach = Failing(key("hot-0"), Signal.OVERFLOW, Severity.P1, world.now)
    world.state = replace(world.state, phase=phase, failing=(breach,) if stands else ())
    assert (key("hot-0") in facts(world).verdict_of) is judged


def test_a_workload_that_one_of_its_pods_reports_nothing_of_is_unknown_and_not_left_out() -> None:
    world = fleet(strategy={"steps": [{"setWeight": 100}, {"pause": {"duration": "1h"}}]})
    world.add("two", pods=2)
    until(world, lambda w: key("two") in w.state.members)
    world.run(2)
    observation = world.observe()
    assert observation.evaluation is not None
    (two,) = (w for w in observation.workloads if w.key == key("two"))
    seen = {name: signals for name, signals in observation.evaluation.pods.items() if name != two.pods[0].name}
    assert len(seen) < len(observation.evaluation.pods)
    partly = replace(observation, evaluation=replace(observation.evaluation, pods=seen))
    facts = derive_facts(world.policy, world.state, partly, world.now)
    assert world.state.phase is Phase.PROGRESSING
    assert facts.verdict_of[key("two")].unknown


@pytest.mark.parametrize(
    ("attempts", "level", "expected"), [(0, 0.4, 0.4), (1, 0.4, 0.1), (1, 0.02, 0.02), (1, None, None)]
)
def test_another_attempt_asks_for_its_own_share_of_good_runs_where_runs_are_asked_for_at_all(
    attempts: int, level: float | None, expected: float | None
) -> None:
    """``promoteBelow: null``: not breached is enough."""
    world = fleet(criteria={"failures": {"promoteBelow": level}}, reenable={"success": 0.9})
    world.state = replace(world.state, attempts=attempts)
    assert facts(world).attempt.promotion[Signal.FAILURES].promote_below == pytest.approx(expected)


@pytest.mark.parametrize(
    ("speed", "own", "expected"), [(1.0, None, 1.0), (1.0, 1.2, 1.2), (0, None, None), (0, 1.2, 1.2)]
)
def test_another_attempt_asks_for_speed_where_it_is_to(speed: float, own: float | None, expected: float | None) -> None:
    world = fleet(criteria={"speed": {"promoteAbove": own}}, reenable={"speed": speed})
    world.state = replace(world.state, attempts=1)
    assert facts(world).attempt.promotion[Signal.SPEED].promote_above == expected


def test_a_workload_that_is_assigned_reduced_precision_is_guarded_though_it_is_no_member() -> None:
    """Of a fleet whose target has changed nobody is a member, and what was moved is looked after all the same."""
    world = promoted()
    world.state = replace(world.state, members=())
    assert {w.name for w, _ in facts(world).fleet.residual} == set(world.workloads)
    assert {v.workload.name for v in facts(world).verdicts} == set(world.workloads)
    assert facts(world).fleet.moved_count == len(world.workloads), "a share of the fleet is of them too"
    world.scale("hot-0", 0)
    assert "hot-0" not in {w.name for w, _ in facts(world).fleet.residual}
    new_only = replace(world.policy, spec=replace(world.policy.spec, delivery=Delivery.NEW_ONLY))
    assert derive_facts(new_only, world.state, world.observe(), world.now).fleet.residual == ()


FP16, FP32 = pod("a", hot=False, started_mode=Mode.FP16), pod("b", hot=False, started_mode=Mode.FP32)
UNKNOWN = pod("c", hot=False, started_mode=None)


@pytest.mark.parametrize(
    ("pods", "said", "mode"),
    [
        ((FP32,), {}, Mode.FP32),
        ((FP32, FP16), {}, Mode.FP16),
        ((FP16,), {"a": Mode.FP32}, Mode.FP32),
        ((FP32,), {"b": Mode.BF16}, Mode.BF16),
        ((UNKNOWN,), {}, None),
        ((UNKNOWN, FP16), {}, None),
        ((UNKNOWN,), {"c": Mode.FP16}, Mode.FP16),
        ((replace(UNKNOWN, pending=True),), {}, Mode.BF16),
        ((replace(UNKNOWN, pending=True),), {"c": Mode.FP16}, Mode.FP16),
        ((replace(FP16, crashing=True), FP32), {}, Mode.FP32),
        ((replace(FP16, backing_off=True), FP32), {}, Mode.FP32),
        ((replace(FP16, terminating=True),), {}, Mode.BF16),
        ((), {}, Mode.BF16),
    ],
    ids=[
        "its environment says it",
        "of several the least safe",
        "its process knows better",
        "its process has fallen back",
        "its environment refers to something",
        "one of two is not known",
        "its process says it",
        "what has not started trains in nothing",
        "what says so has started, though its pod lags",
        "what crashes trains in nothing",
        "what waits in back-off trains in nothing",
        "what leaves trains in nothing soon",
        "nothing runs",
    ],
)
def test_a_workload_is_observed_by_its_processes_then_by_what_its_pods_were_started_in(
    pods: tuple[PodView, ...], said: dict[str, Mode], mode: Mode | None
) -> None:
    seen = reported(**{name: PodSignals(found, 0) for name, found in said.items()})
    assert observed_mode(literal(pods=pods), seen, idle=Mode.BF16) is mode


def test_a_held_workload_keeps_its_place_in_no_cohort() -> None:
    world = promoted()
    world.bad = {"hot-2": {Signal.NON_FINITE: 3.0}}
    world.run(2)
    assert held_names(world) == {"hot-2"}
    assert key("hot-2") not in facts(world).places.in_cohort(len(facts(world).attempt.stages) - 1, ()).members
    assert "hot-2" not in {w.name for w, _ in facts(world).fleet.members}


@pytest.mark.slow
@pytest.mark.parametrize("written", [MAX_GENERATION, MAX_GENERATION - 1, MAX_POD_GENERATION])
@pytest.mark.parametrize("by_admission", [False, True], ids=["request", "admitted"])
def test_no_pod_takes_the_operators_generation_to_its_end(written: int, by_admission: bool) -> None:
    """The API server refuses an assignment above MAX_GENERATION: nothing could be rolled back any more."""
    world = promoted()
    for _ in range(4):
        (one, *rest) = world.workloads["hot-1"].pods
        stranger = {"admitted": (("fleet", written),)} if by_admission else {"request": Request(written, Mode.FP16)}
        change(world, "hot-1", pods=(replace(one, **stranger), *rest))
        world.bad = dict.fromkeys(world.workloads, NAN)
        until(world, lambda w: w.state.phase is Phase.HELD)
        assert world.state.generation <= MAX_POD_GENERATION + 100
        assert world.really_in(Mode.FP16) == set()
        world.bad = {}
        world.run(30)
        answer(world, "retry")
        until(world, lambda w: w.state.phase is Phase.HEALTHY)


def test_a_generation_that_a_series_cannot_have_is_none() -> None:
    world = promoted()
    seen = world.observe()
    (one, *_), evaluation = seen.workloads[0].pods, seen.evaluation
    assert evaluation is not None

    def reported_generation(number: int) -> int:
        pods = {**evaluation.pods, one.name: replace(evaluation.pods[one.name], generation=number)}
        observation = replace(seen, evaluation=replace(evaluation, pods=pods))
        return derive_facts(world.policy, world.state, observation, world.now).fleet.reported_generation(one)

    assert reported_generation(MAX_POD_GENERATION) == MAX_POD_GENERATION
    assert reported_generation(MAX_POD_GENERATION + 1) == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"pending": True}, {}), ({"hot": False}, {}), ({}, {"sampled_at": None}), ({}, {"runs_on": None})],
    ids=["it has not started", "it takes no request", "it was never sampled", "nobody knows its process group"],
)
def test_a_pod_joins_without_the_others_of_its_workload_only_where_it_can_be_asked_and_watched(
    changes: dict[str, object], said: dict[str, object]
) -> None:
    world = fleet()
    world.world_sizes["hot-0"] = 1
    (one,), seen = world.workloads["hot-0"].pods, world.observe()
    assert facts(world).fleet.may_join(one)
    assert seen.evaluation is not None
    signals = replace(seen.evaluation.pods[one.name], **said)  # type: ignore[arg-type]
    observation = replace(seen, evaluation=replace(seen.evaluation, pods={one.name: signals}))
    found = derive_facts(world.policy, world.state, observation, world.now)
    assert not found.fleet.may_join(replace(one, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(("older_seconds", "watched"), [(0.0, True), (0.1, False)])
def test_a_pod_is_watched_while_its_newest_sample_is_no_older_than_the_policy_believes(
    older_seconds: float, watched: bool
) -> None:
    world = fleet()
    (one,), seen = world.workloads["hot-0"].pods, world.observe()
    assert seen.evaluation is not None
    sampled_at = world.now - world.policy.spec.evaluation.max_sample_age_seconds - older_seconds
    signals = replace(seen.evaluation.pods[one.name], sampled_at=sampled_at)
    observation = replace(seen, evaluation=replace(seen.evaluation, pods={one.name: signals}))
    found = derive_facts(world.policy, world.state, observation, world.now).fleet
    assert found.is_watched(replace(one, created_at=0.0)) is watched


@pytest.mark.parametrize(("missing_bytes", "accepted"), [(0, ("True", "Accepted")), (1, ("False", "FleetTooLarge"))])
def test_a_fleet_is_accepted_as_long_as_its_assignment_fits(
    monkeypatch: pytest.MonkeyPatch, missing_bytes: int, accepted: tuple[str, str]
) -> None:
    world = fleet()
    room = fleet_bytes(map(key, world.workloads)) - missing_bytes
    monkeypatch.setattr("precision_operator.core.facts.OBJECT_LIMIT_BYTES", RESERVE_BYTES + room)
    world.step()
    found = condition(world, "Accepted")
    assert (found.status, found.reason) == accepted


def test_the_part_of_a_workload_that_moves_is_complete_with_its_own_pods() -> None:
    world = fleet(unit="Pod")
    world.add("two", pods=2)
    world.world_sizes["two"] = 1
    world.state = replace(world.state, shares={key("two"): 1})
    found = facts(world).fleet
    part = found.part(world.workloads["two"])
    assert (len(part.pods), part.replicas) == (1, 1)
    assert found.asked_part((part, Delivery.HOT))[0].pods == (), "it is not judged before it is asked"


def test_members_are_wanted_in_the_old_target_until_the_new_one_is_taken_up() -> None:
    world = promoted()
    respec(world, target=Mode.BF16)
    assert facts(world).wanted(world.workloads["hot-0"]) is Mode.FP16


def test_a_halt_is_named_before_the_pause_of_a_policy() -> None:
    world = fleet(suspend=True)
    world.halted = Cause(Reason.HALTED, "maintenance")
    assert facts(world).paused == world.halted


def test_a_paused_policy_that_only_observes_says_nothing_of_what_it_would_do() -> None:
    world = fleet(suspend=True, enforcement="Observe")
    world.step()
    assert "WouldAct" not in {condition.type for condition in world.summary.conditions}


@pytest.mark.parametrize("request_of_its_own", [None, Request(MAX_POD_GENERATION, Mode.FP16)])
def test_a_generation_that_no_assignment_has_is_none_and_all_else_of_its_pod_is_believed(
    request_of_its_own: Request | None,
) -> None:
    world = fleet()
    admitted = (("other", MAX_POD_GENERATION), ("fleet", MAX_POD_GENERATION + 1))
    (one,) = world.workloads["hot-0"].pods
    change(world, "hot-0", pods=(replace(one, request=request_of_its_own, admitted=admitted),))
    (believed,) = next(w for w in facts(world).workloads if w.name == "hot-0").pods
    assert (believed.request, believed.admitted) == (request_of_its_own, admitted[:1])


@pytest.mark.parametrize(("unobservable", "mode"), [(set(), Mode.FP16), ({"hot-0"}, None)], ids=["reported", "silent"])
def test_a_pod_of_which_only_a_reference_says_its_start_has_started_in_what_its_process_reports(
    unobservable: set[str], mode: Mode | None
) -> None:
    world = promoted()
    (one,) = world.workloads["hot-0"].pods
    change(world, "hot-0", pods=(replace(one, started_mode=None),))
    world.unobservable = unobservable
    (believed,) = next(w for w in facts(world).workloads if w.name == "hot-0").pods
    assert believed.started_mode is mode
