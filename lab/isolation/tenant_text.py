"""Text of tenants, at full size, wherever the operator reads it: what it delays, what is refused, and what is lost.

First each reader reads each text in this process. Then each text is written onto a real API server with the product's
admission: into a Deployment's template (annotations and environment, which its pods inherit), into the commands of a policy,
and into the labels of a trainer's series in a real Prometheus. A real operator process works on all of them meanwhile. The
API server's own bounds hold: no NUL and no lone surrogate is stored. Last, a command on a policy with a great many
annotations is compared with the same write on a kind that no admission policy reads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from lab.bench.api import Api, Json, until
from lab.bench.fleet import deployment, pod_of, policy, replica_set
from lab.bench.operators import Operators
from lab.cluster import ControlPlane
from lab.cluster.manifests import apply_product
from lab.errors import LabError
from lab.isolation.pulse import Pulse
from lab.isolation.readers import RUN_LABELS, readers, words
from lab.isolation.texts import corpus, cut, keys, queries, stored
from lab.progress import step
from lab.prometheus import Prometheus
from precision_operator.api.commands import ANNOTATIONS
from precision_operator.contract import ADMITTED, ENABLE, INJECTED, MODE, REQUEST

NAMESPACE = "isolation-text"
MAX_STALL_SECONDS = 0.2
MAX_COMMAND_RATIO = 4.0
SETTLE_SECONDS = 300.0
WATCHED_SECONDS = 15.0
"""How long everything is read on, once it has been taken in."""
ENV_BYTES = 20_000
SHORT_BYTES = 2_000
MANY = 10_000
"""Annotations, or labels, of one object."""
MANY_ANNOTATIONS, MANY_LABELS = "many-annotations", "many-labels"
_LABEL_CHARACTERS = 20_000
"""Of a text in the label of a series: all of them stand in one answer of Prometheus."""
_APPS = f"/apis/apps/v1/namespaces/{NAMESPACE}"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_POLICIES = f"/apis/precision.genesis.ai/v1alpha1/namespaces/{NAMESPACE}/precisionpolicies"
_INCIDENTS = f"/apis/precision.genesis.ai/v1alpha1/namespaces/{NAMESPACE}/precisionincidents"
_REPORT: Json = {
    "id": "1",
    "policy": MANY_ANNOTATIONS,
    "policyUid": "1",
    "severity": "P1",
    "scope": "Fleet",
    "reason": "Overflow",
    "phase": "Active",
}
_TRIES = 5
"""Of which the best counts."""
WRITTEN = frozenset({("pods", "CREATE"), ("precisionpolicies", "CREATE"), ("precisionpolicies", "UPDATE")})
"""What texts are written in, as admission policies name it."""
_PLACES = 3
"""A workload, a policy and a series of each text."""


def measure(directory: Path) -> Json:
    """``{cases, max_loop_stall_seconds, refused_writes, objects_lost, command_ratio}``, with a control plane of its own."""
    cases, longest = _read_here()
    found = asyncio.run(_written(directory))
    return {
        "cases": cases + _PLACES * len(corpus()) + 2,
        **found,
        "max_loop_stall_seconds": round(max(longest, found["max_loop_stall_seconds"]), 3),
    }


def missed(found: Mapping[str, object]) -> list[str]:
    """The bounds that the figures miss."""
    bounds = {
        "max_loop_stall_seconds": MAX_STALL_SECONDS,
        "refused_writes": 0,
        "objects_lost": 0,
        "command_ratio": MAX_COMMAND_RATIO,
    }
    return [
        f"expected {name} of at most {bound}, found {found[name]}"
        for name, bound in bounds.items()
        if not float(str(found[name])) <= bound
    ]


def _read_here() -> tuple[int, float]:
    """Each reader on each text: how many, and the longest in CPU seconds: it would hold up the loop for as long."""
    cases, longest = 0, 0.0
    for read in {**readers(), **words()}.values():
        for text in (*corpus().values(), *queries().values()):
            began = time.thread_time()
            read(text)
            longest = max(longest, time.thread_time() - began)
            cases += 1
    return cases, longest


async def _written(directory: Path) -> Json:
    """The longest stall of a real operator's loop, the refused writes, the objects that it does not know, and the ratio."""
    texts = {f"text-{number:03d}": stored(text) for number, text in enumerate(corpus().values())}
    with ControlPlane(directory / "plane") as plane:
        apply_product(plane.kubectl)
        plane.kubectl("create", "namespace", NAMESPACE)
        plane.kubectl.wait_for_namespace(NAMESPACE)
        plane.stop_controllers()
        async with Api(plane) as api, _exported(texts) as target:
            job = {"job_name": "trainers", "honor_labels": True, "static_configs": [{"targets": [target]}]}
            config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
            with Prometheus(directory / "prometheus", config) as prometheus:
                operators = Operators(plane, prometheus_url=prometheus.url, namespaces=[NAMESPACE])
                try:
                    found = await _watched(api, operators, texts)
                finally:
                    operators.stop()
            return {**found, "command_ratio": await _command_ratio(api)}


async def _watched(api: Api, operators: Operators, texts: Mapping[str, str]) -> Json:
    operator = await operators.start()
    await operators.leader()
    with Pulse(operator.port, operator.pid) as pulse:
        with step(f"{len(texts)} texts, in workloads and policies"):
            refused = await _create(api, texts)
        with step("the operator takes them in"):
            lost = await _lost(api, texts)
        await asyncio.sleep(WATCHED_SECONDS)
    refused += operator.failed_writes()
    return {"max_loop_stall_seconds": pulse.slowest_seconds, "refused_writes": refused, "objects_lost": lost}


