"""What a soak cost, counted from what was recorded: training steps, and processes of the operator. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lab.faults.trace import Entry, Note, Object, Trace
from precision_operator.api.wire import integer, mapping, sequence, text


@dataclass(frozen=True, slots=True)
class Reading:
    """What a trainer's process reported at once."""

    at: float
    """Seconds since the epoch."""
    step: int
    """The global step; it survives restarts."""
    tried: int
    """Steps that this process has tried since it started."""
    rewinds: int = 0
    """Times that this process went back to an older checkpoint."""

    @property
    def began_at_step(self) -> int:
        """Where the process began to train. The same in each of its readings, or steps were lost in between."""
        return self.step - self.tried


@dataclass(frozen=True, slots=True)
class Steps:
    """How training went on, over one workload's readings in order. Times without a reading are no loss."""

    lost: int
    """Steps that were trained and had to be trained again."""
    restarts: int
    """Processes that began after the first."""
    rewinds: int
    made: int = 0
    """How far training came from the first reading to the last."""

    @classmethod
    def of(cls, readings: Sequence[Reading]) -> Steps:
        """Count them. What a process trained after its last reading is not known, and not counted."""
        lost = restarts = 0
        for before, after in pairwise(readings):
            if after.tried < before.tried:
                restarts += 1
                lost += max(0, before.step - after.began_at_step)
            else:
                lost += abs(after.began_at_step - before.began_at_step)
        rewinds = max((reading.rewinds for reading in readings), default=0)
        return cls(lost, restarts, rewinds, readings[-1].step - readings[0].step if readings else 0)

    def wrong(self, name: str) -> list[str]:
        """What must not have been, for people."""
        found = {
            f"{name} was restarted {self.restarts} times": self.restarts,
            f"{name} was rewound {self.rewinds} times": self.rewinds,
            f"{name} was not seen to train": self.made <= 0,
        }
        return [text for text, so in found.items() if so]


@dataclass(frozen=True, slots=True)
class Death:
    """A container's process ended."""

    pod: str
    container: str
    """The runtime's id of it, which no other process has; empty: it was not seen, only counted."""
    exit_code: int
    reason: str
    uid: str = ""
    """The pod's: one of the same name may have followed it."""

    def __str__(self) -> str:
        why = f"{self.reason or 'no reason'}, exit code {self.exit_code}" if self.container else "not seen by the watch"
        return f"the process of pod {self.pod} ended ({why})"


def crashes(trace: Trace, namespace: str) -> tuple[Death, ...]:
    """Deaths in a namespace's pods that no note says we caused, those of pods that were deleted left out."""
    killed = {text(entry.body.get("container")) for entry in trace.entries if entry.kind == Note.KILL}
    seen: dict[str, Death] = {}
    counted: dict[tuple[str, str], int] = {}
    for entry in trace.entries:
        if entry.kind != "Pod" or entry.namespace != namespace or _going(entry):
            continue
        pod = (entry.name, entry.uid)
        counted[pod] = max(counted.get(pod, 0), _ended(entry))
        seen |= {death.container: death for death in _deaths(entry)}
    found = [death for death in seen.values() if death.container not in killed]
    for (name, uid), ended in counted.items():
        unseen = ended - sum(death.uid == uid for death in seen.values())
        found += [Death(name, "", 0, "", uid)] * max(0, unseen)
    return tuple(found)


def faults_done(trace: Trace) -> Counter[str]:
    """How often each kind of fault was done, and not only planned."""
    return Counter(text(entry.body.get("process")) for entry in trace.entries if entry.kind in (Note.KILL, Note.FAULT))


def _ended(pod: Entry) -> int:
    """How many containers of a pod have ended: each that was followed by another, and those that were not yet."""
    return sum(integer(status.get("restartCount"), 0) + _is_down(status) for status in _of(pod))


def _is_down(status: Mapping[str, object]) -> bool:
    """It has ended, and the next one was not made: the kubelet waits before it does."""
    now, last = mapping(status.get("state")), mapping(status.get("lastState"))
    return "terminated" in now or ("waiting" in now and "terminated" in last)


def _deaths(pod: Entry) -> Iterator[Death]:
    for status in _of(pod):
        for key in ("lastState", "state"):
            ended: Object = mapping(mapping(status.get(key)).get("terminated"))
            container = text(ended.get("containerID"))
            if container:
                yield Death(pod.name, container, integer(ended.get("exitCode"), 0), text(ended.get("reason")), pod.uid)


def _of(pod: Entry) -> list[Mapping[str, object]]:
    return [mapping(status) for status in sequence(mapping(pod.body.get("status")).get("containerStatuses"))]


def _going(pod: Entry) -> bool:
    return bool(mapping(pod.body.get("metadata")).get("deletionTimestamp")) or pod.deleted
