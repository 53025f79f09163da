"""Fleets that are rolled back: at once, in batches, by canary, or after something milder was tried."""

from __future__ import annotations

from lab.model.histories.stage import MILD, MINUTE, SLOW, Line, guarded, in_phase
from lab.model.world import NAN, OVERFLOWS
from precision_operator.api.mitigation import Rung
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.contract import RETRY, ROLLBACK

_AT_ONCE: dict[str, object] = {"mitigation": {"speed": {"window": "0s"}, "overflow": {"window": "0s"}}}
_BY_CANARY: dict[str, object] = {**_AT_ONCE, "strategies": {"P2": "Canary"}}


def one_of_a_fleet() -> Line:
    """One workload of a promoted fleet breaches, and takes no request at first"""
    line = guarded()
    line.happens("hot-2 overflows, and its trainers take no request")
    line.world.bad = {"hot-2": OVERFLOWS}
    line.world.unresponsive = {"hot-2"}
    line.passes(3)
    line.happens("they take requests again")
    line.world.unresponsive = set()
    line.passes(6)
    line.happens("grace: retry")
    line.world.bad = {}
    line.world.commands(RETRY, "", "grace")
    line.passes(40)
    return line


def emergency() -> Line:
    """An emergency: unresponsive trainers are restarted; the deadline passes; recovery is watched"""
    line = guarded(rollback={"deadlines": {"P1": "3m"}, "ackTimeout": "45s"})
    line.happens("the fleet overflows; hot-1 and hot-3 take no request, and hot-3 has no samples")
    line.world.all_are(OVERFLOWS)
    line.world.unresponsive = {"hot-1", "hot-3"}
    line.world.unobservable = {"hot-3"}
    line.passes(16)
    line.happens("hot-3 has samples, and takes requests; 4 % of the runs fail")
    line.world.unresponsive, line.world.unobservable = set(), set()
    line.world.everywhere = {Signal.FAILURES: 0.04}
    line.passes(60, MINUTE)
    return line


def half_unresponsive() -> Line:
    """One pod of each workload takes no request"""
    line = guarded(hot=3, literal=False, rollback={"ackTimeout": "45s"})
    line.happens("the fleet overflows; the first pod of each takes no request")
    line.world.all_are(OVERFLOWS)
    line.world.unresponsive = {workload.pods[0].name for workload in line.world.workloads.values()}
    line.passes(8)
    return line


def late() -> Line:
    """Nobody acknowledges until the deadline has passed"""
    line = guarded(hot=3, literal=False, rollback={"deadlines": {"P1": "2m"}, "ackTimeout": "30s"})
    line.happens("the fleet overflows")
    line.world.all_are(OVERFLOWS)
    line.passes(1)
    line.happens("all take no request, and have no samples")
    line.world.unresponsive, line.world.unobservable = set(line.world.workloads), set(line.world.workloads)
    line.passes(20)
    line.happens("both are over")
    line.world.unresponsive, line.world.unobservable = set(), set()
    line.passes(6)
    return line


def poisoned() -> Line:
    """Weights are NaN: two workloads are taken back to a healthy checkpoint"""
    line = guarded()
    line.happens("the weights of hot-0 and hot-4 are poisoned")
    line.world.poisoned = {"hot-0", "hot-4"}
    line.passes(3)
    line.happens("their checkpoints were good")
    line.world.poisoned = set()
    line.passes(6)
    return line


def no_data() -> Line:
    """Metrics that do not come back, where the policy takes missing data for a breach"""
    silence = {"interval": "15s", "failureLimit": 0, "minSamples": 1, "onNoData": "Rollback", "noDataLimit": "2m"}
    line = guarded(hot=3, evaluation=silence)
    line.happens("one workload has no samples")
    line.world.unobservable = {"hot-1"}
    line.passes(4)
    line.happens("it has, and Prometheus is away")
    line.world.unobservable, line.world.metrics_away = set(), True
    line.passes(14)
    line.happens("it is back")
    line.world.metrics_away = False
    line.passes(5)
    return line


