"""What dies when in a soak, what the person does meanwhile, and what is counted afterwards."""

from __future__ import annotations

import subprocess
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from lab.errors import LabError
from lab.faults.soak import faults
from lab.faults.soak.accounts import Reading, Steps, crashes, faults_done
from lab.faults.soak.faults import Faults
from lab.faults.soak.person import Move, next_move
from lab.faults.soak.plan import LEAST_SLOT_SECONDS, OUTAGE_SECONDS, Kind, Planned, plan
from lab.faults.soak.runner import violated
from lab.faults.soak.scene import Scene
from lab.faults.trace import Note
from precision_operator.api.state import Phase
from tests.support.traces import NAMESPACE, Builder


@pytest.mark.parametrize("seed", range(20))
def test_each_kind_is_killed_about_as_often(seed: int) -> None:
    times = Counter(planned.kind for planned in plan(seed=seed, minutes=20, kills=20))
    assert set(times) == set(Kind)
    assert max(times.values()) - min(times.values()) <= 1


@pytest.mark.parametrize("seed", range(20))
def test_kills_are_spread_over_the_time(seed: int) -> None:
    planned = plan(seed=seed, minutes=20, kills=20)
    assert all(later.at_seconds - earlier.at_seconds >= 30 for earlier, later in pairwise(planned))
    assert planned[-1].at_seconds < 20 * 60


def test_leader_and_standby_die_and_all_pods_and_the_leader_alone_lose_their_network() -> None:
    planned = plan(seed=5, minutes=20, kills=24)
    for kind, first in ((Kind.OPERATOR, True), (Kind.NETWORK, False)):
        assert [p.leader for p in planned if p.kind is kind] == [first, not first, first, not first]


def test_an_outage_is_within_what_its_kind_allows() -> None:
    for planned in plan(seed=3, minutes=60, kills=60):
        least, most = OUTAGE_SECONDS[planned.kind]
        assert least <= planned.outage_seconds <= most


def test_a_seed_repeats_its_plan_and_another_has_its_own() -> None:
    assert plan(seed=1, minutes=20, kills=20) == plan(seed=1, minutes=20, kills=20)
    assert plan(seed=1, minutes=20, kills=20) != plan(seed=2, minutes=20, kills=20)


@pytest.mark.parametrize(("minutes", "kills"), [(20.0, len(Kind) - 1), (1.0, round(60 / LEAST_SLOT_SECONDS) + 6)])
def test_too_few_kills_and_too_little_time_are_refused(minutes: float, kills: int) -> None:
    with pytest.raises(LabError):
        plan(seed=1, minutes=minutes, kills=kills)


@pytest.mark.parametrize(
    ("phase", "broken", "patient", "move"),
    [
        (Phase.HEALTHY, False, False, Move.BREAK),
        (Phase.HEALTHY, False, True, Move.WAIT),
        (Phase.HEALTHY, True, False, Move.WAIT),
        (Phase.ROLLING_BACK, True, False, Move.WAIT),
        (Phase.HELD, True, False, Move.MEND),
        (Phase.HELD, False, True, Move.RETRY),
        (Phase.PROGRESSING, False, False, Move.WAIT),
    ],
)
def test_a_fleet_is_broken_when_promoted_mended_when_held_and_then_retried(
    phase: Phase, broken: bool, patient: bool, move: Move
) -> None:
    assert next_move(phase, broken=broken, patient=patient) is move


def readings(*pairs: tuple[int, int]) -> list[Reading]:
    return [Reading(float(at), step, tried) for at, (step, tried) in enumerate(pairs)]


def test_training_that_goes_on_by_one_loses_nothing_whatever_was_not_read() -> None:
    assert Steps.of(readings((120, 20), (121, 21), (300, 200))) == Steps(lost=0, restarts=0, rewinds=0, made=180)


def test_steps_that_a_process_goes_back_are_lost() -> None:
    assert Steps.of(readings((120, 20), (110, 30))).lost == 20


