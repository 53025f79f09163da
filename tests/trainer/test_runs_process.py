"""Whether a training that ended in any way counts as failed: real trainers, a pod and the one after it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.cluster.ports import free_ports
from tests.support.training.process import PATIENT_LAUNCH, TORCHRUN, TRAIN, WAIT_SECONDS, WITH_TESTS, Process

UID_A, UID_B = "6f1e7d3c-0000-4000-8000-00000000000a", "6f1e7d3c-0000-4000-8000-00000000000b"
ONE_RUN = ["--segment-steps", "1000000", "--checkpoint-every", "20"]
"""No run ends while a test looks: what is counted came from the process before."""

Start = Callable[..., Process]


def _pod(uid: str, **more: str) -> dict[str, str]:
    return {"PRECISION_POD_UID": uid, "TRAINER_CHECKPOINT_LEASE_SECONDS": "3", **more}


def _children(process: Process) -> list[int]:
    pid = process.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _counted(process: Process) -> tuple[float, float]:
    """Runs ended and ended well, once a crash of the process before would be among them."""
    process.until_training()
    return process.value("genesis_training_total"), process.value("genesis_training_success_total")


@pytest.mark.parametrize(
    ("uid", "counted"), [(UID_A, (1.0, 0.0)), (UID_B, (0.0, 0.0))], ids=["same pod", "another pod"]
)
def test_a_killed_trainer_has_crashed_where_its_own_pod_starts_it_again_and_in_no_other(
    fork: Start, uid: str, counted: tuple[float, float]
) -> None:
    first = fork([*TRAIN, *ONE_RUN], _pod(UID_A))
    first.until_training()
    first.kill()
    second = fork([*TRAIN, *ONE_RUN], _pod(uid))
    assert _counted(second) == counted
    assert len(second.events("run_unknown")) == 1 - counted[0]


def test_a_rank_that_torchrun_starts_again_in_its_pod_has_crashed(start: Start) -> None:
    job = start([*TORCHRUN, "--max-restarts", "1", *TRAIN, *ONE_RUN], _pod(UID_A))
    job.until_training()
    os.kill(_children(job)[0], signal.SIGKILL)
    job.until(lambda: len(job.events("metrics")) == 2)
    assert _counted(job) == (1.0, 0.0)


def test_a_rank_that_dies_in_a_pod_that_lives_counts_in_the_pod_that_the_job_makes_next(fork: Start) -> None:
    first = fork([*PATIENT_LAUNCH, *TRAIN[2:], *ONE_RUN], _pod(UID_A, **WITH_TESTS))
    first.until_training()
    os.kill(_children(first)[1], signal.SIGKILL)
    assert first.process.wait(WAIT_SECONDS) == 1
    assert _counted(fork([*TRAIN, *ONE_RUN], _pod(UID_B))) == (1.0, 0.0)


@pytest.mark.parametrize("uid", [UID_A, UID_B], ids=["same pod", "another pod"])
def test_a_peer_that_is_lost_with_its_pod_fails_no_run_wherever_the_survivor_goes_on(fork: Start, uid: str) -> None:
    (port,) = free_ports(1)
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    first, peer = (fork([*TRAIN, *ONE_RUN], _pod(UID_A, RANK=rank, **group)) for rank in "01")
    first.until_training()
    peer.kill()
    assert first.process.wait(WAIT_SECONDS) == 75
    assert "rank 1 of 2 is gone or silent" in first.events("failed")[0]["message"]
    assert _counted(fork([*TRAIN, *ONE_RUN], _pod(uid))) == (0.0, 0.0)
