"""A process that is given no further thread, as at its pod's limit: it trains on, says what was left out, and ends well."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from lab.cluster.ports import free_ports
from lab.waiting import wait_for
from precision_trainer.distributed.rendezvous import Place, call_roll
from precision_trainer.errors import ConfigError, MissingRankError, NoThreadError
from precision_trainer.store.lease import Lease
from precision_trainer.store.trials import TrialNotes
from precision_trainer.telemetry.metrics import Metrics
from precision_trainer.values.logs import JsonLog
from precision_trainer.values.modes import PrecisionMode
from precision_trainer.values.threads import begin, briefly
from tests.support.training.session import STOP, Session


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Session:
    return Session(tmp_path, monkeypatch, capsys)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on."""

    def refuse(thread: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    return lambda: monkeypatch.setattr(threading.Thread, "start", refuse)


def test_work_without_a_thread_is_an_error_or_is_done_here(no_threads: Callable[[], None]) -> None:
    no_threads()
    done: list[str] = []
    job = begin(lambda: done.append("alone"), "test")
    with pytest.raises(NoThreadError, match=r"can't start new thread\); raise the pod's limit"):
        job.result()
    assert begin(lambda: 3, "test", or_here=True).result() == 3
    briefly(lambda: done.append("briefly"), "test", 1.0)
    assert done == ["briefly"]


def test_a_rank_without_a_thread_says_so_and_blames_nobody_else(
    no_threads: Callable[[], None],
) -> None:
    (port,) = free_ports(1)
    place = Place("127.0.0.1", port, by_agent=False)
    no_threads()
    with pytest.raises(ConfigError, match="rank 0 of 2 could not wait for the others: no thread") as caught:
        call_roll(place, 0, 2, 5.0)
    assert not isinstance(caught.value, MissingRankError)


def test_tags_checkpoints_and_rewinds_fail_and_the_stop_saves_and_releases(
    session: Session, no_threads: Callable[[], None]
) -> None:
    at = {
        42: no_threads,
        50: session.write('{"generation":1,"mode":"fp32","checkpoint":true}'),
        55: session.write('{"generation":2,"mode":"fp32","rewind":true}'),
        70: STOP,
    }
    session.run(at, steps=1000, checkpoint_every=20, healthy_after=5, quick_disk=True)
    failed = [line["message"].partition(": ")[0] for line in session.events("checkpoint_failed")]
    assert failed[0] == "tag of step 40"
    assert failed[-1] == "save of step 60"
    assert len(failed) == 3
    assert session.value("genesis_checkpoint_failures_total") == 3
    (refused,) = session.events("rewind_failed")
    assert "no thread can be started for it (can't start new thread)" in refused["message"]
    (stopping,) = session.events("stopping")
    assert session.events("checkpoint")[-1]["step"] == stopping["step"] >= 70
    assert session.events("checkpoint_lease_released")
    assert session.events("runs_not_saved") == []


def test_a_lease_without_a_heartbeat_is_said_and_beats_once_there_is_a_thread(
    tmp_path: Path, no_threads: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lease = Lease(str(tmp_path), "holder", log=JsonLog(), metrics=Metrics(), seconds=1.0)
    no_threads()
    assert lease.take(0.0)
    lease.check()
    monkeypatch.undo()
    lease.check()
    wait_for(lambda: "checkpoint_lease_recovered" in capsys.readouterr().out, what="a heartbeat", seconds=60)
    lease.release()


def test_a_trial_that_could_not_be_noted_is_said(
    tmp_path: Path, no_threads: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    notes = TrialNotes(str(tmp_path), JsonLog())
    no_threads()
    notes.begin(PrecisionMode.MIXED_BF16, 7)
    assert json.loads(capsys.readouterr().out)["event"] == "trial_not_noted"
