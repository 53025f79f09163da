"""What unit tests of several modules share."""

from __future__ import annotations

import pytest

from precision_operator.cli import session
from tests.support.cli import Cli


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """``kubectl precision`` over an API server in memory."""
    found = Cli(capsys)
    monkeypatch.setattr(session, "connected", found.connected)
    return found
