"""The lease on a checkpoint directory: who gets it and when, what is on disk, and what a process does without it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import IO

import pytest
import torch

from lab.waiting import wait_for
from precision_trainer.checkpoint.format import TrainingState
from precision_trainer.errors import CheckpointError
from precision_trainer.store.checkpoints import CheckpointStore
from precision_trainer.store.lease import Lease
from precision_trainer.store.lease_file import OwnFile, Record, claim, newest, path_of, process_lives
from precision_trainer.store.lease_judge import Judge, LeaseReason, holder_name
from precision_trainer.telemetry.metrics import Metrics
from precision_trainer.values.logs import JsonLog
from tests.support.training.process_group import ProcessGroup

SECONDS = 1.0
LONG = 60.0
"""Of a lease that must not end by itself, though nobody beats it while a slow disk is written to."""
UID_A, UID_B = "6f1e7d3c-0000-4000-8000-00000000000a", "6f1e7d3c-0000-4000-8000-00000000000b"


class Clock:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


Make = Callable[..., Lease]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Leases on one directory; given back with the test."""
    made: list[Lease] = []

    def lease(holder: str, metrics: Metrics | None = None) -> Lease:
        made.append(Lease(str(tmp_path), holder, log=JsonLog(), metrics=metrics or Metrics(), seconds=SECONDS))
        return made[-1]

    yield lease
    for one in made:
        one.release()


def _record(holder: str = UID_B, seconds: float = SECONDS) -> Record:
    return Record(holder, os.urandom(8).hex(), seconds)


def _taken(root: Path, holder: str = UID_B, *, seconds: float = SECONDS) -> OwnFile:
    """The lease, taken as another process takes it that finds the holder gone; it lives so many ``seconds``."""
    sight = newest(root)
    own = claim(root, 1 if sight is None else sight.number + 1, _record(holder, seconds))
    assert own is not None
    return own


