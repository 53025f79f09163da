"""Programs that are kept running, and die when they are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.errors import LabError
from lab.process import Daemon, run
from lab.waiting import wait_for


@pytest.mark.parametrize("detached", [False, True])
def test_a_killed_program_is_gone_though_it_takes_no_request_to_end_and_starts_again(
    tmp_path: Path, detached: bool
) -> None:
    daemon = Daemon("unresponsive", ["sh", "-c", "trap '' TERM; exec sleep 300"], tmp_path, detached=detached)
    try:
        daemon.start()
        first = daemon.pid_file.read_text()
        daemon.kill()
        assert not daemon.running()
        daemon.start()
        assert daemon.running()
        assert daemon.pid_file.read_text() != first
    finally:
        daemon.kill()


def test_killing_what_does_not_run_is_harmless(tmp_path: Path) -> None:
    daemon = Daemon("never", ["true"], tmp_path)
    daemon.kill()
    assert not daemon.running()


def test_what_ended_by_itself_is_not_taken_for_killed(tmp_path: Path) -> None:
    daemon = Daemon("short", ["true"], tmp_path)
    daemon.start()
    wait_for(lambda: not daemon.running(), what="it to end", seconds=60)
    with pytest.raises(LabError, match="short to keep running"):
        daemon.kill_running()


def test_a_program_that_is_missing_is_not_said_to_come_by_a_command_that_does_not_install_it() -> None:
    with pytest.raises(LabError) as refused:
        run(["no-such-program"])
    assert refused.value.next_step.startswith("install it")
