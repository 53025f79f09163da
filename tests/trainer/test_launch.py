"""Where the ranks of one machine meet, and what their ends come to."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from precision_trainer.distributed import launch, rendezvous, watch
from precision_trainer.distributed.launch import free_port
from precision_trainer.errors import ConfigError
from precision_trainer.torchrun import stop_code

KERNEL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def port_range(directory: Path, first: int, last: int) -> Path:
    path = directory / "ip_local_port_range"
    path.write_text(f"{first}\t{last}\n")
    return path


def test_no_socket_that_takes_any_port_can_take_the_rendezvous_port() -> None:
    first, last = map(int, KERNEL.read_text().split())
    assert all(not first <= free_port() <= last for _ in range(50))


def test_after_a_death_the_others_have_time_to_ask_who_is_there_and_to_part() -> None:
    assert launch._PEER_GRACE_SECONDS > watch._ANSWER_SECONDS + watch._PARTING_SECONDS
    assert min(watch._ANSWER_SECONDS, watch._PARTING_SECONDS, rendezvous._READ_SECONDS) > 0


def test_scripts_that_are_seeded_alike_are_not_given_the_same_ports() -> None:
    given = []
    for _ in range(2):
        random.seed(0)
        given.append([free_port() for _ in range(8)])
    assert given[0] != given[1]


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (32768, 60999, range(32768 - 8192, 32768)),
        (1024, 60999, range(61000, 65536)),  # nothing below it
        (1024, 65535, range(1024, 65536)),  # nothing beside it: better than none
    ],
)
def test_the_port_lies_beside_the_ephemeral_range(tmp_path: Path, first: int, last: int, expected: range) -> None:
    assert free_port(port_range(tmp_path, first, last)) in expected


def test_a_port_in_use_is_passed_over_and_none_left_is_said(tmp_path: Path) -> None:
    two_left = port_range(tmp_path, 1024, 65533)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 65535))
        assert free_port(two_left) == 65534
        one_left = port_range(tmp_path, 1024, 65534)
        with pytest.raises(ConfigError, match=r"from 65535 to 65535.*--master-port"):
            free_port(one_left)


@pytest.mark.parametrize(
    ("codes", "signalled", "expected"),
    [
        ([143, 143], True, 143),
        ([143, 143], False, 143),  # another node was stopped
        ([143, -15], True, 143),  # one was too young to take the signal
        ([], True, 143),  # none had started
        ([0, 0], True, 0),  # they had finished when it came
        ([0, 143], True, 143),
        ([143, 1], True, None),  # one could not save
        ([143, -9], True, None),
        ([75, 75], False, 75),  # a rank of another pod is gone
        ([75, -15], False, 75),
        ([75, 1], False, None),
        ([-15, -15], False, None),
        ([17, -15], False, None),
    ],
)
def test_torchrun_tells_a_stop_and_a_lost_peer_from_a_failure_and_from_a_finished_training(
    codes: list[int | None], signalled: bool, expected: int | None
) -> None:
    assert stop_code(codes, signalled=signalled) == expected
