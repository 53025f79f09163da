"""Fixtures of the trainer's tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

_OURS = (
    "ENABLE_FP16_TRAINING",
    "PRECISION_",
    "FEATURE_FLAGS",
    "FP16_",
    "TRAINER_",
    "RANK",
    "WORLD_SIZE",
    "MASTER_",
    "LOCAL_",
)


NOT_RUN = "not run: "
"""Begins the reason of every test that this machine's GPU is too old for."""
_LEFT_OUT = pytest.StashKey[int]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a GPU its tests are left out; that is never the same as passed."""
    if not torch.cuda.is_available():
        left_out = [item for item in items if item.get_closest_marker("cuda") is not None]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
        config.stash[_LEFT_OUT] = len(left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say so in a line of its own."""
    too_old = [report for report in terminalreporter.stats.get("skipped", ()) if NOT_RUN in str(report.longrepr)]
    not_run = config.stash.get(_LEFT_OUT, 0) + len(too_old)
    if not_run:
        terminalreporter.write_line(f"CUDA suite: {not_run} tests not run on this machine", yellow=True)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No setting of the machine that runs the tests may leak into them, and no blocked signal out of them."""
    for name in list(os.environ):
        if name.startswith(_OURS):
            monkeypatch.delenv(name)
    yield
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert not blocked, f"left blocked, also for the processes that later tests start: {blocked}"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """PyTorch computes in one thread: of a model this small, more only wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def text() -> LibraryText:
    """What the small transformer of tests/support/training learns."""
    return LibraryText(CONTEXT, max_bytes=1 << 16)


@pytest.fixture(scope="session")
def process_group() -> Iterator[ProcessGroup]:
    """Two ranks."""
    process_group = ProcessGroup(2)
    yield process_group
    process_group.close()


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[ProcessGroup]:
    """Four ranks; killed, not asked, at the end: a test may have killed one already."""
    process_group = ProcessGroup(4)
    yield process_group
    process_group.kill()


@pytest.fixture
def started() -> Iterator[list[Process]]:
    """Commands that are ended with the test."""
    started: list[Process] = []
    yield started
    for process in started:
        process.close()


@pytest.fixture
def start(tmp_path: Path, started: list[Process]) -> Callable[..., Process]:
    """Starts a command of the trainer as a person does."""
    return partial(_begin, started, tmp_path, forked=False)


@pytest.fixture
def fork(tmp_path: Path, started: list[Process]) -> Callable[..., Process]:
    """The same without importing torch each time, for tests of what a process does and not of how it starts."""
    return partial(_begin, started, tmp_path, forked=True)


def _begin(
    started: list[Process],
    directory: Path,
    command: list[str],
    env: Mapping[str, str] | None = None,
    *,
    forked: bool,
) -> Process:
    started.append(Process(directory, command, env, forked=forked))
    return started[-1]


import torch  # noqa: E402  (these after OMP_NUM_THREADS is set)

from precision_trainer.models.data import LibraryText  # noqa: E402
from tests.support.training.process import Process  # noqa: E402
from tests.support.training.process_group import ProcessGroup  # noqa: E402
from tests.support.training.steps import CONTEXT  # noqa: E402
