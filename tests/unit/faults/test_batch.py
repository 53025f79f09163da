"""When a batch of runs counts as at rest."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lab.faults import batch
from lab.faults.batch import Batch, Run
from lab.faults.workflows import workflow


async def test_an_operator_that_starts_while_rest_is_waited_for_is_waited_for_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, turn = 0.0, asyncio.sleep

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        await turn(0)

    # Else a machine that stops for as long as one reads the metrics leaves nothing to wait for.
    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(batch, "time", SimpleNamespace(monotonic=lambda: now))
    runs = Batch(cast(Any, SimpleNamespace(numbers=count(1))), [Run(workflow("emergency"))], Path(), seed=16)
    said: list[str] = []

    def kill() -> None:
        said.append("killed")
        runs.kills += 1
        runs._started_at = now

    async def leader() -> None:
        if not said:
            asyncio.get_running_loop().call_soon(kill)  # while the first one reads the metrics
        said.append("leads")

    runs._operators = cast(Any, SimpleNamespace(leader=leader))
    runs._recorder = cast(
        Any, SimpleNamespace(highest=1, settle=lambda: None, note=lambda kind, body: said.append(kind))
    )
    runs._started_at = now
    await runs._come_to_rest()
    assert said[:2] == ["leads", "killed"]
    assert "leads" in said[2 : said.index("Rest")]
