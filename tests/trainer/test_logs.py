"""Log lines that cannot be written: they are counted, and nothing else happens."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.waiting import wait_for
from precision_trainer.store.lease import Lease
from precision_trainer.store.lease_file import OwnFile
from precision_trainer.telemetry.metrics import Metrics
from precision_trainer.values.logs import JsonLog
from tests.support.training.process import ROOT, SMALL, TRAIN, WAIT_SECONDS


class _Refusing(io.StringIO):
    """A stream whose every write fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error


ENOSPC = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("error", [ENOSPC, BrokenPipeError(), ValueError("I/O operation on closed file")], ids=repr)
def test_a_line_that_cannot_be_written_is_counted_and_raises_nothing(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics, log = Metrics(), JsonLog()
    log.on_lost = lambda: metrics.add({"genesis_log_lines_lost": 1.0})
    monkeypatch.setattr(sys, "stdout", _Refusing(error))
    log.error("checkpoint_failed", "the disk is full")
    (lost,) = (family for family in metrics.collect() if family.name == "genesis_log_lines_lost")
    assert lost.samples[0].value == 1.0


@pytest.mark.parametrize(("encoding", "text"), [("ascii", "é 😀"), ("utf-8", os.fsdecode(b"/data/\xff"))])
def test_what_the_stream_cannot_encode_is_escaped(encoding: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    JsonLog().event("resumed", path=text)
    assert json.loads(written.getvalue())["path"] == text


def test_the_lease_beats_on_after_trouble_that_could_not_be_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[None] = []

    def beat(own: OwnFile, *, released: bool = False) -> None:
        beats.append(None)
        raise ENOSPC

    lease = Lease(str(tmp_path), "holder", log=JsonLog(), metrics=Metrics(), seconds=0.1)
    assert lease.take(0.0)
    monkeypatch.setattr(sys, "stdout", _Refusing(ENOSPC))
    monkeypatch.setattr(OwnFile, "beat", beat)
    wait_for(lambda: len(beats) > 2, what="more heartbeats", seconds=30.0)
    lease.release()


def test_training_whose_output_goes_to_a_full_volume_is_done(tmp_path: Path) -> None:
    command = [
        sys.executable,
        *TRAIN,
        *SMALL,
        "--steps",
        "3",
        "--metrics-port",
        "-1",
        "--checkpoint-dir",
        str(tmp_path),
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "trainer_image")}
    with open("/dev/full", "w") as full:
        assert subprocess.run(command, env=env, stdout=full, timeout=WAIT_SECONDS, check=False).returncode == 0
    assert (tmp_path / "step-000000000003" / "state.pt").exists()