def test_a_restart_loses_what_came_after_the_checkpoint() -> None:
    counted = Steps.of(readings((120, 20), (150, 50), (141, 1)))
    assert (counted.lost, counted.restarts) == (10, 1)


def test_a_restart_from_the_last_step_loses_none() -> None:
    counted = Steps.of(readings((150, 50), (153, 3)))
    assert (counted.lost, counted.restarts) == (0, 1)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (Steps.of([]), "not seen to train"),
        (Steps.of(readings((120, 20), (150, 50), (153, 3))), "restarted 1 times"),
        (Steps.of([Reading(0.0, 120, 20), Reading(1.0, 121, 21, rewinds=1)]), "rewound 1 times"),
    ],
)
def test_what_a_hot_trainer_must_not_do_is_named(steps: Steps, said: str) -> None:
    (found,) = steps.wrong("soak-1")
    assert said in found


def test_a_trainer_that_trains_on_does_nothing_wrong() -> None:
    assert Steps.of(readings((120, 20), (121, 21))).wrong("soak-1") == []


def pod(built: Builder, *, restarts: int, ended: str = "", code: int = 137, state: str = "lastState") -> None:
    status = {"restartCount": restarts}
    terminated = {"containerID": ended, "exitCode": code, "reason": "Error"}
    body = {"status": {"containerStatuses": [{**status, state: {"terminated": terminated}} if ended else status]}}
    built.write("Pod", "operator-1", body)


def test_a_death_by_our_kill_is_no_crash() -> None:
    built = Builder()
    pod(built, restarts=0)
    built.note(Note.KILL, process="operator", container="containerd://a")
    pod(built, restarts=0, ended="containerd://a", state="state")
    pod(built, restarts=1, ended="containerd://a")
    assert crashes(built.trace(), NAMESPACE) == ()


def test_a_death_that_nobody_caused_is_a_crash_with_its_exit_code() -> None:
    built = Builder()
    built.note(Note.KILL, process="operator", container="containerd://a")
    pod(built, restarts=1, ended="containerd://a")
    pod(built, restarts=2, ended="containerd://b", code=1)
    assert [(death.container, death.exit_code) for death in crashes(built.trace(), NAMESPACE)] == [
        ("containerd://b", 1)
    ]


def test_a_restart_that_was_only_counted_is_a_crash() -> None:
    built = Builder()
    built.note(Note.KILL, process="operator", container="containerd://a")
    pod(built, restarts=2, ended="containerd://a")
    assert [death.container for death in crashes(built.trace(), NAMESPACE)] == [""]


def waiting(built: Builder, *, restarts: int, ended: str) -> None:
    """The kubelet waits before it makes the next container."""
    terminated = {"terminated": {"containerID": ended, "exitCode": 1}}
    status = {"restartCount": restarts, "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": terminated}
    built.write("Pod", "operator-1", {"status": {"containerStatuses": [status]}})


def test_a_death_that_was_not_seen_is_not_made_up_for_by_one_that_was_and_has_no_successor_yet() -> None:
    built = Builder()
    built.note(Note.KILL, process="operator", container="containerd://b")
    pod(built, restarts=1, ended="containerd://b", state="state")
    assert [death.container for death in crashes(built.trace(), NAMESPACE)] == [""]
    built = Builder()
    built.note(Note.KILL, process="operator", container="containerd://b")
    waiting(built, restarts=1, ended="containerd://b")
    assert [death.container for death in crashes(built.trace(), NAMESPACE)] == [""]


def test_a_pod_is_not_charged_with_the_deaths_of_one_that_had_its_name() -> None:
    built = Builder()
    built.note(Note.KILL, process="operator", container="containerd://a")
    pod(built, restarts=1, ended="containerd://a")
    status = {"containerStatuses": [{"restartCount": 1}]}
    built.write("Pod", "operator-1", {"status": status}, uid="another")
    assert [(death.container, death.uid) for death in crashes(built.trace(), NAMESPACE)] == [("", "another")]


