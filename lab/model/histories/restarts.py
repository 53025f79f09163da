"""Workloads that only a restart moves, and pods that do not come back as they should."""

from __future__ import annotations

from lab.model.cluster import Room
from lab.model.histories.stage import Line, Stage, fleet, in_phase
from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase
from precision_operator.contract import ABORT, ROLLBACK

_AT_ONCE: dict[str, object] = {"steps": [{"setWeight": 100}]}


def _restarted(count: int, **spec: object) -> Line:
    """A promoted fleet of so many workloads that are moved by restart; the table begins there."""
    world = Stage(**{"strategy": _AT_ONCE, **spec})
    for index in range(count):
        world.add(f"plain-{index}", hot=False, pods=2)
    line = Line(world)
    line.until(in_phase(Phase.HEALTHY))
    line.passes(3)
    return Line(world)


def full_node() -> Line:
    """A rollback on full nodes: each new pod starts when its old one is gone"""
    line = _restarted(2)
    line.world.room = dict.fromkeys(line.world.workloads, Room.FULL)
    line.happens("eve: abort")
    line.world.commands(ABORT, "", "eve")
    line.passes(8, 5.0)
    return line


def unschedulable() -> Line:
    """A rollback whose new pods never start: it ends all the same, and nothing trains in FP16"""
    line = _restarted(2)
    line.world.room = {"plain-0": Room.NONE, "plain-1": Room.QUOTA}
    line.happens("no node has room for plain-0, and the quota of plain-1 is used up; eve: abort")
    line.world.commands(ABORT, "", "eve")
    line.passes(40, 5.0)
    line.happens("there is room again")
    line.world.room = {}
    line.passes(4, 5.0)
    return line


def gradually() -> Line:
    """A gradual rollback by restarts: one workload at a time"""
    line = _restarted(4, rollback={"gradual": {"sustain": "30s", "inFlight": "30s", "batchShare": 0.5}})
    line.world.restart_slots = 1
    line.happens("lin: rollback")
    line.world.commands(ROLLBACK, "", "lin")
    line.passes(24, 5.0)
    return line


def lagging_admission() -> Line:
    """An emergency while an API server lags: 30 s later pods are taken away all the same, and once more when it knows"""
    line = _restarted(2)
    line.happens("an API server lags behind; eve: abort")
    line.world.lagging = True
    line.world.commands(ABORT, "", "eve")
    line.passes(16, 5.0)
    line.happens("it has caught up")
    line.world.catch_up()
    line.passes(5, 5.0)
    return line


def passed_by() -> Line:
    """Pods of a held fleet that a freshly started API server lets through: put right"""
    line = fleet(hot=1, strategy=_AT_ONCE)
    for name in line.world.workloads:
        line.world.templates[name] = Mode.FP16
    line.until(in_phase(Phase.HEALTHY))
    line.world.commands(ABORT)
    line.until(in_phase(Phase.HELD))
    line.passes(2)
    line = Line(line.world)
    line.happens("all pods are replaced, and admission does not see them")
    for name in line.world.workloads:
        line.world.pass_by(name)
    line.passes(4, 5.0)
    return line


def checkpoint_first() -> Line:
    """Restarts where a hot flip is not wanted: each pod saves a checkpoint before it is taken away"""
    line = fleet(hot=2, literal=False, strategy=_AT_ONCE, delivery="Restart")
    line.passes(8, 5.0)
    line.happens("one takes no request; eve: abort")
    line.world.unresponsive = {"hot-1"}
    line.world.commands(ABORT, "", "eve")
    line.passes(12, 5.0)
    return line


HISTORIES = (full_node, unschedulable, gradually, lagging_admission, passed_by, checkpoint_first)
