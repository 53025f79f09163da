"""A fleet under a policy, and what is done to it: promoted, broken, rolled back, asked again."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from lab.bench.api import Api, Json, until
from lab.bench.fleet import MIN_STEPS, POLICY, WINDOW_SECONDS
from lab.bench.trainers import Trainers
from lab.errors import DeadlineExceeded
from lab.prometheus import Prometheus
from precision_operator.contract import RETRY
from precision_operator.signals.queries import BUILT_IN, render

VISIBLE_POLL_SECONDS = 0.1

WINDOW_INTERVALS = 4
"""How long the metrics' window is, in intervals."""


@dataclass
class Scene:
    """One namespace with a policy, its trainers and the Prometheus that scrapes them."""

    api: Api
    namespace: str
    trainers: Trainers
    prometheus: Prometheus
    policy: str = POLICY
    window_seconds: float = WINDOW_SECONDS
    """The policy's: what is visible is so over the window that the operator asks about."""

    @property
    def assignments_path(self) -> str:
        """Where the namespace's assignments are."""
        return f"/apis/precision.genesis.ai/v1alpha1/namespaces/{self.namespace}/precisionassignments"

    @property
    def policies_path(self) -> str:
        """Where the namespace's policies are."""
        return f"/apis/precision.genesis.ai/v1alpha1/namespaces/{self.namespace}/precisionpolicies"

    @property
    def policy_path(self) -> str:
        """Where the policy is."""
        return f"{self.policies_path}/{self.policy}"

    async def status(self) -> Json:
        """The policy's status."""
        found: Json = (await self.api.get(self.policy_path)).get("status", {})
        return found

    async def state(self) -> Json:
        """The assignment's state."""
        found: Json = (await self.api.get(f"{self.assignments_path}/{self.policy}")).get("state", {})
        return found

    async def wait_phase(self, phase: str, *, seconds: float = 120) -> Json:
        """Wait for the policy's phase, by watch; returns its status then."""
        last: Json = {}
        try:
            async with asyncio.timeout(seconds):
                while True:
                    async for event in self.api.watch(self.policies_path):
                        if event["object"]["metadata"]["name"] != self.policy:
                            continue
                        last = event["object"].get("status", {})
                        if last.get("phase") == phase:
                            return last
        except TimeoutError:
            found = f"{last.get('phase')}: {last.get('message')}"
            raise DeadlineExceeded(f"phase {phase} within {seconds:g} s", found, "read the operators' logs") from None

    async def break_all(self, *, diverged: bool = False) -> float:
        """Everything breaches at once; returns when a poll of the operator's own query showed it first (epoch).

        ``diverged``: by losses of NaN, which is a P0; else by overflow.
        """
        query = render(
            BUILT_IN["nonFinite" if diverged else "overflow"], self.namespace, self.window_seconds, MIN_STEPS
        )

        async def visible() -> float | None:
            asked = time.time()
            vector = await asyncio.to_thread(self.prometheus.query, f"{query} > {0 if diverged else 0.3}")
            return asked if vector else None

        (self.trainers.diverged if diverged else self.trainers.breaching).add(self.namespace)
        return await until(visible, what="a visible breach", seconds=30, every=VISIBLE_POLL_SECONDS)

    async def wait_held(self) -> Json:
        """Wait until the rollback is through, and the trainers are well again."""
        status = await self.wait_phase("Held")
        self.trainers.breaching.discard(self.namespace)
        self.trainers.diverged.discard(self.namespace)
        return status

    async def retry(self) -> None:
        """A person asks for another attempt, as soon as the policy is Held; wait until all is promoted again."""
        answer = str((await self.status())["transitionId"])
        await self.api.merge(self.policy_path, {"metadata": {"annotations": {RETRY: answer}}})
        await self.wait_phase("Healthy")

    async def set_interval(self, seconds: float) -> None:
        """Have the policy's metrics read this often, over a window of WINDOW_INTERVALS of that."""
        evaluation = {"interval": f"{seconds:g}s", "window": f"{WINDOW_INTERVALS * seconds:g}s"}
        await self.api.merge(self.policy_path, {"spec": {"evaluation": evaluation}})
