"""Bare: what the same patches cost with nothing around them. aiohttp, bodies made and serialised beforehand, one server.

``python -m lab.bench.bare SERVER CA CERTIFICATE KEY NAMESPACE`` reads numbers of patches in flight from standard input,
one a line, and answers each with the seconds that a rollback of the namespace's Deployments took so. Before each it puts
them back into FP16, untimed.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time

import aiohttp

from precision_operator.api.modes import Mode
from precision_operator.core.actions import WriteTemplate
from precision_operator.kube.workloads.patches import write_template
from precision_operator.kube.workloads.port import DeploymentView
from precision_operator.kube.workloads.reading import read_deployment

_HEADERS = {"Content-Type": "application/json-patch+json", "Accept": "application/json"}


async def measure(server: str, tls: ssl.SSLContext, namespace: str, *, in_flight: int) -> float:
    """Seconds from the first patch sent to the last one answered."""
    connector = aiohttp.TCPConnector(limit=in_flight, ssl=tls)
    async with aiohttp.ClientSession(connector=connector) as session:
        path = f"{server}/apis/apps/v1/namespaces/{namespace}/deployments"
        await _patch_all(session, path, await _bodies(session, path, Mode.FP16, None))
        bodies = await _bodies(session, path, Mode.FP32, Mode.FP32)
        began = time.monotonic()
        await _patch_all(session, path, bodies)
        return time.monotonic() - began


async def _bodies(session: aiohttp.ClientSession, path: str, mode: Mode, latch: Mode | None) -> dict[str, bytes]:
    """The patches that the operator would send, by Deployment."""
    async with session.get(path) as answer:
        items = (await answer.json())["items"]
    found = {}
    for item in items:
        view = read_deployment(item).view
        assert isinstance(view, DeploymentView)
        generation = int(view.generation_raw or 0) + 1
        operations = write_template(view, WriteTemplate(view, mode, generation, latch))
        found[view.name] = json.dumps([operation.to_json() for operation in operations]).encode()
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
    server, authority, certificate, key, namespace = sys.argv[1:]
    tls = ssl.create_default_context(cafile=authority)
    tls.load_cert_chain(certificate, key)
    for line in sys.stdin:
        print(asyncio.run(measure(server, tls, namespace, in_flight=int(line))), flush=True)


if __name__ == "__main__":
    main()
