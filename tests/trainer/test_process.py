"""Real processes: the command line, signals, ranks, exit codes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.cluster.ports import free_ports
from precision_trainer import cli
from precision_trainer.errors import DivergedError
from precision_trainer.job.signals import StopFlag
from tests.support.training.process import (
    LAUNCH,
    PATIENT_LAUNCH,
    ROOT,
    SMALL,
    TORCHRUN,
    TRAIN,
    WAIT_SECONDS,
    WITH_TESTS,
    Process,
)

Start = Callable[..., Process]


def test_single_process_stops_with_a_checkpoint_and_resumes_at_the_same_step(start: Start) -> None:
    first = start(TRAIN)
    first.until_training()
    assert first.stop() == 143, first.text
    stopped = first.events("stopping")[0]
    assert stopped["signal"] == "SIGTERM"
    assert first.events("checkpoint")[-1]["step"] == stopped["step"]
    second = start(TRAIN)
    second.until_training()
    assert second.events("resumed")[0]["step"] == stopped["step"]
    assert second.stop() == 143


def test_two_ranks_flip_together_and_stop_with_code_143(start: Start) -> None:
    job = start([*LAUNCH, *TRAIN[2:], "--checkpoint-every", "0"])
    job.until_training()
    job.until_metric('genesis_precision_info{generation="0",mode="fp32"} 1.0')
    job.request.write_text('{"generation":7,"mode":"bf16"}')
    job.until_metric('genesis_precision_info{generation="7",mode="bf16"} 1.0')
    assert job.stop() == 143, job.text
    changes = job.events("precision_changed")
    assert sorted(change["rank"] for change in changes) == [0, 1]
    assert len({(change["step"], change["from"], change["to"], change["generation"]) for change in changes}) == 1
    assert {line["step"] for line in job.events("stopping")} == {line["step"] for line in job.events("checkpoint")}
    assert len({line["step"] for line in job.events("stopping")}) == 1


def test_a_dead_rank_ends_the_process_group_with_an_error_not_a_hang(start: Start) -> None:
    job = start([*PATIENT_LAUNCH, *TRAIN[2:]], WITH_TESTS)
    job.until_training()
    children = Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children").read_text().split()
    os.kill(int(children[1]), signal.SIGKILL)
    assert job.process.wait(WAIT_SECONDS) == 1
    assert job.events("rank_died")[0]["failed"] == 1
    assert "rank 0 lost a peer: rank 1 of 2 is gone or silent" in job.events("failed")[0]["message"]
    assert "Traceback" in job.text


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["-m", "precision_trainer", "train"], "found ZeroDivisionError (no batch of this size)"),
        ([*LAUNCH, "train"], "found local rank "),
        ([*TORCHRUN, "-m", "precision_trainer", "train"], "found local rank "),
    ],
    ids=["train", "launch", "torchrun"],
)
def test_the_last_line_of_a_job_that_failed_is_ours_and_says_what_to_do(
    start: Start, command: list[str], named: str
) -> None:
    task = "tests.support.training.harmless_scenarios:broken_task"
    job = start([*command, task, "--steps", "4"], WITH_TESTS)
    assert job.process.wait(WAIT_SECONDS) == 1
    last = json.loads(job.text.splitlines()[-1])
    assert last["event"] == "failed"
    assert named in last["message"]
    assert "start again, training goes on from the last checkpoint" in last["message"]


def test_a_model_with_unused_parameters_trains_on_two_ranks_with_the_flag_that_the_advice_names(start: Start) -> None:
    command = [*LAUNCH, "train", "tests.support.training.harmless_scenarios:unused_task", "--steps", "6"]
    job = start(command, WITH_TESTS)
    assert job.process.wait(WAIT_SECONDS) == 1
    assert any("(--find-unused-parameters of train)" in line["message"] for line in job.events("failed"))
    job = start([*command, "--find-unused-parameters"], WITH_TESTS)
    assert job.process.wait(WAIT_SECONDS) == 0, job.text
    assert sorted(line["rank"] for line in job.events("complete")) == [0, 1]


def test_under_torchrun_a_dead_rank_is_named_and_the_restarted_process_group_meets_anew(start: Start) -> None:
    command = [*TORCHRUN, "--max-restarts", "1", *TRAIN, "--steps", "200", "--step-interval-seconds", "0.02"]
    job = start(command, {"PRECISION_POD_UID": "6f1e7d3c-0000-4000-8000-00000000000a"})
    job.until_training()
    children = Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    # The agent keeps the store over both attempts: what the first one left there is not taken for the second.
    assert job.process.wait(WAIT_SECONDS) == 0, job.text
    (failed,) = job.events("failed")
    assert "rank 1 lost a peer: rank 0 of 2 is gone or silent" in failed["message"]
    assert sorted(line["rank"] for line in job.events("complete")) == [0, 1]


def test_two_nodes_under_torchrun_train_as_one_process_group(start: Start) -> None:
    (port,) = free_ports(1)
    meeting = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    nodes = [
        start(["-m", "precision_trainer.torchrun", *meeting, "--node-rank", str(node), *TRAIN, "--steps", "6"])
        for node in range(2)
    ]
    for node, process in enumerate(nodes):
        assert process.process.wait(WAIT_SECONDS) == 0, process.text
        (complete,) = process.events("complete")
        assert (complete["rank"], complete["world_size"], complete["step"]) == (node, 2, 6)


def test_a_terminal_gets_a_bar_and_the_lines_stay_json(tmp_path: Path) -> None:
    master, terminal = pty.openpty()
    with (tmp_path / "lines").open("w+") as lines:
        command = [sys.executable, *TRAIN, *SMALL, "--steps", "40", "--metrics-port", "-1"]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "trainer_image"), "TERM": "xterm"}
        process = subprocess.Popen(command, env=env, stdout=lines, stderr=terminal)
        os.close(terminal)
        shown = b""
        while True:
            try:
                shown += os.read(master, 65536)
            except OSError:  # how Linux says that the other side of a terminal is closed
                break
        os.close(master)
        assert process.wait(WAIT_SECONDS) == 0
        lines.seek(0)
        assert [json.loads(line)["event"] for line in lines][-1] == "complete"
    assert b"40/40" in shown
    assert b"fp32" in shown


def test_training_does_without_the_library_of_its_bar() -> None:
    code = "import sys; sys.modules['rich'] = None; import precision_trainer.job.train"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "trainer_image")}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=WAIT_SECONDS)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_under_torchrun_a_signal_has_every_rank_save_and_the_agent_end_with_143(
    start: Start, number: signal.Signals
) -> None:
    job = start([*TORCHRUN, *TRAIN, "--checkpoint-every", "0"], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "120"})
    job.until_training()
    assert job.stop(number) == 143, job.text
    stopping = job.events("stopping")
    assert sorted(line["rank"] for line in stopping) == [0, 1]
    saved = job.events("checkpoint")[-2:]
    assert [line["step"] for line in saved] == [line["step"] for line in stopping]


def test_sigterm_while_importing_ends_at_once_with_code_143(start: Start) -> None:
    process = start(TRAIN)
    # The signal waits, blocked, for the thread that takes it: in place long before torch is imported.
    assert process.stop() == 143
    assert [line["event"] for line in process.lines] == ["stopping"], "before anything that needs torch"
    assert process.events("stopping")[0]["step"] is None


def test_under_torchrun_a_signal_before_any_rank_runs_ends_with_143(start: Start) -> None:
    assert start([*TORCHRUN, *TRAIN]).stop() == 143


def test_a_stop_that_reaches_only_a_rank_ends_its_agent_with_143_too(start: Start) -> None:
    # As on the other nodes of a process group of which one node is drained.
    job = start([*TORCHRUN, *TRAIN])
    job.until_training()
    children = Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGTERM)
    assert job.process.wait(WAIT_SECONDS) == 143, job.text
    assert sorted(line["rank"] for line in job.events("stopping")) == [0, 1]


def test_errors_are_one_line_with_the_next_step_and_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINER_BATCH_SIZE", "-3")
    assert cli.main(["train", "transformer"]) == 1
    line = json.loads(capsys.readouterr().out)
    assert line["event"] == "failed"
    assert "expected a number in [1, 65536]" in line["message"]


def test_a_single_process_that_times_out_waiting_for_its_data_has_lost_no_peer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from precision_trainer.job import train

    def fail(*_: object, **__: object) -> object:
        raise RuntimeError("DataLoader timed out after 5 seconds")

    monkeypatch.setattr(train, "build_task", fail)
    monkeypatch.setattr("precision_trainer.job.signals.StopFlag.install", StopFlag)
    assert cli.main(["train", "--metrics-port", "-1"]) == 1
    found = capsys.readouterr()
    line = json.loads(found.out.splitlines()[-1])
    assert "found RuntimeError (DataLoader timed out after 5 seconds)" in line["message"]
    assert "Traceback" in found.err


def test_divergence_is_code_17(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from precision_trainer.job import train

    def diverge(*_: object) -> int:
        raise DivergedError("the loss was not finite")

    monkeypatch.setattr(train, "train", diverge)
    monkeypatch.setattr("precision_trainer.job.signals.StopFlag.install", StopFlag)
    assert cli.main(["train"]) == 17
    assert json.loads(capsys.readouterr().out)["event"] == "diverged"
