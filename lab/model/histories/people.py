"""What people do to policies and workloads while a fleet is moved."""

from __future__ import annotations

from dataclasses import replace

from lab.model.histories.stage import MINUTE, OVERFLOWS, Line, approval_after, fleet, guarded, in_phase
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
    line.world.says(RETRY, "", "ada")
    line.passes(2, 5 * MINUTE)
    line.happens("ada acknowledges the root cause")
    line.world.says(Prerequisite.ROOT_CAUSE.annotation, "the learning rate", "ada")
    line.passes(2)
    line.happens("and the fix; 8 % of the runs fail")
    line.world.bad = {}
    line.world.everywhere = {Signal.FAILURES: 0.08}
    line.world.says(Prerequisite.FIX.annotation, "a lower one", "ada")
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
    for said in (RETRY, Prerequisite.ROOT_CAUSE.annotation, Prerequisite.FIX.annotation):
        line.world.says(said, "", "ada")
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
    line.world.says(ABORT, "drill", "eve")
    line.passes(2)
    line.happens("suspended")
    line.world.respec(suspend=True)
    line.passes(2)
    line.happens("resumed")
    line.world.bad = {}
    line.world.respec()
    line.passes(5)
    line.happens("somebody: retry")
    line.world.says(RETRY)
    line.passes(34)
    line.happens("target: bf16")
    line.world.respec(target="bf16")
    line.passes(20)
    line.happens("eve: rollback")
    line.world.says(ROLLBACK, "", "eve")
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


def newcomers() -> Line:
    """Workloads that come, go, lose the contract, rest, and crash"""
    line = guarded(hot=4, literal=False)
    world = line.world
    line.happens("two come, one with a latch")
    world.add("new-0", pods=2)
    world.add("new-1")
    world.workload_is("new-1", latch=Mode.FP32, has_original=True)
    line.passes(5)
    line.happens("hot-0 loses its contract")
    world.workload_is("hot-0", hot=False)
    line.passes(3)
    line.happens("hot-1 is scaled to zero, hot-2 is gone")
    world.workload_is("hot-1", replicas=0, updated_replicas=0, pods=())
    del world.workloads["hot-2"]
    line.passes(3)
    line.happens("one pod of hot-3 crashes")
    world.pods_are("hot-3", lambda number, pod: replace(pod, crashing=number == 0))
    line.passes(4)
    line.happens("the fleet overflows")
    world.all_are(OVERFLOWS)
    line.passes(12)
    return line


def quarrel() -> Line:
    """A workload whose template somebody else writes back, again and again"""
    line = guarded(hot=3, literal=False)
    for _ in range(5):
        line.happens("somebody applies hot-0 with FP32")
        line.world.reapplied("hot-0")
        line.passes(3)
    line.happens("the fleet overflows")
    line.world.all_are(OVERFLOWS)
    line.passes(8)
    return line


def deleted() -> Line:
    """The policy is deleted in mid-rollback, its original templates wanted back"""
    line = guarded(hot=3, deletionPolicy="Restore")
    line.world.restart_slots = 1
    line.happens("the fleet overflows; hot-0 is deaf")
    line.world.all_are(OVERFLOWS)
    line.world.deaf = {"hot-0"}
    line.passes(2)
    line.happens("the policy is deleted")
    line.world.policy = replace(line.world.policy, deleted_at=line.world.now)
    line.passes(6, 1.0)
    return line


def deleted_late() -> Line:
    """The policy is deleted, and the templates cannot be restored in time"""
    line = guarded(hot=2, literal=False, deletionPolicy="Restore")
    line.world.restart_slots = 0
    line.happens("the policy is deleted; no restart is allowed")
    line.world.policy = replace(line.world.policy, deleted_at=line.world.now)
    line.passes(5, 7.0)
    return line


def inherited() -> Line:
    """A policy that finds what another left behind: in mid-rollback, then rolled back"""
    line = guarded(hot=3, literal=False)
    line.happens("the fleet overflows; hot-0 is deaf")
    line.world.all_are(OVERFLOWS)
    line.world.deaf = {"hot-0"}
    line.passes(2)
    line.happens("the policy is deleted and made again")
    line.world.made_again()
    line.passes(3)
    line.happens("hot-0 hears")
    line.world.deaf, line.world.bad = set(), {}
    line.passes(6)
    line.happens("deleted and made again")
    line.world.made_again()
    line.passes(3)
    line.happens("retry")
    line.world.says(RETRY)
    line.passes(24)
    return line


HISTORIES = (attempts, commands, edited, newcomers, quarrel, deleted, deleted_late, inherited)
