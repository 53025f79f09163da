"""What people do to policies and workloads while a fleet is moved."""

from __future__ import annotations

from dataclasses import replace

from lab.model.cluster import LABELS
from lab.model.histories.stage import MINUTE, Line, approval_after, fleet, guarded, in_phase
from lab.model.world import OVERFLOWS
from precision_operator.api.commands import Prerequisite
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.contract import ABORT, RETRY, ROLLBACK

_APPROVAL = approval_after(40)


def attempts() -> Line:
    """Another attempt: its prerequisites, its dwell, a fault that returns, a wait that has grown"""
    again = {"prerequisites": ["rootCause", "fix"], "backoff": "10m", "dwell": "5m", "success": 0.9}
    line = guarded(hot=3, reenable=again)
    line.happens("the fleet overflows")
    line.world.all_are(OVERFLOWS)
    line.until(in_phase(Phase.HELD))
    line.passes(3)
    line.happens("ada: retry")
    line.world.commands(RETRY, "", "ada")
    line.passes(2, 5 * MINUTE)
    line.happens("ada acknowledges the root cause")
    line.world.commands(Prerequisite.ROOT_CAUSE.annotation, "the learning rate", "ada")
    line.passes(2)
    line.happens("and the fix; 8 % of the runs fail")
    line.world.bad = {}
    line.world.everywhere = {Signal.FAILURES: 0.08}
    line.world.commands(Prerequisite.FIX.annotation, "a lower one", "ada")
    line.passes(60)
    line.happens("12 % fail")
    line.world.everywhere = {Signal.FAILURES: 0.12}
    line.passes(4)
    line.happens("none")
    line.world.everywhere = {}
    line.passes(60)
    line.happens("the fleet overflows again")
    line.world.all_are(OVERFLOWS)
    line.until(in_phase(Phase.HELD))
    line.happens("ada: retry, root cause, fix")
    for command in (RETRY, Prerequisite.ROOT_CAUSE.annotation, Prerequisite.FIX.annotation):
        line.world.commands(command, "", "ada")
    line.passes(6, 10 * MINUTE)
    return line


def commands() -> Line:
    """Suspended and resumed with a breach; aborted, suspended in the rollback, retried; another target; rolled back"""
    line = guarded(hot=4)
    line.happens("one is in breach, and the policy is suspended")
    line.world.bad = {"hot-0": OVERFLOWS}
    line.world.respec(suspend=True)
    line.passes(3)
    line.happens("resumed")
    line.world.respec()
    line.passes(5)
    line.happens("eve: abort")
    line.world.commands(ABORT, "drill", "eve")
    line.passes(2)
    line.happens("suspended")
    line.world.respec(suspend=True)
    line.passes(2)
    line.happens("resumed")
    line.world.bad = {}
    line.world.respec()
    line.passes(5)
    line.happens("somebody: retry")
    line.world.commands(RETRY)
    line.passes(34)
    line.happens("target: bf16")
    line.world.respec(target="bf16")
    line.passes(20)
    line.happens("eve: rollback")
    line.world.commands(ROLLBACK, "", "eve")
    line.passes(12)
    return line


def edited() -> Line:
    """In mid-rollout another fallback, then fewer steps, then another target"""
    line = fleet(hot=5, literal=False, strategy=_APPROVAL)
    line.until(in_phase(Phase.PAUSED))
    line.happens("fallback: bf16")
    line.world.respec(strategy=_APPROVAL, fallback="bf16")
    line.passes(3)
    line.happens("one step of 100 % is left")
    line.world.respec(fallback="bf16", strategy={"steps": [{"setWeight": 100}]})
    line.passes(6)
    line.happens("target: bf16, fallback: fp32, three steps")
    line.world.respec(target="bf16")
    line.passes(16)
    return line


def new_workloads() -> Line:
    """Workloads that come, go, lose the contract, rest, and crash"""
    line = guarded(hot=4, literal=False)
    world = line.world
    line.happens("two come; the template of one says FP16")
    world.add("new-0", pods=2)
    world.add("new-1", mode=Mode.FP16)
    line.passes(5)
    line.happens("hot-0 loses its contract")
    world.workload_is("hot-0", hot=False)
    line.passes(3)
    line.happens("hot-1 is scaled to zero, hot-2 is gone")
    world.scale("hot-1", 0)
    world.drop("hot-2")
    line.passes(3)
    line.happens("one pod of hot-3 crashes")
    world.pods_are("hot-3", lambda number, pod: replace(pod, crashing=number == 0))
    line.passes(4)
    line.happens("the fleet overflows")
    world.all_are(OVERFLOWS)
    line.passes(12)
    return line


