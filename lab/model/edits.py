"""What an edit of the policy does in every phase, as the shipped ``decide`` answers it.

    python -m lab.model.edits > docs/reference/edits.md

A test holds the page to the code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lab.model.cluster import LABELS
from lab.model.policies import FAST, written
from lab.model.world import OVERFLOWS, World
from precision_operator.api.modes import Mode
from precision_operator.api.policy import Policy
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase

PASSES = 12
APPROVAL = {"steps": [{"setWeight": 50}, {"pause": {}}, {"setWeight": 100}]}


class Edited(World):
    """A world whose policy is edited as a person writes it."""

    def __init__(self, spec: Mapping[str, object]) -> None:
        super().__init__(_policy(spec))
        self.spec = dict(spec)

    def edit(self, **fields: object) -> None:
        """Other fields of the spec."""
        self.spec |= fields
        new, old = _policy(self.spec), self.policy
        self.policy = Policy(
            old.namespace,
            old.name,
            old.uid,
            old.generation + 1,
            new.spec,
            old.annotations,
            new.settings,
        )


def _policy(spec: Mapping[str, object]) -> Policy:
    return written(spec, uid="policy-uid")


def in_phase(phase: Phase) -> Edited:
    """A fleet that has come to this phase, and would stay in it."""
    world = Edited({**FAST, **({"strategy": APPROVAL} if phase is Phase.PAUSED else {})})
    for index in range(5):
        world.add(f"hot-{index}")
    world.add("literal", hot=False)
    for name in world.workloads:
        world.labels[name] = {**LABELS, "part": "one" if name in ("hot-0", "hot-1") else "two"}
    world.metrics_away = phase is Phase.PENDING
    if phase is Phase.PROGRESSING:
        world.everywhere = {Signal.DIVERGENCE: 0.1}  # too much for a promotion, too little for a rollback
    if phase in (Phase.DEGRADED, Phase.ROLLING_BACK, Phase.HELD):
        _until(world, Phase.HEALTHY)
        world.bad = {"hot-2": OVERFLOWS} if phase is Phase.DEGRADED else dict.fromkeys(world.workloads, OVERFLOWS)
        world.unresponsive = set(world.workloads) if phase is Phase.ROLLING_BACK else set()
    _until(world, phase)
    for _ in range(1 if phase is Phase.ROLLING_BACK else 5):
        world.step()
    return world


def _until(world: Edited, phase: Phase) -> None:
    for _ in range(60):
        if world.state.phase is phase:
            return
        world.step()
    raise AssertionError(f"expected {phase}, found {world.state.phase}: {world.summary.message}")


def _written(**fields: object) -> Callable[[Edited], None]:
    return lambda world: world.edit(**fields)


def _interrupted(world: Edited) -> None:
    for suspend in (True, False):
        world.edit(suspend=suspend)
        world.step()


def _delete(world: Edited) -> None:
    world.delete_policy()


def _release(world: Edited) -> None:
    world.edit(deletionPolicy="Release")
    world.step(1.0)
    _delete(world)


def _again(world: Edited) -> None:
    _delete(world)
    world.step(1.0)
    world.recreate_policy(written(world.spec, uid="another"))


EDITS: Mapping[str, Callable[[Edited], None]] = {
    "nothing": lambda world: None,
    "looser overflow threshold": _written(criteria={"overflow": {"enter": 0.9, "leave": 0.5, "warn": None}}),
    "threshold that is in breach": _written(criteria={"divergence": {"enter": -1.0, "leave": -2.0}}),
    "one step of 100 %": _written(strategy={"steps": [{"setWeight": 100}]}),
    "selector without two": _written(selector={"matchLabels": {**LABELS, "part": "two"}}),
    "`target: bf16`": _written(target="bf16"),
    "`fallback: bf16`": _written(fallback="bf16"),
    "`strategies: {P1: Gradual}`": _written(rollback={"strategies": {"P1": "Gradual"}}),
    "`delivery: NewOnly`": _written(delivery="NewOnly"),
    "`delivery: Hot`": _written(delivery="Hot"),
    "`suspend: true`": _written(suspend=True),
    "suspended, then resumed": _interrupted,
    "assignment deleted": lambda world: world.lose_assignment(),
    "deleted, `Hold`": _delete,
    "deleted, `Release`": _release,
    "deleted and created": _again,
}


def outcome(phase: Phase, edit: str) -> str:
    """Where the fleet stands a few passes after the edit: phase, reason, and what it trains in."""
    world = in_phase(phase)
    EDITS[edit](world)
    for _ in range(PASSES):
        if world.gone:
            break
        world.step()
    modes = {mode: len(world.really_in(mode)) for mode in (Mode.FP32, Mode.FP16, Mode.BF16)}
    counts = ", ".join(f"{count} {mode}" for mode, count in modes.items() if count)
    reason = world.state.reason if world.policy.deleted else world.summary.reason
    return f"gone; {counts}" if world.gone else f"{world.state.phase} ({reason}); {counts}"


def table() -> str:
    """The page."""
    phases = list(Phase)
    lines = [
        "# Edits in every phase",
        "",
        f"Six workloads, five of them hot, are brought to a phase. Then come one edit and {PASSES} passes of",
        "the shipped `decide`. What made the fleet breach goes on. In RollingBack the trainers take no",
        "request until they are restarted. Each cell shows the phase it ends in, the reason, and what the",
        "processes train in; *gone* means that no PrecisionAssignment is left. Written by `python -m",
        "lab.model.edits`; a test holds it to the code.",
        "",
        "| edit | " + " | ".join(phases) + " |",
        "|---|" + "---|" * len(phases),
    ]
    lines += [f"| {edit} | " + " | ".join(outcome(phase, edit) for phase in phases) + " |" for edit in EDITS]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
