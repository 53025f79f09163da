"""The small worlds that are explored: a small fleet, a policy whose limits are a few ticks, and what may happen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lab.model.events import Edit, Event
from lab.model.fleet import AWAY_SECONDS, Fleet
from lab.model.policies import written
from precision_operator.api.modes import Mode

PASS = Event("pass")

_REENABLE = {"prerequisites": [], "backoff": "20s", "backoffLimit": "40s", "stable": "60s", "dwell": "0s"}
_ROLLBACK: dict[str, object] = {
    "ackTimeout": "20s",
    "deadlines": {"P0": "30s", "P1": "60s", "P2": "90s"},
    "gradual": {"sustain": "20s", "inFlight": "20s", "batchShare": 0.4},
    "mitigation": {"overflow": {"window": "120s", "dwell": "10s"}, "speed": {"window": "20s"}},
}
_RULES: dict[str, object] = {
    "evaluation": {
        "interval": "10s",
        "window": "20s",
        "failureLimit": 1,
        "minSamples": 1,
        "noDataLimit": "20s",
    },
    "rollback": _ROLLBACK,
    "reenable": _REENABLE,
    "progressDeadlineSeconds": 40,
}
_NONE: Mapping[str, int] = {}
_PAUSE = {"pause": {"duration": "10s"}}
_STEPS = [{"setWeight": 34}, _PAUSE, {"setWeight": 100}]


def _start(
    *,
    names: str = "ab",
    literal: str = "c",
    target: str = "",
    jobs: str = "",
    groups: str = "",
    ordered: str = "",
    numbered: str = "",
    replicas: Mapping[str, int] = _NONE,
    **spec: object,
) -> Fleet:
    """A small fleet.

    Args:
        names: those that change hot.
        literal: those that only a restart moves.
        target: those whose template says FP16, so that they train in it from the start.
        jobs: those that are Jobs.
        groups: those of two pods that train together.
        ordered: those whose pods are made anew one place at a time, as a StatefulSet's are.
        numbered: those whose pods have an index.
        replicas: those of several pods that train alone, and how many.
        spec: of the policy, over what all scenarios have.
    """
    whole: dict[str, object] = {"strategy": {"steps": _STEPS}, **_RULES, **spec}
    fleet = Fleet(written(whole, uid="policy"), written=whole)
    for name in names + literal:
        mode = Mode.FP16 if name in target else Mode.FP32
        pods = 2 if name in groups else replicas.get(name, 1)
        fleet.join(name, hot=name in names, mode=mode, part="" if name == "c" else "one", job=name in jobs, pods=pods)
        fleet.world_sizes |= {name: 2} if name in groups else {name: 1} if name in replicas else {}
    fleet.in_order = set(ordered)
    for name in numbered:
        fleet.number(name)
    fleet.restart_slots, fleet.now = 2, fleet.now + AWAY_SECONDS
    return fleet


@dataclass(frozen=True)
class Scenario:
    """One exploration: everything of ``kinds``, in every order, from every root."""

    name: str
    start: Fleet
    kinds: frozenset[str]
    roots: Mapping[str, tuple[Event, ...]]
    """Where the exploration begins, besides the start: reached by these events, so that depth is spent on faults."""
    edits: Mapping[str, Edit] = field(default_factory=dict)


def _times(passes: int) -> tuple[Event, ...]:
    return (PASS,) * passes


_PROMOTED = _times(16)
_BROKEN = (*_PROMOTED, Event("breach", "a", "nonFinite"), Event("breach", "b", "nonFinite"), PASS, PASS)


_ALONE = (*_PROMOTED, Event("unresponsive", "a"), Event("breach", "a", "nonFinite"), *_times(2))


_MITIGATING = (*_PROMOTED, Event("mild", "a"), *_times(4))
_IN_BF16 = (*_MITIGATING, *_times(7))


_CANARY = {
    "ackTimeout": "20s",
    "deadlines": {"P0": "30s", "P1": "60s", "P2": "90s"},
    "strategies": {"P2": "Canary"},
    "gradual": {"sustain": "10s", "inFlight": "10s", "batchShare": 0.4},
    "canary": {"window": "60s", "limit": "100s", "falseAlarmRate": 0.5, "margin": 0.0},
    "mitigation": {"overflow": {"window": "0s"}, "speed": {"window": "0s"}},
}
_COMPARING = (*_PROMOTED, Event("breach", "a", "speed"), Event("breach", "b", "speed"), *_times(6))


_BY_PODS = [{"setWeight": 34}, _PAUSE, {"setWeight": 67}, _PAUSE, {"setWeight": 100}]
_RESTARTED = _times(20)
_LENIENT = {
    **_ROLLBACK,
    "onPendingRevision": "Restart",
    "onMemoryShortage": "BF16",
    "emergency": {"respectDisruptionBudgets": True},
}
"""What a policy may allow besides, and what it may not hurry for."""

_ONE_PART: Edit = {"selector": {"matchLabels": {"fleet": "demo", "part": "one"}}}


def scenarios() -> tuple[Scenario, ...]:
    """All of them."""
    return (
        Scenario(
            "signals",
            _start(),
            frozenset({"breach", "poison", "unobservable", "heal", "away", "back", "crash-loop", "late", "stranger"}),
            {"fresh": (), "moving": _times(2), "healthy": _PROMOTED, "rolling back": _BROKEN},
        ),
        Scenario(
            "crashes",
            _start(names="abc", literal="", groups="a"),
            frozenset({"breach", "heal", "unresponsive", "crash", "stale", "zombie", "retry", "abort", "clock"}),
            {
                "fresh": (),
                "moving": _times(2),
                "healthy": _PROMOTED,
                "held alone": (Event("edit", choice="one by one"), *_ALONE),
                "rolling back": _BROKEN,
            },
            {"one by one": {"rollback": {**_ROLLBACK, "fleetMinimum": 3, "fleetShare": 1.0}}},
        ),
        Scenario(
            "admission",
            _start(names="a", literal="bc", groups="b"),
            frozenset(
                {"breach", "heal", "lag", "catch-up", "bypass", "drain", "room", "crash", "retry", "unreachable"}
            ),
            {
                "fresh": (),
                "moving": _times(4),
                "healthy": _PROMOTED,
                "restarting": (*_PROMOTED, Event("abort"), PASS),
                "rolled back": (*_PROMOTED, Event("abort"), *_times(6)),
            },
        ),
        Scenario(
            "jobs",
            _start(names="a", literal="bc", target="bc", jobs="ab"),
            frozenset(
                {"breach", "heal", "budget", "suspend", "resume", "unreachable", "unresponsive", "crash", "stale"}
                | {"zombie", "retry", "abort", "lag", "catch-up", "drop", "delete-policy", "edit"}
            ),
            {
                "fresh": (),
                "moving": _times(2),
                "healthy": _PROMOTED,
                "suspending": (*_PROMOTED, Event("abort"), PASS),
                "resuming": (*_PROMOTED, Event("abort"), *_times(2)),
                "gradual": (*_PROMOTED, Event("breach", "b", "speed"), *_times(4)),
            },
            {"suspend": {"suspend": True}},
        ),
        Scenario(
            "people",
            # While a person is waited for, the comparison is looked at and written in each window: that is no rest.
            _start(
                strategy={
                    "steps": [{"setWeight": 34}, {"pause": {}}, {"setWeight": 100}],
                    "comparison": {"onRegression": "Ignore"},
                }
            ),
            frozenset({"breach", "heal", "promote", "retry", "abort", "edit", "recreate-policy", "crash"}),
            {"fresh": (), "paused": _times(6)},
            {
                "prerequisite": {"reenable": {**_REENABLE, "prerequisites": ["fix"]}},
                "suspend": {"suspend": True},
                "target bf16": {"target": "bf16"},
                "one step": {"strategy": {"steps": [{"setWeight": 100}]}},
            },
        ),
        Scenario(
            "fleet",
            _start(),
            frozenset(
                {"breach", "heal", "drop", "join", "scale", "undeclare", "drain", "edit", "stale", "retry"}
                | {"delete-policy", "recreate-policy", "lose", "release"}
            ),
            {
                "fresh": (),
                "moving": _times(2),
                "healthy": _PROMOTED,
                "held alone": (*_PROMOTED, Event("breach", "a", "speed"), *_times(5)),
                "rolling back": _BROKEN,
            },
            {"selector": _ONE_PART},
        ),
        Scenario(
            "adoption",
            _start(target="ac", deletionPolicy="Release"),
            frozenset(
                {"breach", "heal", "unobservable", "bypass", "drain", "crash", "abort", "edit"}
                | {"delete-policy", "recreate-policy", "lose"}
            ),
            {
                "fresh": (),
                "adopted": _times(2),
                "healthy": _PROMOTED,
                "rolling back": _BROKEN,
                "new only": (*_PROMOTED, Event("edit", choice="new only"), Event("abort"), *_times(2)),
            },
            {
                "selector": _ONE_PART,
                "hold": {"deletionPolicy": "Hold"},
                "new only": {"delivery": "NewOnly"},
            },
        ),
        Scenario(
            "mitigation",
            _start(names="abc", literal=""),
            frozenset({"breach", "mild", "heal", "unresponsive", "unobservable", "crash", "stale", "late", "retry"}),
            {
                "healthy": _PROMOTED,
                "mitigating": _MITIGATING,
                "climbing": (*_MITIGATING, *_times(4)),
                "in BF16": _IN_BF16,
                "helped": (*_IN_BF16, Event("heal", "a"), *_times(5)),
            },
        ),
        Scenario(
            "canary",
            _start(names="abc", literal="", rollback=_CANARY),
            frozenset({"breach", "heal", "unobservable", "crash-loop", "crash", "late", "promote", "retry", "abort"}),
            {
                "comparing": _COMPARING,
                "promoted": (*_COMPARING, *_times(6)),
                "no difference": (*_COMPARING, Event("heal", "a"), Event("heal", "b"), *_times(8)),
            },
        ),
        Scenario(
            "drill",
            _start(names="ab", literal="c", groups="b"),
            frozenset(
                {
                    "breach",
                    "heal",
                    "unresponsive",
                    "unobservable",
                    "crash",
                    "stale",
                    "zombie",
                    "lag",
                    "catch-up",
                    "drain",
                }
                | {"drill", "abort", "drop", "edit", "away", "back"}
            ),
            {
                "healthy": _PROMOTED,
                "in a drill": (*_PROMOTED, Event("drill"), PASS),
                "going back": (*_PROMOTED, Event("drill"), *_times(5)),
            },
            {"suspend": {"suspend": True}, "target bf16": {"target": "bf16"}},
        ),
        Scenario(
            "pods",
            _start(names="ab", literal="", groups="b", replicas={"a": 3}, unit="Pod", strategy={"steps": _BY_PODS}),
            frozenset({"breach", "heal", "unobservable", "crash", "stale", "drain", "scale", "retry", "abort"}),
            {
                "fresh": (),
                "one place": _times(2),
                "two places": _times(4),
                "healthy": _PROMOTED,
                "rolling back": (*_times(4), Event("abort"), PASS),
                "rolled back": (*_times(4), Event("abort"), *_times(6)),
            },
        ),
        Scenario(
            "indexes",
            _start(
                names="",
                literal="ab",
                groups="b",
                ordered="ab",
                numbered="ab",
                replicas={"a": 3},
                unit="Pod",
                strategy={"steps": _BY_PODS},
            ),
            frozenset({"breach", "heal", "unobservable", "crash", "stale", "drain", "scale", "lag", "catch-up"})
            | {"bypass", "budget", "retry", "abort"},
            {
                "fresh": (),
                "one place": _times(4),
                "two places": _times(8),
                "healthy": _RESTARTED,
                "rolling back": (*_times(8), Event("abort"), PASS),
                "rolled back": (*_times(8), Event("abort"), *_times(8)),
            },
        ),
        Scenario(
            "restarts",
            _start(groups="b", ordered="b", delivery="Restart"),
            frozenset(
                {"breach", "heal", "crowd", "revise", "drain", "budget", "finalizer", "unresponsive", "crash", "stale"}
                | {"retry", "abort", "edit"}
            ),
            {
                "fresh": (),
                "moving": _times(2),
                "restarting": (*_RESTARTED, Event("abort"), PASS),
                "gradual": (*_RESTARTED, Event("breach", "b", "speed"), *_times(5)),
                "lenient": (Event("edit", choice="lenient"), *_RESTARTED),
                "hot": (Event("edit", choice="hot"), *_RESTARTED),
                "hot and lenient": (Event("edit", choice="hot"), Event("edit", choice="lenient"), *_RESTARTED),
            },
            {"hot": {"delivery": "Auto"}, "lenient": {"rollback": _LENIENT}},
        ),
    )


def scenario(name: str) -> Scenario:
    """The scenario of that name."""
    return next(entry for entry in scenarios() if entry.name == name)