def test_only_a_fault_that_was_done_is_counted() -> None:
    built = Builder()
    for note, kind in ((Note.KILL, Kind.ETCD), (Note.START, Kind.ETCD), (Note.FAULT, Kind.NETWORK)):
        built.note(note, process=str(kind))
    assert faults_done(built.trace()) == {Kind.ETCD: 1, Kind.NETWORK: 1}


class Ended:
    """A scene whose operator's process ends just before it is killed."""

    def __init__(self) -> None:
        self.cluster = self
        self.runtime = self
        self.notes: list[Note] = []

    def leader(self) -> str:
        return "operator-1"

    def pods(self, _: str) -> list[dict[str, Any]]:
        statuses = [{"containerID": "containerd://a"}]
        return [{"metadata": {"name": "operator-1"}, "status": {"containerStatuses": statuses}}]

    def process(self, _: str) -> int:
        return 2**22 + 1  # more than Linux gives

    def note(self, kind: Note, _: object) -> None:
        self.notes.append(kind)


def test_a_process_that_ended_before_it_could_be_killed_is_not_taken_for_killed() -> None:
    scene: Any = Ended()
    with pytest.raises(LabError, match="ended just now"):
        Faults(scene, scene).strike(Planned(0.0, Kind.OPERATOR, 0.0, leader=True))
    assert scene.notes == []


class Bare(Ended):
    """A cluster whose programs have ended, and whose pods have no network."""

    def __init__(self) -> None:
        super().__init__()
        self.control_plane = self.node = self.kubelet = self

    def kill_running(self) -> None:
        raise LabError("kubelet to keep running", "it ended", "read its log")

    kill_apiserver = kill_etcd = kill_running

    def start(self) -> None:
        """Nothing is brought back."""

    start_apiserver = start_etcd = start


@pytest.mark.parametrize("kind", [Kind.APISERVER, Kind.ETCD, Kind.KUBELET, Kind.NETWORK])
def test_a_fault_that_found_nothing_to_kill_or_to_cut_is_not_counted(
    monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    monkeypatch.setattr(faults, "pod_namespaces", list)
    scene: Any = Bare()
    with pytest.raises(LabError):
        Faults(scene, scene).strike(Planned(0.0, kind, 0.0, leader=False))
    assert scene.notes == []


def test_deaths_in_another_namespace_are_not_counted() -> None:
    built = Builder()
    pod(built, restarts=1, ended="containerd://a")
    assert crashes(built.trace(), "elsewhere") == ()


@pytest.mark.parametrize("shown", ["t0ken-before", "t0ken-after"])
def test_a_token_of_an_operator_that_stands_in_a_status_is_a_violation(shown: str) -> None:
    built = Builder()
    built.write("PrecisionPolicy", "fleet", {"status": {"message": f"refused {shown}"}})
    (found,) = violated(built.trace(), [("the token", "t0ken-before"), ("the token", "t0ken-after")])
    assert found.startswith("I11 ")


class Shell:
    """A cluster whose operator's pods show their tokens."""

    def __init__(self, tokens: dict[str, str]) -> None:
        self.tokens = tokens
        self.kubectl = self

    def json(self, *_: str) -> dict[str, Any]:
        return {"items": [{"metadata": {"name": name}} for name in self.tokens]}

    def __call__(self, verb: str, pod: str, *_: str) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([verb], 0, f"{self.tokens[pod]}\n", "")


def test_the_token_of_each_pod_of_the_operator_is_a_secret() -> None:
    cluster: Any = Shell({"one": "a", "two": "b"})
    assert Scene(cluster, cluster, cluster).secrets() == {"the token of one": "a", "the token of two": "b"}


@pytest.mark.parametrize("tokens", [{}, {"one": "a", "two": ""}])
def test_a_soak_that_does_not_know_the_secrets_is_refused(tokens: dict[str, str]) -> None:
    cluster: Any = Shell(tokens)
    with pytest.raises(LabError, match="a token in each pod"):
        Scene(cluster, cluster, cluster).secrets()