def gradual() -> Line:
    """A slow fleet: ten minutes, then an investigation, then a gradual rollback in batches"""
    line = guarded(rollback={"mitigation": {"speed": {"window": "15m"}}})
    line.happens("all are slow")
    line.world.all_are(SLOW)
    line.passes(90, MINUTE / 2)
    return line


def gradual_taken_over() -> Line:
    """A gradual rollback that a severe breach takes over"""
    line = guarded(rollback={**_AT_ONCE, "gradual": {"sustain": "30s", "inFlight": "2m"}})
    line.happens("all are slow")
    line.world.all_are(SLOW)
    line.until(in_phase(Phase.ROLLING_BACK))
    line.passes(3)
    line.happens("losses are NaN where training is in FP16")
    line.world.all_are(NAN)
    line.passes(12)
    return line


def ladder() -> Line:
    """Mild overflow: what helps on each rung of the ladder, and what nothing helps"""
    line = guarded(rollback={"mitigation": {"overflow": {"window": "20m", "dwell": "3m"}}})
    line.happens("hot-0 to hot-3 overflow in a quarter of their steps")
    line.world.bad = {f"hot-{number}": MILD for number in range(4)}
    line.world.cured_by = {"hot-0": Rung.HALVE_SCALE, "hot-1": Rung.GROWTH_INTERVAL, "hot-2": Rung.BF16}
    line.passes(90, MINUTE / 2)
    return line


def ladder_cut_short() -> Line:
    """Two windows of mitigation: one ended by a severe breach, one by a person's rollback"""
    line = guarded()
    line.happens("hot-0 and hot-1 overflow mildly")
    line.world.bad = {"hot-0": MILD, "hot-1": MILD}
    line.until(lambda w: w.state.mitigations, MINUTE / 2)
    line.passes(2, MINUTE / 2)
    line.happens("hot-0 gets worse")
    line.world.bad["hot-0"] = OVERFLOWS
    line.passes(4)
    line.happens("lin: rollback")
    line.world.commands(ROLLBACK, "enough", "lin")
    line.passes(12)
    return line


def canary_better() -> Line:
    """A rollback by canary that fares better: the rest follows"""
    line = guarded(hot=6, rollback=_BY_CANARY)
    line.happens("all overflow mildly")
    line.world.all_are(MILD)
    line.until(in_phase(Phase.HELD), MINUTE / 2)
    line.passes(4)
    return line


def canary_same() -> Line:
    """A rollback by canary that shows no difference: held, until a person decides"""
    line = guarded(hot=6, literal=False, rollback=_BY_CANARY)
    line.happens("everything is slow, in any precision")
    line.world.everywhere = SLOW
    line.until(lambda w: w.state.reason == "CanaryNoDifference", 5 * MINUTE)
    line.passes(3, 5 * MINUTE)
    line.happens("it was the switch; ada: retry")
    line.world.everywhere = {}
    line.world.commands(RETRY, "the switch was full", "ada")
    line.passes(30)
    return line


def canary_taken_over() -> Line:
    """A rollback by canary that loses its samples, then is taken over by an emergency"""
    line = guarded(hot=6, rollback=_BY_CANARY)
    line.happens("all overflow mildly")
    line.world.all_are(MILD)
    line.until(lambda w: w.state.comparison is not None and w.state.comparison.looks > 0, MINUTE)
    line.happens("Prometheus has no samples of anybody")
    line.world.unobservable = set(line.world.workloads)
    line.passes(8, MINUTE)
    line.happens("they are back; the losses of hot-5 are NaN")
    line.world.unobservable = set()
    line.world.bad["hot-5"] = NAN
    line.passes(10)
    return line


HISTORIES = (
    one_of_a_fleet,
    emergency,
    half_unresponsive,
    late,
    poisoned,
    no_data,
    gradual,
    gradual_taken_over,
    ladder,
    ladder_cut_short,
    canary_better,
    canary_same,
    canary_taken_over,
)