def _replace_all_pods(line: Line) -> None:
    line.happens("all pods are replaced")
    for name in line.world.workloads:
        line.world.replace_pods(name)
    line.passes(3)


def reapplied() -> Line:
    """Somebody applies the templates again, in a promoted fleet and in one that is held"""
    line = guarded(hot=2)
    _replace_all_pods(line)
    line.happens("the fleet overflows")
    line.world.all_are(OVERFLOWS)
    line.until(in_phase(Phase.HELD))
    line.passes(2)
    _replace_all_pods(line)
    return line


def deleted() -> Line:
    """The policy is deleted in mid-rollback: the rollback is finished, and what it holds stays held"""
    line = guarded(hot=3)
    line.happens("the fleet overflows; hot-0 takes no request")
    line.world.all_are(OVERFLOWS)
    line.world.unresponsive = {"hot-0"}
    line.passes(2)
    line.happens("the policy is deleted")
    line.world.delete_policy()
    line.passes(20)
    _replace_all_pods(line)
    return line


def deleted_with_one_held() -> Line:
    """The policy of a fleet with one held workload is deleted, and created again"""
    line = guarded(hot=3)
    line.happens("hot-1 overflows")
    line.world.bad = {"hot-1": OVERFLOWS}
    line.passes(4)
    line.happens("the policy is deleted")
    line.world.delete_policy()
    line.passes(3)
    line.happens("a policy of that name is created")
    line.world.bad = {}
    line.world.made_again()
    line.until(in_phase(Phase.DEGRADED))
    line.happens("retry")
    line.world.commands(RETRY)
    line.passes(24)
    return line


def deleted_and_released() -> Line:
    """The policy is deleted, and its deletionPolicy is Release"""
    line = guarded(hot=2, literal=False, deletionPolicy="Release")
    line.happens("hot-1 overflows")
    line.world.bad = {"hot-1": OVERFLOWS}
    line.passes(4)
    line.happens("the policy is deleted")
    line.world.delete_policy()
    line.passes(3)
    return line


def inherited() -> Line:
    """A policy that is created over what another left behind: in mid-rollback, then rolled back"""
    line = guarded(hot=3, literal=False)
    line.happens("the fleet overflows; hot-0 takes no request")
    line.world.all_are(OVERFLOWS)
    line.world.unresponsive = {"hot-0"}
    line.passes(2)
    line.happens("the policy is deleted and made again")
    line.world.made_again()
    line.passes(3)
    line.happens("hot-0 takes requests")
    line.world.unresponsive, line.world.bad = set(), {}
    line.passes(6)
    line.happens("deleted and made again")
    line.world.made_again()
    line.passes(3)
    line.happens("retry")
    line.world.commands(RETRY)
    line.passes(24)
    return line


def lost() -> Line:
    """The assignment is deleted under its policy"""
    line = guarded(hot=2)
    line.happens("somebody deletes the PrecisionAssignment")
    line.world.lose_assignment()
    line.passes(5)
    line.happens("ada: retry")
    line.world.commands(RETRY, "", "ada")
    line.passes(24)
    return line


def selector_edited() -> Line:
    """The selector is edited while a workload is held, and again when none is"""
    line = guarded(hot=3)
    line.happens("hot-1 overflows")
    line.world.bad = {"hot-1": OVERFLOWS}
    line.passes(4)
    line.happens("the selector now asks for part=one, which hot-0 and a workload in FP16 have")
    line.world.known = None  # nobody selected it when its pods were created
    line.world.add("other", mode=Mode.FP16)
    line.world.catch_up()
    line.world.labels["other"] = {"part": "one"}
    line.world.labels["hot-0"] = {**LABELS, "part": "one"}
    line.world.respec(selector={"matchLabels": {"part": "one"}})
    line.passes(4)
    line.happens("retry")
    line.world.bad = {}
    line.world.commands(RETRY)
    line.passes(24)
    return line


HISTORIES = (
    attempts,
    commands,
    edited,
    new_workloads,
    reapplied,
    deleted,
    deleted_with_one_held,
    deleted_and_released,
    inherited,
    lost,
    selector_edited,
)
