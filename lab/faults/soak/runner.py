"""Runs a soak: faults, rest, a quiet time; then judges what was recorded."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lab.demo.stage import SYSTEM, workload_of
from lab.errors import LabError
from lab.faults.checker import check
from lab.faults.recorder import Recorder
from lab.faults.soak.accounts import crashes, faults_done
from lab.faults.soak.faults import Faults
from lab.faults.soak.person import Person
from lab.faults.soak.plan import Planned, plan
from lab.faults.soak.scene import NAMESPACE, TRAINERS, VICTIMS, Scene, follow_policy, soaking
from lab.faults.trace import Header, Note, Trace, write_trace
from lab.waiting import wait_for
from precision_operator.api.state import Phase

Say = Callable[[str], None]

REST_SECONDS = 300.0
"""Bound of the way to rest, a rollback and its retry included."""
CALM_SECONDS = 30.0
"""For so long nothing must be left to do before it counts as rest: three windows of the metrics."""
QUIET_SECONDS = 60.0
"""At rest nothing may be written for so long."""
_PROMOTED = {trainer.name: "fp16" for trainer in TRAINERS}


@dataclass(frozen=True, slots=True)
class SoakResult:
    """What came of it."""

    minutes: float
    """From the first policy to the end of the quiet time."""
    faults: Mapping[str, int]
    """By kind."""
    crashes: tuple[str, ...]
    """Processes of the operator that ended, and not by our kills."""
    steps_hot: int
    """How far all trainers came together."""
    steps_lost_hot: int
    """Of these; a process that was not read in time counts as a violation, not as a loss."""
    violations: tuple[str, ...]
    recovery_seconds: Mapping[str, tuple[float, ...]]
    """By kind: from when it was brought back (of a pod: killed) until all was whole."""
    rollbacks: int
    """Times that the fleet was broken, rolled back and retried."""
    trace: Path
    gaps: int = 0
    """Watches of the recorder that were refused."""


@dataclass
class _Record:
    """What is known while it runs."""

    recoveries: dict[str, list[float]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def run(seed: int, minutes: float, *, kills: int, directory: Path, say: Say) -> SoakResult:
    """Soak a cluster of its own; needs root, and the machine's one full cluster to be down.

    Args:
        seed: of the faults and of what breaks when.
        minutes: for the faults. Making the cluster, coming to rest and the quiet time take some more.
        kills: how many; at least one of each kind.
        directory: for the trace, ``soak.jsonl`` or ``soak.jsonl.gz``, and the logs.
        say: told of each event.

    Raises:
        LabError: there is a cluster already, or it cannot be made.
    """
    faults = plan(seed=seed, minutes=minutes, kills=kills)
    record = _Record()
    with soaking() as scene:
        began = time.monotonic()
        with Recorder(scene.cluster.kubeconfig, [NAMESPACE, SYSTEM]) as recorder:
            follow_policy(scene)
            secrets = list(scene.secrets().items())
            with Person(scene.fleet, VICTIMS, seed=seed, say=say) as person:
                _strike_all(faults, Faults(scene, recorder), record, say)
                _come_to_rest(scene, person, record, say)
            _quiet(scene, recorder, say)
            trace = recorder.trace(_header(seed, faults))
            secrets += scene.secrets().items()  # a kubelet that was killed has fetched new ones
        ended = time.monotonic()
        counted = scene.steps.counted()
        _keep_logs(scene, directory)
    record.wrong += [text for name, steps in counted.items() for text in steps.wrong(name)]
    record.wrong += [f"trainer: {death}" for death in crashes(trace, NAMESPACE)]
    return SoakResult(
        minutes=round((ended - began) / 60, 2),
        faults=dict(faults_done(trace)),
        crashes=tuple(str(death) for death in crashes(trace, SYSTEM)),
        steps_hot=sum(steps.made for steps in counted.values()),
        steps_lost_hot=sum(steps.lost for steps in counted.values()),
        violations=(*record.wrong, *violated(trace, secrets)),
        recovery_seconds={kind: tuple(round(s, 1) for s in seconds) for kind, seconds in record.recoveries.items()},
        rollbacks=len(person.retried),
        trace=write_trace(trace, directory / "soak.jsonl"),
        gaps=len(trace.gaps),
    )


def violated(trace: Trace, secrets: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The checker's violations. ``secrets``: (name, what nobody may read); a name may come again with another value."""
    named = {f"{name} ({number})": secret for number, (name, secret) in enumerate(secrets, 1)}
    return tuple(str(violation) for violation in check(trace, secrets=named))


def _strike_all(faults: tuple[Planned, ...], striker: Faults, record: _Record, say: Say) -> None:
    began = time.monotonic()
    for number, planned in enumerate(faults, start=1):
        time.sleep(max(0.0, began + planned.at_seconds - time.monotonic()))
        what = f"fault {number} of {len(faults)}: {planned.kind}"
        say(f"{what}, away for {planned.outage_seconds:.1f} s")
        try:
            seconds = striker.strike(planned)
        except LabError as error:
            record.wrong.append(f"L1 {what}: {error}")
            say(f"{what}: {error}")
        else:
            record.recoveries.setdefault(planned.kind, []).append(seconds)
            say(f"{what}: all is whole {seconds:.1f} s after it was brought back")


def _come_to_rest(scene: Scene, person: Person, record: _Record, say: Say) -> None:
    say("faults are over: coming to rest")
    person.rest()

    try:
        wait_for(
            lambda: person.content_seconds >= CALM_SECONDS and scene.fleet.modes() == _PROMOTED,
            what=f"the fleet to be promoted, and nothing to be done for {CALM_SECONDS:g} s",
            seconds=REST_SECONDS,
            every=1.0,
            found=lambda: f"{scene.fleet.status()}, modes {scene.fleet.modes()}",
        )
    except LabError as error:
        record.wrong.append(f"L1 {error}")


def _quiet(scene: Scene, recorder: Recorder, say: Say) -> None:
    recorder.note(Note.FAULTS_END, {})
    found = scene.fleet.metrics.modes(NAMESPACE)
    for pod, (mode, generation) in found.items():
        workload = f"apps/Deployment/{workload_of(pod)}"
        body = {"namespace": NAMESPACE, "pod": pod, "workload": workload, "mode": mode, "generation": generation}
        recorder.note(Note.REPORTED, body)
    recorder.settle()
    say(f"at rest: nothing may be written for {QUIET_SECONDS:g} s")
    recorder.note(Note.REST, {})
    time.sleep(QUIET_SECONDS)
    recorder.settle()


def _header(seed: int, faults: tuple[Planned, ...]) -> Header:
    injected = {"faults": [asdict(planned) for planned in faults]}
    phases = {f"{NAMESPACE}/fleet": [str(Phase.HEALTHY)]}
    return Header("soak", seed, injected, {"phases": phases, "unreported": True})  # until rest nobody asks trainers


def _keep_logs(scene: Scene, directory: Path) -> None:
    """Those of the operator and of the trainers, and of what ran before in the same pods."""
    folder = directory / "soak-logs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for namespace in (SYSTEM, NAMESPACE):
        for pod in scene.pods(namespace):
            name = pod["metadata"]["name"]
            for suffix, more in (("", ()), (".previous", ("--previous",))):
                done = scene.cluster.kubectl("logs", name, "-n", namespace, *more, check=False)
                if done.returncode == 0:
                    (folder / f"{name}{suffix}.log").write_text(done.stdout)
