"""What an edit of the policy does in every phase, as the shipped ``decide`` answers it.

    python -m lab.model.edits > docs/reference/edits.md

A test holds the page to the code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import PolicySpec, Severity, Strategy
from precision_operator.api.state import Phase, State
from precision_operator.api.steps import Stage
from precision_operator.contract import FINALIZER
from precision_operator.core.actions import GuardPolicy, ReleasePolicy
from precision_operator.core.decide import Decision
from precision_operator.core.model import Observation

OVERFLOWS = {Signal.OVERFLOW: 0.6}
PASSES = 12
APPROVAL = {"steps": [{"setWeight": 50}, {"pause": {}}, {"setWeight": 100}]}


@dataclass
class Edited(World):
    """A world whose selector can let go of workloads, and whose policy can be deleted."""

    deselected: set[str] = field(default_factory=set)

    def observe(self) -> Observation:
        """Without what the selector has left."""
        seen = super().observe()
        return replace(seen, workloads=tuple(w for w in seen.workloads if w.name not in self.deselected))

    @property
    def gone(self) -> bool:
        """Deleted, and nothing of ours holds it back."""
        return self.policy.deleted_at is not None and FINALIZER not in self.policy.finalizers

    def step(self, seconds: float = 15.0) -> Decision:
        """One pass, with the finalizer's writes carried out."""
        decision = super().step(seconds)
        for action in decision.actions:
            if isinstance(action, GuardPolicy):
                self.policy = replace(self.policy, finalizers=(FINALIZER,))
            elif isinstance(action, ReleasePolicy):
                self.policy = replace(self.policy, finalizers=())
        return decision


def in_phase(phase: Phase) -> Edited:
    """A fleet that has come to this phase, and would stay in it."""
    spec: dict[str, object] = {**FAST, **({"strategy": APPROVAL} if phase is Phase.PAUSED else {})}
    world = Edited(policy(**spec))  # type: ignore[arg-type]
    for index in range(5):
        world.add(f"hot-{index}")
    world.add("literal", hot=False)
    world.down = phase is Phase.PENDING
    if phase is Phase.PROGRESSING:
        world.everywhere = {Signal.DIVERGENCE: 0.1}  # too much for a promotion, too little for a rollback
    if phase in (Phase.DEGRADED, Phase.ROLLING_BACK, Phase.HELD):
        _until(world, Phase.HEALTHY)
        world.bad = {"hot-2": OVERFLOWS} if phase is Phase.DEGRADED else dict.fromkeys(world.workloads, OVERFLOWS)
        world.deaf = set(world.workloads) if phase is Phase.ROLLING_BACK else set()
    _until(world, phase)
    for _ in range(1 if phase is Phase.ROLLING_BACK else 5):
        world.step()
    return world


def _until(world: Edited, phase: Phase) -> None:
    for _ in range(60):
        if world.state.phase is phase:
            return
        world.step()
    raise AssertionError(f"expected {phase}, found {world.state.phase}: {world.state.message}")


def _spec(change: Callable[[PolicySpec], PolicySpec]) -> Callable[[Edited], None]:
    def edit(world: Edited) -> None:
        world.policy = replace(world.policy, spec=change(world.policy.spec), generation=world.policy.generation + 1)

    return edit


def _looser(spec: PolicySpec) -> PolicySpec:
    return replace(
        spec,
        criteria=tuple(replace(c, enter=0.9, warn=None) if c.signal is Signal.OVERFLOW else c for c in spec.criteria),
    )


def _stricter(spec: PolicySpec) -> PolicySpec:
    return replace(
        spec,
        criteria=tuple(
            replace(c, enter=-1.0, leave=-2.0) if c.signal is Signal.DIVERGENCE else c for c in spec.criteria
        ),
    )


def _gradual(spec: PolicySpec) -> PolicySpec:
    strategies = {**spec.rollback.strategies, Severity.P1: Strategy.GRADUAL}
    return replace(spec, rollback=replace(spec.rollback, strategies=strategies))


def _interrupted(world: Edited) -> None:
    for suspend in (True, False):
        world.policy = replace(world.policy, spec=replace(world.policy.spec, suspend=suspend))
        world.step()


def _less(world: Edited) -> None:
    world.deselected = {"hot-0", "hot-1"}


def _delete(world: Edited) -> None:
    world.policy = replace(world.policy, deleted_at=world.now)


def _restore(world: Edited) -> None:
    world.policy = replace(world.policy, spec=replace(world.policy.spec, restore_on_delete=True))
    world.step(1.0)
    _delete(world)


def _again(world: Edited) -> None:
    _delete(world)
    world.step(1.0)
    world.policy = replace(world.policy, deleted_at=None, finalizers=(), uid="another")
    world.state = State()


EDITS: Mapping[str, Callable[[Edited], None]] = {
    "nothing": lambda world: None,
    "looser overflow threshold": _spec(_looser),
    "threshold that is in breach": _spec(_stricter),
    "one step of 100 %": _spec(lambda spec: replace(spec, stages=(Stage(100),))),
    "selector without two": _less,
    "`target: bf16`": _spec(lambda spec: replace(spec, target=Mode.BF16)),
    "`fallback: bf16`": _spec(lambda spec: replace(spec, fallback=Mode.BF16)),
    "`strategies: {P1: Gradual}`": _spec(_gradual),
    "`suspend: true`": _spec(lambda spec: replace(spec, suspend=True)),
    "suspended, then resumed": _interrupted,
    "deleted, `Leave`": _delete,
    "deleted, `Restore`": _restore,
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
    paused = [w.name for w in world.workloads.values() if w.paused]
    assert not paused, (phase, edit, paused)
    return f"gone; {counts}" if world.gone else f"{world.state.phase} ({world.state.reason}); {counts}"


def table() -> str:
    """The page."""
    phases = list(Phase)
    lines = [
        "# Edits in every phase",
        "",
        f"Six workloads, five of them hot, brought to a phase; then one edit and {PASSES} passes of the shipped `decide`.",
        "What made the fleet breach goes on; in RollingBack the trainers are deaf until they are restarted. Each cell:",
        "the phase it ends in, the reason, and what the processes train in. No workload is ever left paused.",
        "Written by `python -m lab.model.edits`; a test holds it to the code.",
        "",
        "| edit | " + " | ".join(phases) + " |",
        "|---|" + "---|" * len(phases),
    ]
    lines += [f"| {edit} | " + " | ".join(outcome(phase, edit) for phase in phases) + " |" for edit in EDITS]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