async def _command_ratio(api: Api) -> float:
    """What a command costs on the policy with many annotations, against the same write on a kind that no policy reads."""
    incident = {"apiVersion": "precision.genesis.ai/v1alpha1", "kind": "PrecisionIncident", "report": _REPORT}
    metadata = {"name": MANY_ANNOTATIONS, "annotations": keys(MANY)}
    await api.post(_INCIDENTS, {**incident, "metadata": metadata})

    async def seconds(collection: str, value: str) -> float:
        began = time.perf_counter()
        await api.merge(f"{collection}/{MANY_ANNOTATIONS}", {"metadata": {"annotations": {ANNOTATIONS[0]: value}}})
        return time.perf_counter() - began

    # In turns: what else the machine does meets both.
    tries = [(await seconds(_POLICIES, str(n)), await seconds(_INCIDENTS, str(n))) for n in range(_TRIES)]
    return round(min(ours for ours, _ in tries) / min(plain for _, plain in tries), 2)


async def _create(api: Api, texts: Mapping[str, str]) -> int:
    """The workloads as their controllers would leave them, and the policies; how many the API server refused."""
    writes = [
        write
        for name, text in texts.items()
        for write in (_workload(api, name, _annotations(text), env=cut(text, ENV_BYTES)), _policy(api, name, text))
    ]
    writes += [
        _workload(api, MANY_ANNOTATIONS, keys(MANY)),
        _workload(api, MANY_LABELS, {}, labels=keys(MANY)),
        *(_policy(api, name, "", annotations=keys(MANY)) for name in (MANY_ANNOTATIONS, MANY_LABELS)),
    ]
    refused = 0
    for write in writes:
        try:
            await write
        except LabError as error:
            print(f"refused: {error.found[:300]}")
            refused += 1
    return refused


def _annotations(text: str) -> Mapping[str, str]:
    """What the operator reads of a pod. The request is as long as it can be."""
    return {REQUEST: text, **dict.fromkeys((ADMITTED, ENABLE, MODE, INJECTED), cut(text, SHORT_BYTES))}


async def _workload(
    api: Api,
    name: str,
    annotations: Mapping[str, str],
    *,
    env: str = "false",
    labels: Mapping[str, str] | None = None,
) -> None:
    """A Deployment, its ReplicaSet and its pod."""
    body = deployment(name, replicas=1, labels={**(labels or {}), "fleet": name})
    template = body["spec"]["template"]
    template["metadata"]["annotations"] = dict(annotations)
    template["spec"]["containers"][0]["env"] = [
        {"name": variable, "value": env} for variable in ("ENABLE_FP16_TRAINING", "PRECISION_MODE")
    ]
    owner = await api.post(f"{_APPS}/deployments", body)
    between = await api.post(f"{_APPS}/replicasets", replica_set(owner))
    pod = pod_of(between)
    pod["metadata"]["annotations"] = dict(annotations)
    pod["spec"] = template["spec"]
    await api.post(_PODS, pod)


async def _policy(api: Api, name: str, text: str, *, annotations: Mapping[str, str] | None = None) -> None:
    """A policy with this text in its commands: one is as long as it can be, the others are shorter."""
    body = policy(name, labels={"fleet": name})
    commands = {command: cut(text, SHORT_BYTES) for command in ANNOTATIONS} | {ANNOTATIONS[0]: text}
    body["metadata"]["annotations"] = dict(annotations) if annotations is not None else commands
    await api.post(_POLICIES, body)
    later = {ANNOTATIONS[1]: f"1: {cut(text, ENV_BYTES)}"}
    await api.merge(f"{_POLICIES}/{name}", {"metadata": {"annotations": later}})


async def _lost(api: Api, texts: Mapping[str, str]) -> int:
    """How many policies do not show their one workload in time."""
    missing: set[str] = set()

    async def known() -> bool:
        found = {item["metadata"]["name"]: item.get("status", {}) for item in (await api.get(_POLICIES))["items"]}
        missing.clear()
        missing.update(n for n in (*texts, MANY_ANNOTATIONS, MANY_LABELS) if found.get(n, {}).get("total") != 1)
        return not missing

    try:
        await until(known, what="every policy to show its workload", seconds=SETTLE_SECONDS, every=1.0)
    except LabError:
        print(f"lost: {sorted(missing)}")
        return len(missing)
    return 0


@asynccontextmanager
async def _exported(texts: Mapping[str, str]) -> AsyncIterator[str]:
    """An exporter of one hostile trainer for each text; where Prometheus finds it."""
    body = _exposition(texts).encode()

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type="text/plain")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _exposition(texts: Mapping[str, str]) -> str:
    lines = []
    for name, text in texts.items():
        value = text[:_LABEL_CHARACTERS].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        pod = f'namespace="{NAMESPACE}",pod="{name}-bench-0"'
        lines.append(f'genesis_precision_info{{{pod},mode="{value}",generation="{value}"}} 1')
        run = ",".join(f'{label}="{value}"' for label in RUN_LABELS)
        lines.append(f"genesis_run_info{{{pod},{run}}} 1")
        lines.append(f'genesis_training_steps_total{{{pod},mode="{value}"}} 1')
        lines.append(f'genesis_training_steps_total{{namespace="{NAMESPACE}",pod="{value}"}} 1')
    return "\n".join(lines) + "\n"
