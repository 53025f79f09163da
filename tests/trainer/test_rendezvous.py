"""A process group that is not whole: every rank says who is missing, and ends in time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from precision_trainer import cli
from precision_trainer.compat import open_store
from precision_trainer.distributed.launch import free_port
from precision_trainer.distributed.rendezvous import Place, name_ranks
from precision_trainer.distributed.watch import Loss
from precision_trainer.errors import ConfigError
from precision_trainer.job.signals import StopFlag
from tests.support.training.process_group import ProcessGroup

Start = Callable[..., ProcessGroup]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[ProcessGroup] = []

    def begin(world: int, **settings: object) -> ProcessGroup:
        started.append(ProcessGroup(world, **settings))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for process_group in started:
        process_group.kill()


def test_every_rank_names_those_that_never_started(start: Start) -> None:
    # Rank 0, whose time counts, last: the others wait for it.
    others = start(5, ranks=(1, 3), timeout_seconds=60)
    last = start(5, ranks=(0,), port=others.port, timeout_seconds=3)
    for group, seconds in ((others, 60), (last, 3)):
        expected = f"ranks 2, 4 of 5 did not join at 127.0.0.1:{group.port} within {seconds} s; here: 0, 1, 3; look "
        assert all(expected in refusal for refusal in group.refusals())


def test_without_rank_0_the_others_say_that_it_is_not_there(start: Start) -> None:
    for rank, refusal in enumerate(start(3, ranks=(1, 2), timeout_seconds=1).refusals(), 1):
        assert f"rank {rank} of 3 cannot connect to 127.0.0.1:" in refusal
        assert "rank 0 is not there, or MASTER_ADDR and MASTER_PORT are wrong" in refusal


def test_a_rank_that_is_started_again_alone_is_told_that_its_process_group_has_another(start: Start) -> None:
    process_group = start(2)
    assert process_group.run("reachable")
    (refusal,) = start(2, ranks=(1,), port=process_group.port, timeout_seconds=1).refusals()
    assert "is not of the process group at" in refusal
    assert "end all ranks, then start all" in refusal
    assert process_group.run("reachable"), "the process group that runs is not disturbed"


def test_ranks_started_for_process_groups_of_different_size_are_told_both_numbers(start: Start) -> None:
    smaller = start(2, ranks=(0,), timeout_seconds=30)
    larger = [start(3, ranks=(rank,), port=smaller.port, timeout_seconds=time) for rank, time in ((1, 30), (2, 2))]
    refusals = [refusal for group in (smaller, *larger) for refusal in group.refusals()]
    assert "rank 0 has 2, rank 1 has 3; start all ranks with the same number" in refusals[0]
    assert all("ranks disagree on WORLD_SIZE: rank 0 has 2, rank " in refusal for refusal in refusals[:2])


def test_a_port_that_is_taken_is_named(start: Start) -> None:
    port = free_port()
    store = open_store("127.0.0.1", port, 5, serve=True)
    (refusal,) = start(2, ranks=(0,), port=port, timeout_seconds=1).refusals()
    assert f"rank 0 of 2 could not listen at 127.0.0.1:{port}" in refusal
    del store


def test_in_a_store_of_torchruns_a_missing_rank_0_is_named_and_an_earlier_attempt_does_not_count(start: Start) -> None:
    port = free_port()
    store = open_store("127.0.0.1", port, 5, serve=True)
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    for refusal in start(3, ranks=(1, 2), port=port, timeout_seconds=1, env=agent).refusals():
        assert "did not join" in refusal
    for _ in range(2):  # at one store, one after the other
        process_group = start(2, port=port, env=agent)
        assert process_group.run("switch_through_all_modes")
        process_group.kill()
    # Rank 0 of the attempts before has left its name and its roll there.
    (refusal,) = start(2, ranks=(1,), port=port, timeout_seconds=1, env=agent).refusals()
    assert "is not of the process group at" in refusal
    del store


def test_a_job_of_which_a_rank_is_missing_ends_with_code_75_and_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("precision_trainer.job.signals.StopFlag.install", StopFlag)
    assert cli.main(["train", "--ddp-timeout-seconds", "1", "--metrics-port", "-1"]) == 75
    line = json.loads(capsys.readouterr().out)
    assert line["event"] == "failed"
    assert line["message"].startswith("rank 1 of 2 did not join at 127.0.0.1:")


@pytest.mark.parametrize("port", ["", "0", "65536", "http"])
def test_a_port_that_is_none_is_refused(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", port)
    with pytest.raises(ConfigError, match=r"MASTER_PORT=.*: expected a port, a number in \[1, 65535\]"):
        Place.from_env()


def test_when_rank_0_dies_the_others_say_so(start: Start) -> None:
    for result in start(3).run("rank_0_dies", ranks=(1, 2)):
        assert (result["lost"], result["who"]) == (True, "rank 0 of 3 is gone or silent")


def test_a_rank_that_is_stopped_is_named_once_the_time_is_up(start: Start) -> None:
    for result in start(3).run("last_is_stopped", ranks=(0, 1)):
        assert (result["lost"], result["who"]) == (True, "rank 2 of 3 is gone or silent")


def test_a_rank_that_lives_but_does_not_come_is_named(start: Start) -> None:
    results = start(3).run("last_does_not_come")
    assert [result["who"] for result in results[:2]] == ["all live, but rank 2 of 3 did not come to the collective"] * 2


def test_a_rank_that_left_by_itself_is_named(start: Start) -> None:
    for result in start(3).run("last_leaves")[:2]:
        assert result["who"] == "rank 2 of 3 has left"


@pytest.mark.parametrize(
    ("scenario", "survivors", "failed"),
    [("rank_0_dies", (1, 2), False), ("last_leaves", (0, 1), True), ("last_does_not_come", (0, 1), True)],
)
def test_training_has_failed_unless_a_peers_process_is_gone(
    start: Start, scenario: str, survivors: tuple[int, int], failed: bool
) -> None:
    results = start(3).run(scenario, ranks=survivors)
    assert [result["failed"] for result in results] == [failed] * 2


@pytest.mark.parametrize(
    ("scenario", "survivors", "failed"),
    [("a_rank_dies_in_a_pod_of_two", (0, 1), [False, True]), ("rank_0_dies_in_a_pod_of_two", (1, 2), [True, False])],
)
def test_training_has_failed_for_the_ranks_in_whose_own_pod_a_process_is_gone(
    start: Start, scenario: str, survivors: tuple[int, int], failed: list[bool]
) -> None:
    results = start(3).run(scenario, ranks=survivors)
    assert [result["failed"] for result in results] == failed


def test_of_many_ranks_the_first_are_named_and_the_others_counted() -> None:
    assert name_ranks(range(1, 100), 100) == "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 91 more of 100"
    assert str(Loss(4)) == "all 4 ranks live: look at the network between them"
    assert str(Loss(4, missing=(1, 3))) == "ranks 1, 3 of 4 are gone or silent"
