"""What a decision says around its phase: counts, times, conditions, when to look again, generations."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import NAN, OVERFLOWS, World
from precision_operator.api.injection import Refusal
from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase
from precision_operator.api.summary import Summary
from precision_operator.api.text import MESSAGE_CHARACTERS
from precision_operator.core.actions import DeleteAssignment, DeletePod, EvictPod, Notify, RequestPod
from precision_operator.core.decide import IDLE_SECONDS, decide
from precision_operator.core.model import Observation, PromotionSlots, RefusedWrite, Request
from precision_operator.reasons import Cause, Reason
from tests.support.fleets import answer, change, condition, emergency, fleet, promoted, respec, restart_only, until
from tests.support.views import keys

INTERVAL = 15.0


def shown(world: World, kind: str) -> tuple[str, str]:
    found = condition(world, kind)
    return found.status, found.reason


def test_pending_shows_no_step_and_counts_the_fleet() -> None:
    world = fleet(suspend=True)
    summary = world.step().summary
    assert (summary.step, summary.weight, summary.total, summary.moved) == ("", 0, 6, 0)
    assert shown(world, "Progressing") == ("False", "Suspended")
    assert shown(world, "AdmissionEnforced") == ("False", "NotEnforcing")


def test_an_edge_is_looked_after_at_once_and_a_wait_at_the_interval() -> None:
    world = fleet()
    started = world.step()
    assert started.state.phase is Phase.PROGRESSING
    assert started.wake_at == 1000.0
    waiting = world.step()
    assert waiting.state.transition_id == started.state.transition_id
    assert waiting.wake_at == 1000.0 + INTERVAL + INTERVAL


@pytest.mark.parametrize(
    ("age", "sooner"), [(0.0, 0.0), (0.25, 0.25), (0.5, 0.5), (5.0, 0.5), (-5.0, 0.0), (None, 0.0)]
)
def test_an_answer_that_is_older_than_the_pass_is_followed_so_much_sooner(age: float | None, sooner: float) -> None:
    world = fleet()
    world.step()
    world.step()
    observation = world.observe()
    assert observation.evaluation is not None
    older = replace(observation.evaluation, at=world.now - age * INTERVAL) if age is not None else None
    decision = decide(world.policy, world.state, replace(observation, evaluation=older), world.now)
    assert decision.wake_at - world.now == pytest.approx((1.0 - sooner) * INTERVAL)


def test_suspended_and_held_fleets_are_looked_at_rarely_once_nothing_of_them_restarts() -> None:
    assert fleet(suspend=True).decide().wake_at == 1000.0 + IDLE_SECONDS
    world = promoted()
    world.bad = dict.fromkeys(world.workloads, OVERFLOWS)
    while (decision := world.step()).state.phase is not Phase.HELD or decision.state.restarts:
        assert decision.wake_at <= world.now
    world.step()
    assert world.decide().wake_at == world.now + IDLE_SECONDS


def test_steps_say_where_the_rollout_is_and_edges_are_counted_and_dated() -> None:
    world = fleet()
    seen = {}
    for _ in range(30):
        before = world.state
        world.step()
        state = world.state
        if (state.phase, state.step_index) != (before.phase, before.step_index):
            assert state.transition_id == before.transition_id + 1
            seen[world.summary.step] = world.summary.weight
        else:
            assert state.transition_id == before.transition_id
        changed = state.phase is not before.phase
        assert state.phase_since == (world.now - INTERVAL if changed else before.phase_since)
    assert seen == {"1/3 20%": 20, "2/3 60%": 60, "3/3 100%": 100}
    assert world.state.observed_generation == 1


def test_moved_counts_acknowledgements_while_moving_and_requests_at_rest() -> None:
    world = fleet()
    world.step()
    assert (world.summary.moved, world.summary.total) == (0, 6)
    world.run(2)
    assert world.summary.moved == 1
    world.run(30)
    assert world.summary.moved == 6
    world.metrics_away = True
    world.step()
    assert world.summary.moved == 6
    world.metrics_away = False
    world.bad["hot-2"] = OVERFLOWS
    world.run(3)
    assert (world.summary.moved, world.summary.breached, world.summary.held) == (5, 1, 1)
    world.bad["hot-3"] = OVERFLOWS
    world.run(10)
    assert world.state.phase is Phase.HELD
    assert (world.summary.moved, world.summary.weight, world.summary.step) == (6, 0, "")


def test_silence_is_dated_from_its_beginning_and_forgotten_at_its_end() -> None:
    world = promoted()
    assert (world.state.no_data_since, world.summary.unknown) == (None, 0)
    world.unobservable.add("hot-1")
    world.step()
    began = world.now - INTERVAL
    world.run(4)
    assert (world.state.no_data_since, world.summary.unknown) == (began, 1)
    assert shown(world, "MetricsAvailable") == ("False", "NoSamples")
    world.unobservable.clear()
    world.step()
    assert (world.state.no_data_since, world.summary.unknown) == (None, 0)
    assert shown(world, "MetricsAvailable")[0] == "True"
    world.metrics_away = True
    world.step()
    assert world.state.no_data_since == world.now - INTERVAL
    assert shown(world, "MetricsAvailable") == ("False", "MetricsUnavailable")


def test_no_data_rolls_back_past_its_limit_only_where_the_policy_says_so() -> None:
    rules = {"interval": "15s", "failureLimit": 0, "minSamples": 1, "noDataLimit": "60s"}
    for choice, phase in (("Hold", Phase.HEALTHY), ("Rollback", Phase.ROLLING_BACK)):
        world = promoted(evaluation={**rules, "onNoData": choice})
        world.metrics_away = True
        world.run(4)
        assert world.state.phase is Phase.HEALTHY
        world.step()
        assert world.state.phase is phase
    assert world.state.incident is not None
    assert (world.state.reason, world.state.incident.detected_at) == ("NoData", world.now - 5 * INTERVAL)


def test_suspend_is_shown_while_it_lasts_and_no_longer_and_nothing_is_written_meanwhile() -> None:
    world = promoted()
    respec(world, suspend=True)
    world.bad = dict.fromkeys(world.workloads, NAN)
    commits, generation = world.commits, world.state.generation
    assert world.step().summary.reason == "Suspended"
    world.run(5)
    assert (world.state.phase, world.state.generation) == (Phase.HEALTHY, generation)
    assert world.commits - commits <= 3, "what was seen is recorded, and then no more"
    assert len(world.really_in(Mode.FP16)) == 6
    respec(world, suspend=False)
    assert world.step().state.phase is Phase.ROLLING_BACK


def test_a_halt_outlasts_the_deletion_of_its_policy_and_holds_up_no_rollback_once_it_ends() -> None:
    world = promoted()
    world.bad = dict.fromkeys(world.workloads, NAN)
    world.halted = Cause(Reason.HALTED, "maintenance")
    world.run(3)
    world.policy = replace(world.policy, deleted=True)
    decision = world.step()
    assert not any(isinstance(action, DeleteAssignment) for action in decision.actions)
    assert (world.state.phase, len(world.really_in(Mode.FP16))) == (Phase.HEALTHY, 6)
    world.policy, world.halted = replace(world.policy, deleted=False), None
    assert world.step().state.phase is Phase.ROLLING_BACK


def test_a_policy_that_is_made_anew_while_everything_is_halted_begins_once_the_halt_ends() -> None:
    world = promoted()
    world.recreate_policy(replace(world.policy, uid="another"))
    world.halted = Cause(Reason.HALTED, "maintenance")
    assert world.step().state.phase is Phase.HEALTHY
    world.halted = None
    assert world.step().state.reason in ("PolicyRecreated", "RolloutStarted")


def test_who_is_promoted_takes_up_a_slot_of_the_cap_from_that_very_pass_on() -> None:
    world = fleet()
    assert world.decide().promoting == frozenset(), "there is no cap"
    world.promotion_slots = PromotionSlots(5)
    decision = world.step()
    assert decision.promoting == frozenset(decision.state.members) != frozenset()


def test_an_edge_is_one_event() -> None:
    world = fleet()
    assert [a.reason for a in world.step().actions if isinstance(a, Notify)] == ["RolloutStarted"]
    assert [a for a in world.step().actions if isinstance(a, Notify)] == []


def test_a_steady_fleet_costs_no_commit_no_summary_and_no_write_on_a_pod() -> None:
    for world in (promoted(), held_fleet()):
        before = (world.commits, world.summaries, world.writes)
        world.run(20)
        assert (world.commits, world.summaries, world.writes) == before


def held_fleet() -> World:
    world = promoted()
    world.bad = dict.fromkeys(world.workloads, NAN)
    world.run(30)
    assert world.state.phase is Phase.HELD
    return world


def test_who_decided_is_written_only_with_a_decision() -> None:
    world = promoted()
    writer, epoch = world.state.writer, world.state.epoch
    assert (writer, epoch) == ("test", 1)
    observed = replace(world.observe(), writer="next", epoch=2)
    world.observe = lambda: observed  # type: ignore[method-assign]
    assert (world.decide().state.writer, world.decide().state.epoch) == (writer, epoch)


def test_a_request_outranks_what_a_pod_carries() -> None:
    world = promoted()
    world.state = replace(world.state, generation=0)  # a state that was lost and is not believed
    world.bad = dict.fromkeys(world.workloads, OVERFLOWS)
    decision = world.decide()
    asked = [action for action in decision.actions if isinstance(action, RequestPod)]
    assert len(asked) == 5
    for action in asked:
        assert action.pod.request is not None
        assert action.generation > action.pod.request.generation
    assert decision.state.generation > 0


def test_after_a_restore_of_etcd_requests_outrank_what_the_processes_have_seen() -> None:
    world = promoted()
    restored, observed = world.state, world.observe()
    assert observed.evaluation is not None
    younger = restored.generation + 5
    seen = {name: replace(s, mode=Mode.FP32, generation=younger) for name, s in observed.evaluation.pods.items()}
    after = replace(observed, evaluation=replace(observed.evaluation, pods=seen))
    world.observe = lambda: after  # type: ignore[method-assign]
    decision = world.decide()
    asked = [action for action in decision.actions if isinstance(action, RequestPod)]
    assert {action.pod.name for action in asked} == {name for name in seen if name.startswith("hot")}
    assert {action.generation for action in asked} == {younger + 1}
    assert decision.state.generation == younger + 1


def test_a_request_outranks_a_younger_one_though_its_process_is_in_that_mode_already() -> None:
    world = held_fleet()
    (one,) = world.workloads["hot-1"].pods
    change(world, "hot-1", pods=(replace(one, request=Request(1, Mode.FP16)),))  # as a restored etcd has it
    younger = world.state.generation + 5
    world.modes[one.name] = (Mode.FP32, younger)
    asked = [action for action in world.decide().actions if isinstance(action, RequestPod)]
    assert [(action.pod.name, action.generation) for action in asked] == [(one.name, younger + 1)]


def test_a_request_outranks_one_of_this_generation_that_a_process_has_seen_and_does_not_follow() -> None:
    world = promoted()
    (one,) = world.workloads["hot-1"].pods
    change(world, "hot-1", pods=(replace(one, request=None),))  # its annotation was lost
    generation = world.state.generation
    world.modes[one.name] = (Mode.FP32, generation)
    asked = [action for action in world.decide().actions if isinstance(action, RequestPod)]
    assert [(action.pod.name, action.generation) for action in asked] == [(one.name, generation + 1)]


def test_nothing_is_ever_asked_for_but_requests_deletions_of_pods_or_the_assignment_and_events() -> None:
    """No template is written, and no object but pods, the assignment and Events; where there are Jobs, whether they run."""
    kinds = set[type]()
    for world in (fleet(), promoted(), promoted(), held_fleet()):
        kinds |= {type(action) for _ in range(30) for action in world.step().actions}
        world.bad = dict.fromkeys(world.workloads, NAN)
        kinds |= {type(action) for _ in range(10) for action in world.step().actions}
        answer(world, "retry")
        kinds |= {type(action) for _ in range(10) for action in world.step().actions}
        respec(world, hold_on_delete=False)
        world.step()
        world.delete_policy()
        kinds |= {type(action) for _ in range(3) for action in world.step().actions}
    assert kinds == {RequestPod, DeletePod, EvictPod, DeleteAssignment, Notify}


def test_policies_of_nothing_wait_and_say_what_is_missing() -> None:
    world = World(policy(**FAST))
    assert world.step().summary.reason == "NoWorkloads"
    world.add("plain", hot=False)
    world.workloads["plain"] = replace(world.workloads["plain"], literal=False)
    summary = world.step().summary
    assert (summary.phase, summary.reason) == (Phase.PENDING, "Undeliverable")
    assert "plain" in summary.message
    assert shown(world, "Accepted") == ("False", "Undeliverable")
    world.metrics_away = True
    world.add("hot")
    assert world.step().summary.reason == "MetricsUnavailable"
    world.metrics_away = False
    world.unobservable.add("hot")
    assert world.step().summary.reason == "NoSamples"
    world.unobservable.clear()
    assert world.step().state.phase is Phase.PROGRESSING
    assert shown(world, "Accepted") == ("True", "Undeliverable")


def test_writes_that_the_api_server_refuses_are_shown_and_change_no_decision() -> None:
    world = promoted()
    observe, refused = world.observe, (RefusedWrite("RequestPod hot-1-2", Reason.FORBIDDEN),)
    world.observe = lambda: replace(observe(), refused=refused)  # type: ignore[method-assign]
    world.bad = dict.fromkeys(world.workloads, NAN)
    world.step()
    assert world.state.phase is Phase.ROLLING_BACK
    assert shown(world, "WritesAccepted") == ("False", "Forbidden")
    assert condition(world, "WritesAccepted").message == "not written: RequestPod hot-1-2 (Forbidden)"
    world.observe = observe  # type: ignore[method-assign]
    world.step()
    assert shown(world, "WritesAccepted") == ("True", "WritesAccepted")


@pytest.mark.parametrize(
    ("count", "shown"), [(3, "RequestPod hot-2 (Forbidden)"), (5, "hot-2 (Forbidden), and 2 more")]
)
def test_of_many_writes_that_are_refused_three_are_named_and_the_rest_are_counted(count: int, shown: str) -> None:
    world = promoted()
    refused = tuple(RefusedWrite(f"RequestPod hot-{index}", Reason.FORBIDDEN) for index in range(count))
    seen = replace(world.observe(), refused=refused)
    world.observe = lambda: seen  # type: ignore[method-assign]
    world.step()
    message = condition(world, "WritesAccepted").message
    assert (message.endswith(shown), "hot-3" in message) == (True, False)


def test_of_many_workloads_whose_pods_do_not_go_three_are_named_and_the_rest_are_counted() -> None:
    world = restart_only(5)
    for name in world.workloads:
        world.runs_on(name, "n7")
        world.unreachable.add(name)
    until(emergency(world), lambda w: "more" in condition(w, "Blocked").message, seconds=5.0)
    message = condition(world, "Blocked").message
    assert ("old-02: " in message, "old-03: " in message, message.endswith(", and 2 more")) == (True, False, True)


def test_a_workload_whose_own_labels_disagree_with_its_templates_is_named() -> None:
    world = promoted()
    change(world, "hot-1", labels_disagree=True)
    world.step()
    assert shown(world, "Accepted") == ("True", "LabelsDisagree")
    assert ": hot-1;" in condition(world, "Accepted").message


def with_refusals(world: World, refusals: Mapping[str, Refusal]) -> None:
    """From now on the pods of these workloads say that nothing was injected into them."""
    observe = world.observe

    def observed() -> Observation:
        seen = observe()
        views = (
            replace(w, pods=tuple(replace(pod, refusal=refusals.get(w.name)) for pod in w.pods)) for w in seen.workloads
        )
        return replace(seen, workloads=tuple(views))

    world.observe = observed  # type: ignore[method-assign]


def test_what_was_not_injected_is_shown_by_its_reason_and_changes_no_decision() -> None:
    world = promoted()
    assert shown(world, "InjectionRefused") == ("False", "NothingRefused")
    before = world.state
    with_refusals(world, {"hot-1": Refusal.PORT_TAKEN, "hot-2": Refusal.HOST_NETWORK, "hot-3": Refusal.PORT_TAKEN})
    world.step()
    assert shown(world, "InjectionRefused") == ("True", "HostNetwork")
    assert condition(world, "InjectionRefused").message.endswith("HostNetwork: hot-2; PortTaken: hot-1, hot-3")
    assert (world.state.phase, world.state.modes) == (before.phase, before.modes)


def test_however_many_are_refused_the_message_is_bounded() -> None:
    world = World(policy(**FAST))
    names = ["w" * 200 + str(index) for index in range(60)]
    for name in names:
        world.add(name)
    with_refusals(world, dict(zip(names, [*Refusal] * 6, strict=True)))
    world.step()
    assert len(condition(world, "InjectionRefused").message) <= MESSAGE_CHARACTERS


def test_too_few_steps_in_mid_rollback_cost_no_write() -> None:
    world = promoted()
    world.bad, world.unresponsive = dict.fromkeys(world.workloads, OVERFLOWS), {"hot-1"}
    world.run(3, 2.0)
    assert world.state.phase is Phase.ROLLING_BACK
    before, observe = world.state, world.observe

    def slow() -> Observation:
        seen = observe()
        assert seen.evaluation is not None
        pods = {name: replace(signals, steps=0.0) for name, signals in seen.evaluation.pods.items()}
        return replace(seen, evaluation=replace(seen.evaluation, pods=pods))

    world.observe = slow  # type: ignore[method-assign]
    world.step(2.0)
    assert (world.state, world.summary.unknown) == (before, 0)


def test_workloads_that_an_older_policy_selects_are_shown_with_its_name() -> None:
    world = fleet()
    observe = world.observe
    world.observe = lambda: replace(observe(), contested=(("vit", "elder"),))  # type: ignore[method-assign]
    world.step()
    assert shown(world, "Accepted") == ("True", "PolicyConflict")
    assert "vit (elder)" in condition(world, "Accepted").message
    assert world.state.phase is Phase.PROGRESSING


@pytest.mark.parametrize("forged", [Summary(), Summary(phase=Phase.HELD, transition_id=99, assignment="fleet")])
def test_what_stands_in_the_policys_status_changes_no_decision(forged: Summary) -> None:
    world = promoted()
    world.bad = {"hot-1": NAN}
    expected = world.decide()
    world.summary = forged
    assert world.decide() == expected


def test_the_same_input_gives_the_same_decision() -> None:
    world = promoted()
    world.bad = {"hot-1": NAN, "literal": NAN}
    seen = world.observe()
    first, again = (decide(world.policy, world.state, seen, world.now) for _ in range(2))
    assert first == again
    assert first.state.breached == keys("hot-1", "literal")