def _events(capsys: pytest.CaptureFixture[str], name: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [line for line in lines if line["event"] == name]


# --- on disk ----------------------------------------------------------------------------------------------------------


def test_the_file_names_the_holder_and_a_release_leaves_a_number_that_is_not_used_again(
    tmp_path: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    first = make(UID_A)
    assert first.take(0.0)
    shown = json.loads(path_of(tmp_path, 1).read_text())
    assert (shown["holder"], shown["released"], shown["seconds"]) == (UID_A, False, SECONDS)
    first.release()
    assert json.loads(path_of(tmp_path, 1).read_text())["released"] is True
    assert make(UID_B).take(0.0)
    assert [entry.name for entry in tmp_path.iterdir()] == ["lease-000000000002.json"]
    reasons = [(line["reason"], line["previous_holder"]) for line in _events(capsys, "checkpoint_lease_acquired")]
    assert reasons == [("Free", None), ("Released", UID_A)]


def test_one_of_many_that_claim_a_lease_at_once_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # 240 of them, and this is of link()
    for round_ in range(30):
        root = tmp_path / str(round_)
        root.mkdir()
        together = threading.Barrier(8)
        won: list[OwnFile] = []

        def run(root: Path = root, together: threading.Barrier = together, won: list[OwnFile] = won) -> None:
            record = _record()
            together.wait()
            own = claim(root, 1, record)
            if own is not None:
                won.append(own)

        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert [entry.name for entry in root.iterdir()] == ["lease-000000000001.json"]
        assert not won[0].superseded()
        won[0].close()


def test_a_number_below_the_one_in_force_is_no_lease_though_its_file_is_gone(tmp_path: Path) -> None:
    late_looker = _taken(tmp_path)
    held = [_taken(tmp_path), _taken(tmp_path)][-1]
    assert claim(tmp_path, 2, _record()) is None
    assert [entry.name for entry in tmp_path.iterdir()] == ["lease-000000000003.json"]
    assert late_looker.superseded()
    assert not held.superseded()


def test_a_former_holder_cannot_write_into_the_lease_of_its_successor(tmp_path: Path) -> None:
    former = _taken(tmp_path, UID_A)
    _taken(tmp_path, UID_B)
    before = path_of(tmp_path, 2).read_bytes()
    for released in (False, True):
        with pytest.raises(FileNotFoundError):
            former.beat(released=released)
    # Nor where its own number was made once more.
    path_of(tmp_path, 1).write_text("{}")
    with pytest.raises(FileNotFoundError):
        former.beat()
    assert (path_of(tmp_path, 1).read_text(), path_of(tmp_path, 2).read_bytes()) == ("{}", before)


def test_a_higher_number_counts_also_where_the_former_file_could_not_be_removed(tmp_path: Path) -> None:
    former = _taken(tmp_path, UID_A)
    os.link(path_of(tmp_path, 1), tmp_path / "kept")
    _taken(tmp_path, UID_B)
    os.link(tmp_path / "kept", path_of(tmp_path, 1))  # as if it had been another user's in a sticky directory
    assert former.superseded()
    sight = newest(tmp_path)
    assert sight is not None
    assert (sight.number, sight.holder) == (2, UID_B)


def test_a_volume_without_hard_links_holds_a_lease_for_one_too(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert make(UID_A).take(0.0)
    assert not make(UID_B).take(0.0)
    assert [entry.name for entry in tmp_path.iterdir()] == ["lease-000000000001.json"]
    assert claim(tmp_path, 1, _record()) is None


def test_a_link_whose_first_answer_was_lost_counts_as_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    assert claim(tmp_path, 1, _record()) is not None
    assert claim(tmp_path, 1, _record()) is None


def test_the_holder_counts_as_alive_from_the_moment_its_lease_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, lives = os.link, []

    def look(source: Path, target: Path) -> None:
        link(source, target)
        lives.append(process_lives(tmp_path, 1))

    monkeypatch.setattr(os, "link", look)
    own = _taken(tmp_path)
    assert lives == [True]
    own.close()
    assert not process_lives(tmp_path, 1)


# --- who may take it, and when ------------------------------------------------------------------------------------------


def test_only_a_lease_that_does_not_change_for_its_time_is_free(tmp_path: Path) -> None:
    own, clock = _taken(tmp_path), Clock()
    judge = Judge(tmp_path, UID_A, SECONDS, clock=clock)
    for _ in range(5):
        assert judge(newest(tmp_path)) is None
        clock.now += 0.9 * SECONDS
        own.beat()
    assert judge(newest(tmp_path)) is None
    clock.now += 0.9 * SECONDS
    assert judge(newest(tmp_path)) is None
    clock.now += 0.2 * SECONDS
    assert judge(newest(tmp_path)) is LeaseReason.EXPIRED


@pytest.mark.parametrize("years", [-20, 20])
def test_the_clock_of_the_holders_node_does_not_matter(tmp_path: Path, years: int) -> None:
    own, clock = _taken(tmp_path), Clock()
    away = path_of(tmp_path, 1).stat().st_mtime + years * 3e7
    judge = Judge(tmp_path, UID_A, SECONDS, clock=clock)
    for _ in range(5):
        own.beat()
        os.utime(path_of(tmp_path, 1), (away, away))  # it stands still, even
        clock.now += 0.9 * SECONDS
        assert judge(newest(tmp_path)) is None
    clock.now += SECONDS
    assert judge(newest(tmp_path)) is LeaseReason.EXPIRED


def test_the_time_of_a_holder_that_beats_more_slowly_is_kept(tmp_path: Path) -> None:
    clock = Clock()
    assert claim(tmp_path, 1, Record(UID_B, "process", 10 * SECONDS)) is not None
    judge = Judge(tmp_path, UID_A, SECONDS, clock=clock)
    assert judge(newest(tmp_path)) is None
    clock.now += 9.5 * SECONDS
    assert judge(newest(tmp_path)) is None
    clock.now += SECONDS
    assert judge(newest(tmp_path)) is LeaseReason.EXPIRED


def test_a_restarted_container_takes_its_pods_lease_at_once_unless_the_process_lives(tmp_path: Path) -> None:
    judge = Judge(tmp_path, UID_A, SECONDS, clock=Clock())
    living = _taken(tmp_path, UID_A)
    assert judge(newest(tmp_path)) is None  # a second process in the same pod, as kubectl exec starts one
    living.close()  # as the kernel does when a process ends, however it ends
    assert judge(newest(tmp_path)) is LeaseReason.SAME_POD


def _garbage(path: Path) -> None:
    path.write_bytes(b'{"holder": 3')


def _empty(path: Path) -> None:
    path.touch()


def _deep(path: Path) -> None:
    path.write_text("[" * 400)


def _link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _wrong_types(path: Path) -> None:
    path.write_text('{"holder":"x","process":"y","heartbeat":"z","seconds":[]}')


@pytest.mark.parametrize("put", [_garbage, _empty, _deep, _link, _pipe, _folder, _wrong_types])
def test_a_lease_that_cannot_be_read_is_waited_out(
    put: Callable[[Path], None], tmp_path: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    put(path_of(tmp_path, 7))
    lease = make(UID_A)
    assert not lease.take(0.0)
    assert lease.take(20 * SECONDS)
    lease.check()
    (line,) = _events(capsys, "checkpoint_lease_acquired")
    assert (line["reason"], line["previous_holder"]) == ("Expired", None)
    assert path_of(tmp_path, 8).is_file()


def test_the_holder_is_the_pods_uid_and_else_a_name_of_one_process() -> None:
    assert holder_name({"PRECISION_POD_UID": f" {UID_A}\n"}) == UID_A
    assert holder_name({"PRECISION_POD_UID": 'é"/' + "x" * 500}) == "___" + "x" * 125
    assert holder_name({}) != holder_name({})


# --- the process that waits ---------------------------------------------------------------------------------------------


def test_who_waits_says_for_whom_and_healthz_stays_well(
    tmp_path: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = Metrics()
    held, waiting = make(UID_A), make(UID_B, metrics)
    assert held.take(0.0)
    metrics.last_step_at = -1e9
    assert not waiting.take(2 * SECONDS)  # longer than a lease lives without a heartbeat
    (line,) = _events(capsys, "checkpoint_lease_waiting")
    assert line["holder"] == UID_A
    assert f"grep {UID_A}" in str(line["message"])
    assert (metrics.gauge("genesis_checkpoint_lease_wait_seconds") or 0.0) >= 2 * SECONDS
    assert metrics.gauge("genesis_checkpoint_lease_held") == 0.0
    assert metrics.last_step_at > 0
    held.release()
    assert waiting.take(0.0)
    assert metrics.gauge("genesis_checkpoint_lease_held") == 1.0


def test_a_rank_that_dies_while_the_others_wait_for_the_lease_is_noticed() -> None:
    group = ProcessGroup(2)
    try:
        (result,) = group.run("state_scenarios.wait_for_a_lease_while_the_other_rank_dies", ranks=[0])
        assert result == {"lost": True, "timed out": False}
    finally:
        group.kill()


# --- the process that lost it -------------------------------------------------------------------------------------------


def _state(step: int) -> TrainingState:
    torch.manual_seed(3)
    model = torch.nn.Linear(3, 2)
    return {
        "format": 1,
        "step": step,
        "samples": step * 8,
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": torch.optim.AdamW(model.parameters()).state_dict(),
        "scaler": {"scale": 4.0, "growth_tracker": 1.0},
        "rng": [],
        "mode": "fp32",
        "generation": 0,
        "mode_history": [],
        "progress": {},
        "data_fingerprint": "x",
    }


def _store(tmp_path: Path, lease: Lease | None = None) -> CheckpointStore:
    return CheckpointStore(str(tmp_path), JsonLog(), lease=lease)


def test_without_its_lease_a_process_changes_no_checkpoint(
    tmp_path: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = Metrics()
    lease = make(UID_A, metrics)
    store = _store(tmp_path, lease)
    assert lease.take(0.0)
    store.begin()
    for step in (10, 20):
        store.save(_state(step))
    other = _taken(tmp_path, seconds=LONG)
    for change in (
        lambda: store.save(_state(30)),
        lambda: store.tag_healthy(20, 5),
        lambda: store.reject_after(10),
    ):
        with pytest.raises(CheckpointError, match=f"{UID_B} has taken the lease"):
            change()
    begun_by_the_other = tmp_path / ".tmp-step-000000000030"
    begun_by_the_other.mkdir()
    store.begin()
    assert begun_by_the_other.exists()
    assert (store.steps(), store.healthy_steps()) == ([20, 10], [])
    assert not other.superseded()
    (line,) = _events(capsys, "checkpoint_lease_lost")
    assert f"grep {UID_B}" in str(line["message"])
    assert metrics.gauge("genesis_checkpoint_lease_held") == 0.0


def test_a_checkpoint_begun_with_the_lease_and_complete_without_it_is_not_put_in_place(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = make(UID_A)
    store = _store(tmp_path, lease)
    assert lease.take(0.0)
    store.begin()
    store.save(_state(10))
    save = torch.save

    def frozen(state: object, file: IO[bytes]) -> None:
        save(state, file)
        if not isinstance(file, BytesIO):  # where it is tried whether it could be loaded
            _taken(tmp_path, seconds=LONG)

    monkeypatch.setattr(torch, "save", frozen)
    with pytest.raises(CheckpointError, match=f"{UID_B} has taken the lease"):
        store.save(_state(20))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["lease-000000000002.json", "step-000000000010"]


def _held(lease: Lease) -> bool:
    try:
        lease.check()
    except CheckpointError:
        return False
    return True


def test_a_lease_is_taken_back_from_one_that_wrote_nothing(tmp_path: Path, make: Make) -> None:
    lease = make(UID_A)
    store = _store(tmp_path, lease)
    assert lease.take(0.0)
    store.begin()
    store.save(_state(10))
    other = _taken(tmp_path, seconds=LONG)
    assert not _held(lease)
    other.beat(released=True)
    wait_for(lambda: _held(lease), what="the lease is taken back", seconds=60)
    store.save(_state(20))
    assert store.steps() == [20, 10]


def test_a_lease_is_not_taken_back_from_one_that_wrote_a_checkpoint(tmp_path: Path, make: Make) -> None:
    lease = make(UID_A)
    store = _store(tmp_path, lease)
    assert lease.take(0.0)
    store.begin()
    store.save(_state(10))
    other = _taken(tmp_path, seconds=LONG)
    assert not _held(lease)
    _store(tmp_path).save(_state(20))
    unchanged, looks = lease.unchanged, []

    def look() -> bool:
        looks.append(unchanged())
        return looks[-1]

    lease.unchanged = look
    other.beat(released=True)
    wait_for(lambda: len(looks) >= 3, what="three looks at what the other left", seconds=60)
    assert not any(looks)
    assert not _held(lease)
    with pytest.raises(CheckpointError):
        store.save(_state(30))
