"""How the parts are wired where no part's own test can see it."""

from __future__ import annotations

from typing import Any, cast

from precision_operator.api.policy import PolicyKey
from precision_operator.app import App
from precision_operator.observability.metrics import Metrics
from precision_operator.settings import Settings
from tests.support.fake_kube import FakeKube


async def test_the_pass_after_an_urgent_evaluation_takes_the_emergency_lane() -> None:
    app = App(Settings(), cast(Any, FakeKube()), Metrics())
    calm, urgent = PolicyKey("ns", "calm"), PolicyKey("ns", "urgent")
    app._evaluations._finished(calm, False)
    app._evaluations._finished(urgent, True)
    try:
        assert [await app._queue.get() for _ in range(2)] == [urgent, calm]
    finally:
        app._queue.close()
