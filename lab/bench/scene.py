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
_DEPLOYMENTS = "/apis/apps/v1/namespaces/{}/deployments"


@dataclass
class Scene:
    """One namespace with a policy, its trainers and the Prometheus that scrapes them."""

    api: Api
    namespace: str
    trainers: Trainers
    prometheus: Prometheus
    fleet_minimum: int

    @property
    def policies_path(self) -> str:
        """Where the namespace's policies are."""
        return f"/apis/precision.genesis.ai/v1alpha1/namespaces/{self.namespace}/precisionpolicies"

    @property
    def policy_path(self) -> str:
        """Where the policy is."""
        return f"{self.policies_path}/{POLICY}"

    async def status(self) -> Json:
        """The policy's status."""
        found: Json = (await self.api.get(self.policy_path)).get("status", {})
        return found

    async def wait_phase(self, phase: str, *, seconds: float = 120) -> Json:
        """Wait for the policy's phase; returns its status then.

        By watch: to ask again and again for a status of a thousand members takes time from who is measured.
        """
        last: Json = {}
        try:
            async with asyncio.timeout(seconds):
                while True:
                    async for event in self.api.watch(self.policies_path):
                        last = event["object"].get("status", {})
                        if last.get("phase") == phase:
                            return last
        except TimeoutError:
            found = f"{last.get('phase')}: {last.get('message')}"
            raise DeadlineExceeded(f"phase {phase} within {seconds:g} s", found, "read the operators' logs") from None

    async def break_all(self) -> float:
        """Everything breaches at once; returns when a poll of the operator's own query showed it first (epoch)."""
        query = render(BUILT_IN["overflow"], self.namespace, WINDOW_SECONDS, MIN_STEPS)

        async def visible() -> float | None:
            asked = time.time()
            vector = await asyncio.to_thread(self.prometheus.query, f"{query} > 0.3")
            return asked if len(vector) >= self.fleet_minimum else None

        self.trainers.breaching = True
        return await until(visible, what="a visible breach", seconds=30, every=VISIBLE_POLL_SECONDS)

    async def wait_held(self) -> Json:
        """Wait until the rollback is through, and the trainers are well again."""
        status = await self.wait_phase("Held")
        self.trainers.breaching = False
        return status

    async def retry(self) -> None:
        """A person asks for another attempt, as soon as the policy is Held; wait until all is promoted again."""
        answer = str((await self.status())["transitionId"])
        await self.api.merge(self.policy_path, {"metadata": {"annotations": {RETRY: answer}}})
        await self.wait_phase("Healthy")

    async def size(self) -> int:
        """How many workloads the policy has."""
        return int((await self.status())["total"])

    async def settled(self) -> bool:
        """No Deployment of the fleet has a settle under way, or one to come."""
        items = (await self.api.get(_DEPLOYMENTS.format(self.namespace)))["items"]
        wanted = "false" if (await self.status())["phase"] == "Held" else "true"
        return all(_settled(item, wanted) for item in items)


def _settled(item: Json, wanted: str) -> bool:
    inner = item["spec"]["template"]["metadata"]["annotations"]
    return inner.get("precision.genesis.ai/enable-fp16") == wanted and not item["spec"].get("paused", False)
