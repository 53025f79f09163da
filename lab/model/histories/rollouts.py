"""Fleets that are rolled out, and what keeps them from it."""

from __future__ import annotations

from lab.model.histories.stage import MINUTE, Line, Stage, approval_after, fleet, guarded, in_phase
from lab.model.world import OVERFLOWS
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.contract import PROMOTE
from precision_operator.reasons import Cause, Reason

_APPROVAL = approval_after(60)


def by_steps() -> Line:
    """A rollout by three steps, with a workload that is moved by restart"""
    line = fleet()
    line.passes(20)
    return line


def waits_for_a_person() -> Line:
    """A step that waits for a person; metrics that are away for a while; a promotion by command"""
    line = fleet(strategy=_APPROVAL)
    line.until(in_phase(Phase.PAUSED))
    line.happens("Prometheus is away")
    line.world.metrics_away = True
    line.passes(3)
    line.happens("it is back")
    line.world.metrics_away = False
    line.passes(4)
    line.happens("ada: promote")
    line.world.commands(PROMOTE, "looks good", "ada")
    line.passes(8)
    return line


def cannot_begin() -> Line:
    """What a policy waits for before it moves anything"""
    world = Stage()
    line = Line(world)
    line.passes(2)
    line.happens("an older policy has them all")
    world.seen_too = {"contested": (("hot-0", "elder"),)}
    line.passes(2)
    line.happens("no more; two workloads without contract")
    world.seen_too = {}
    for name in ("bare-0", "bare-1"):
        world.add(name, hot=False)
        world.workload_is(name, literal=False)
    line.passes(2)
    line.happens("and two with it; one pod of each has no samples")
    for name in ("hot-0", "hot-1"):
        world.add(name, pods=2)
        world.unobservable.add(world.workloads[name].pods[1].name)
    line.passes(2)
    line.happens("an older policy has two more")
    world.seen_too = {"contested": (("hot-8", "elder"), ("hot-9", "elder"))}
    line.passes(2)
    line.happens("a query is refused")
    world.seen_too = {"problem": Cause(Reason.UNKNOWN_QUERY, "no query is named 'x'")}
    line.passes(2)
    line.happens("mended; Prometheus is away")
    world.seen_too, world.metrics_away = {}, True
    line.passes(2)
    line.happens("back, with samples of all")
    world.metrics_away = False
    world.unobservable.clear()
    line.passes(3)
    line.happens("the query is refused again")
    world.seen_too = {"problem": Cause(Reason.UNKNOWN_QUERY, "no query is named 'x'")}
    line.passes(3)
    return line


def canary_breaches() -> Line:
    """The first step's only workload breaches"""
    line = fleet()
    line.until(lambda w: w.state.members)
    line.happens("everything overflows")
    line.world.all_are(OVERFLOWS)
    line.passes(10)
    return line


def not_the_precision() -> Line:
    """Failures on FP32 workloads too; then a breach on one node only"""
    line = fleet(hot=7, literal=False, strategy=_APPROVAL)
    line.until(in_phase(Phase.PAUSED))
    line.happens("runs fail everywhere")
    line.world.everywhere = {Signal.FAILURES: 0.9}
    line.passes(5)
    line.happens("no more")
    line.world.everywhere = {}
    line.passes(5)
    moved = sorted(key.rpartition("/")[2] for key in line.world.state.members)
    here = moved[:2]
    line.happens(f"{' and '.join(here)} now run on one node, and overflow; the others run elsewhere")
    for name in moved:
        node = "bad" if name in here else "good"
        line.world.runs_on(name, node, pool=f"pool={node}")
    line.world.bad = dict.fromkeys(here, OVERFLOWS)
    line.passes(6)
    return line


def one_pool_of_a_fleet() -> Line:
    """A promoted fleet breaches on one pool of nodes only; then elsewhere too"""
    line = guarded(hot=6, literal=False)
    for number in range(6):
        line.world.runs_on(f"hot-{number}", f"node-{number}", pool="old" if number < 3 else "new")
    line.happens("all of the old pool overflow, on three nodes")
    line.world.bad = dict.fromkeys(("hot-0", "hot-1", "hot-2"), OVERFLOWS)
    line.passes(8)
    line.happens("one of the new pool too")
    line.world.bad["hot-4"] = OVERFLOWS
    line.passes(6)
    return line


def alerts_and_no_rollback() -> Line:
    """Memory and divergence that alert, and hold promotions, and are not rolled back"""
    line = fleet()
    line.until(lambda w: w.state.members)
    line.happens("memory is at 90 % of FP32's")
    line.world.everywhere = {Signal.MEMORY: 0.9}
    line.passes(70, MINUTE / 2)
    line.happens("it falls; losses are 7 % above FP32's")
    line.world.everywhere = {Signal.DIVERGENCE: 0.07}
    line.passes(70, MINUTE / 2)
    line.happens("all is well")
    line.world.everywhere = {}
    line.passes(6)
    return line


def by_reference() -> Line:
    """Workloads that take their precision from a ConfigMap"""
    line = fleet(hot=2)
    line.world.add_referencing("by-reference", Mode.FP16, pods=2)
    line.world.add_referencing("by-reference-32", Mode.FP32)
    line.passes(14)
    line.happens("the fleet overflows")
    line.world.all_are(OVERFLOWS)
    line.passes(10)
    return line


def adopted() -> Line:
    """A fleet that trains in the target already: adopted but for what breaches, and guarded"""
    line = Line(Stage())
    for name in ("hot-0", "hot-1", "hot-2"):
        line.world.add(name, mode=Mode.FP16, pods=2)
    line.world.add("literal", hot=False, mode=Mode.FP16)
    line.world.add("hot-3")
    line.happens("hot-2 overflows")
    line.world.bad = {"hot-2": OVERFLOWS}
    line.passes(4)
    line.happens("no more")
    line.world.bad = {}
    line.passes(20)
    return line


def waits_for_admission() -> Line:
    """An API server lags: nothing is promoted, and no pod is taken away, before it knows the assignment"""
    line = fleet(hot=2)
    line.passes(3)
    line.happens("an API server lags behind")
    line.world.lagging = True
    line.passes(8)
    line.happens("it has caught up")
    line.world.catch_up()
    line.passes(12)
    return line


HISTORIES = (
    by_steps,
    waits_for_a_person,
    cannot_begin,
    canary_breaches,
    not_the_precision,
    one_pool_of_a_fleet,
    alerts_and_no_rollback,
    by_reference,
    adopted,
    waits_for_admission,
)
