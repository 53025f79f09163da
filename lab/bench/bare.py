"""Bare: what the same patches cost with nothing around them. aiohttp, bodies made and serialised beforehand, one server.

``python -m lab.bench.bare KUBECONFIG NAMESPACE`` reads numbers of patches in flight from standard input, one a line, and
answers each with the seconds that a rollback of the namespace's pods took so. Before each it puts them back into FP16,
untimed. Who it is, is up to the kubeconfig: with the operator's, its patches pass the same authorizer and the same fence.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import sys
import time
from pathlib import Path

import aiohttp

from precision_operator.api.modes import Mode
from precision_operator.core.actions import RequestPod
from precision_operator.core.model import WorkloadView
from precision_operator.workloads.reading import read_pod
from precision_operator.workloads.requests import request_pod

_HEADERS = {"Content-Type": "application/json-patch+json", "Accept": "application/json"}


async def measure(kubeconfig: str, namespace: str, *, in_flight: int) -> float:
    """Seconds from the first patch sent to the last one answered. ``kubeconfig``: its text, JSON, with a token."""
    content = json.loads(kubeconfig)
    cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    connector = aiohttp.TCPConnector(limit=in_flight, ssl=ssl.create_default_context(cadata=authority))
    headers = {"Authorization": f"Bearer {user['token']}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        path = f"{cluster['server']}/api/v1/namespaces/{namespace}/pods"
        await _patch_all(session, path, await _bodies(session, path, Mode.FP16))
        bodies = await _bodies(session, path, Mode.FP32)
        began = time.monotonic()
        await _patch_all(session, path, bodies)
        return time.monotonic() - began


async def _bodies(session: aiohttp.ClientSession, path: str, mode: Mode) -> dict[str, bytes]:
    """The patches that the operator would send, by pod."""
    async with session.get(path) as answer:
        items = (await answer.json())["items"]
    found = {}
    for item in items:
        pod = read_pod(item).view
        action = RequestPod(WorkloadView("", "", ""), pod, mode, pod.generation + 1)
        found[pod.name] = json.dumps([operation.to_json() for operation in request_pod(action)]).encode()
    return found


async def _patch_all(session: aiohttp.ClientSession, path: str, bodies: dict[str, bytes]) -> None:
    async def one(name: str, body: bytes) -> None:
        async with session.patch(f"{path}/{name}", data=body, headers=_HEADERS) as answer:
            text = await answer.read()
            if answer.status != 200:
                raise RuntimeError(f"PATCH {name}: {answer.status} {text[:500]!r}")

    await asyncio.gather(*(one(name, body) for name, body in bodies.items()))


def main() -> None:
    """Measure as asked until the input ends."""
    kubeconfig, namespace = sys.argv[1:]
    for line in sys.stdin:
        print(asyncio.run(measure(Path(kubeconfig).read_text(), namespace, in_flight=int(line))), flush=True)


if __name__ == "__main__":
    main()
