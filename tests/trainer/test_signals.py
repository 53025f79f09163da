"""The signals that stop training, and what they are to the processes that a person's code starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.training.process import ROOT, WAIT_SECONDS, Process

WORKERS = ["-m", "precision_trainer", "train", "tests.support.training.worker_task:build"]
PATHS = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'trainer_image'}"}
BEGIN = """
import multiprocessing, os, signal, subprocess, sys, time
from precision_trainer.job.signals import StopFlag
from precision_trainer.values.logs import JsonLog

fork = multiprocessing.get_context("fork")
flag = StopFlag.install(JsonLog())
flag.training_begins()
"""

Start = Callable[..., Process]


def _run(script: str) -> str:
    """What the script prints, started as a leader of a session, with the signals blocked: both are inherited."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", BEGIN + script],
            env={**os.environ, **PATHS},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        return process.communicate(timeout=WAIT_SECONDS)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_training_with_workers_of_a_dataloader_ends_with_0(start: Start) -> None:
    job = start([*WORKERS, "--steps", "3"], PATHS)
    assert job.process.wait(WAIT_SECONDS) == 0, job.text


def test_training_with_workers_of_a_dataloader_is_stopped_with_143(start: Start) -> None:
    job = start(WORKERS, PATHS)
    job.until_training()
    assert job.stop() == 143, job.text
    assert job.events("checkpoint")[-1]["step"] == job.events("stopping")[0]["step"]


def test_a_program_that_a_persons_code_started_can_be_terminated() -> None:
    script = 'child = subprocess.Popen(["sleep", "600"]); child.terminate(); print(child.wait(), flag.asked)'
    assert _run(script) == "-15 False\n"


@pytest.mark.parametrize("early", [True, False], ids=["at once", "while it works"])
def test_a_forked_process_of_a_persons_code_can_be_terminated_and_training_goes_on(early: bool) -> None:
    script = f"""
mine, theirs = fork.Pipe()
def work():
    theirs.send("working")
    time.sleep(600)
child = fork.Process(target=work)
child.start()
{"" if early else "mine.recv()"}
child.terminate()
child.join()
print(child.exitcode, flag.asked)
"""
    assert _run(script) == "-15 False\n"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_to_all_processes_of_a_rank_stops_training_and_leaves_its_workers_alone(name: str) -> None:
    # torchrun signals the process group of a rank, a terminal all that runs in it.
    script = f"""
mine, theirs = fork.Pipe()
def work():
    theirs.send("working")
    theirs.recv()
    theirs.send("done")
child = fork.Process(target=work)
child.start()
mine.recv()
os.killpg(0, signal.{name})
print(flag.wait(60), flag.name)
mine.send("go on")
print(mine.recv())
"""
    assert _run(script) == f"True {name}\ndone\n"


def test_a_signal_is_noticed_while_the_main_thread_runs_no_python() -> None:
    script = """
import ctypes, threading
threading.Thread(target=lambda: print(flag.wait(60), flush=True) or os._exit(0), daemon=True).start()
threading.Timer(0, os.kill, (os.getpid(), signal.SIGTERM)).start()
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
libc.pthread_mutex_lock(mutex)
libc.pthread_mutex_lock(mutex)  # for ever; a sleep would be interrupted
"""
    assert _run(script) == "True\n"


def test_a_persons_own_use_of_the_wakeup_descriptor_does_not_hide_the_signal() -> None:
    script = """
ours = signal.set_wakeup_fd(-1)
os.kill(os.getpid(), signal.SIGTERM)
print(flag.wait(60))
"""
    assert _run(script) == "True\n"
