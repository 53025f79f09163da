"""Fixtures of the trainer's tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

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
"""Begins the reason of every test that this machine lacks the hardware for."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a GPU its tests are not run; that is never the same as passed."""
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda") is not None:
                item.add_marker(pytest.mark.skip(reason=f"{NOT_RUN}no CUDA device on this machine"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say so in a line of its own, also where skipped tests are not listed."""
    left_out = [report for report in terminalreporter.stats.get("skipped", ()) if NOT_RUN in str(report.longrepr)]
    if left_out:
        terminalreporter.write_line(f"CUDA suite: {len(left_out)} tests not run on this machine", yellow=True)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine that runs the tests may leak into them."""
    for name in list(os.environ):
        if name.startswith(_OURS):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def gang() -> Iterator[Gang]:
    """Two ranks."""
    gang = Gang(2)
    yield gang
    gang.close()


@pytest.fixture(scope="module")
def gang_of_four() -> Iterator[Gang]:
    """Four ranks; killed, not asked, at the end: a test may have killed one already."""
    gang = Gang(4)
    yield gang
    gang.kill()


from tests.trainer.gang import Gang  # noqa: E402  (after OMP_NUM_THREADS is set)
