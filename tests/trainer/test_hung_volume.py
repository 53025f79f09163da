"""A volume that hangs does not keep a process that has failed: whoever starts it again waits for its end."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.support.training.process import WAIT_SECONDS, WITH_TESTS, Process


def test_a_process_whose_loss_raises_while_a_checkpoint_hangs_ends_with_1_and_says_why(
    fork: Callable[..., Process],
) -> None:
    command = ["-m", "precision_trainer", "train", "tests.support.training.hung_task:build", "--checkpoint-every", "2"]
    job = fork(command, WITH_TESTS)
    assert job.process.wait(WAIT_SECONDS) == 1, job.text
    (abandoned,) = job.events("checkpoint_failed")
    assert "is still being written" in abandoned["message"]
    last = json.loads(job.text.splitlines()[-1])
    assert last["event"] == "failed"
    assert "ZeroDivisionError (in the loss)" in last["message"]
