"""A namespace in which the API server answers the operator's writes with 429 and Retry-After."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp

from lab.bench.api import Api, Json, until
from lab.bench.operators import SYSTEM
from lab.cluster import ControlPlane
from lab.cluster.manifests import OPERATOR

HOLDERS = 2
"""One takes over when the request of the other is given up."""

_LEVEL: Json = {
    "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
    "kind": "PriorityLevelConfiguration",
    "metadata": {"name": "isolation-throttled"},
    "spec": {
        "type": "Limited",
        "limited": {
            "nominalConcurrencyShares": 0,
            "lendablePercent": 0,
            "borrowingLimitPercent": 0,
            "limitResponse": {"type": "Reject"},
        },
    },
}


def _flow(namespace: str) -> Json:
    return {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "FlowSchema",
        "metadata": {"name": "isolation-throttled"},
        "spec": {
            "matchingPrecedence": 2,
            "priorityLevelConfiguration": {"name": "isolation-throttled"},
            "rules": [
                {
                    "subjects": [{"kind": "Group", "group": {"name": f"system:serviceaccounts:{SYSTEM}"}}],
                    "resourceRules": [
                        {
                            "verbs": ["create", "update", "patch", "delete"],
                            "apiGroups": ["*"],
                            "resources": ["*"],
                            "namespaces": [namespace],
                        }
                    ],
                }
            ],
        },
    }


@contextlib.asynccontextmanager
async def throttling(plane: ControlPlane, api: Api, namespace: str) -> AsyncIterator[None]:
    """As long as this is entered.

    Of a level without a share one request at a time is let in all the same. Here that is one whose body never ends.
    """
    for body in (_LEVEL, _flow(namespace)):
        plane.kubectl.apply(body)
    url = f"{api.server}/apis/precision.genesis.ai/v1alpha1/namespaces/{namespace}/precisionassignments"
    headers = [
        ("Content-Type", "application/json"),
        ("Impersonate-User", OPERATOR),
        ("Impersonate-Group", f"system:serviceaccounts:{SYSTEM}"),
        ("Impersonate-Group", "system:authenticated"),
    ]
    connector = aiohttp.TCPConnector(ssl=api.tls)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        holders = [asyncio.create_task(_hold(session, url)) for _ in range(HOLDERS)]
        try:
            await until(lambda: _refused(session, url), what="429 to a write", seconds=60)
            yield
        finally:
            for holder in holders:
                holder.cancel()
            await asyncio.gather(*holders, return_exceptions=True)


async def _endless() -> AsyncIterator[bytes]:
    yield b"{"
    await asyncio.Event().wait()


async def _hold(session: aiohttp.ClientSession, url: str) -> None:
    while True:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with session.post(url, data=_endless()) as answer:
                await answer.read()
        await asyncio.sleep(0.02)


async def _refused(session: aiohttp.ClientSession, url: str) -> bool:
    async with session.post(url, data=b"{}") as answer:
        return answer.status == 429
