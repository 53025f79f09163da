"""What lacks device memory for FP32: it is held in BF16 where the policy allows it, else restarted, else flipped."""

from precision_operator.api.modes import Mode
from precision_operator.api.spec import Delivery, OnMemoryShortage, RollbackSpec
from precision_operator.api.state import Phase, State
from precision_operator.api.text import names
from precision_operator.core.actions import Notify
from precision_operator.core.model import Evaluation, RestartBy, WorkloadView, pods_seen
from precision_operator.reasons import Reason

BF16_BYTES = 16 * 1024
"""What the modes of the workloads that a rollback holds in BF16 may take in the assignment."""


def lacks_memory(workload: WorkloadView, evaluation: Evaluation | None) -> bool:
    """FP32 would run out of device memory in a process that has trained in less: only a new one has it all."""
    seen = pods_seen(evaluation)
    return any(seen[pod.name].lacks_memory for pod in workload.pods if pod.name in seen)


def fallback_in_bf16(
    rules: RollbackSpec,
    fallback: Mode,
    state: State,
    evaluation: Evaluation | None,
    movable: tuple[tuple[WorkloadView, Delivery], ...],
) -> frozenset[str]:
    """Keys of the workloads whose fallback is BF16: those that a rollback holds in it, and those that one would.

    Args:
        state: as the last pass left it. Once rolled back, what is not in BF16 is in the fallback, and never raised from it.
    """
    if rules.on_memory_shortage is not OnMemoryShortage.BF16 or fallback is not Mode.FP32:
        return frozenset()
    rolled_back = state.phase in (Phase.ROLLING_BACK, Phase.HELD) and not state.by_canary
    held = state.back_keys
    found, room_bytes = set[str](), BF16_BYTES
    for workload, delivery in movable:
        mode, key = state.modes.get(workload.key), workload.key
        if rolled_back or key in held:
            chosen = mode is Mode.BF16
        else:
            chosen = mode is Mode.FP16 and delivery is Delivery.HOT and lacks_memory(workload, evaluation)
        size = len(key.encode()) + len(':"bf16","",')
        # Where there is no room to remember it, it is restarted.
        if chosen and size <= room_bytes:
            found.add(key)
            room_bytes -= size
    return frozenset(found)


def shortage_events(
    workloads: tuple[WorkloadView, ...], evaluation: Evaluation | None, before: State, after: State
) -> tuple[Notify, ...]:
    """What becomes of those that lack memory, said in the pass that takes reduced precision from them."""
    gone = [w for w in workloads if w.hot and before.assigned(w.key) is Mode.FP16 is not after.assigned(w.key)]
    kept = [w.name for w in gone if _kept_in_bf16(w.key, before, after)]
    begun = after.restarts.keys() - before.restarts.keys()
    restarted = [w.name for w in workloads if w.key in begun and w.hot and lacks_memory(w, evaluation)]
    flipped = [
        w.name
        for w in gone
        if (w.restart_by is RestartBy.NEVER or w.pending_revision)
        and after.assigned(w.key) is Mode.FP32
        and lacks_memory(w, evaluation)
    ]
    said = (
        (kept, "go to BF16 at a step boundary and are held there (rollback.onMemoryShortage)"),
        (restarted, "restarted, a change at a step boundary would fail"),
        (
            flipped,
            "nothing restarts them, or would bring in a change of their template, so they change at a step boundary and may "
            "run out of memory: make their pods anew, or allow rollback.onMemoryShortage: BF16",
        ),
    )
    return tuple(
        Notify(Reason.MEMORY_TOO_SMALL, f"FP32 needs more device memory than {names(who)} have left: {what}")
        for who, what in said
        if who
    )


def _kept_in_bf16(key: str, before: State, after: State) -> bool:
    """By a rollback: mitigation asks for BF16 too, and says so itself."""
    out = after.phase in (Phase.ROLLING_BACK, Phase.HELD) or key in after.back_keys - before.back_keys
    return out and after.assigned(key) is Mode.BF16
