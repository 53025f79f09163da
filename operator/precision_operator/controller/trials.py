"""Forbidden writes, tried as dry runs: what the answers to them say of the fence (manifests/admission/fence.yaml)."""

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass

from precision_operator.api.wire import integer, mapping, text
from precision_operator.contract import PREFIX
from precision_operator.errors import (
    DisruptionBudget,
    Forbidden,
    KubeError,
    TooManyRequests,
    Unavailable,
    Unfenced,
)
from precision_operator.kube.denials import denying_policies
from precision_operator.kube.port import JOBS, PODS, POLICIES, Deletion, JsonObject, KubeApi

FENCE = "precision-fence"
"""How the names of its policies begin."""

_LABEL: JsonObject = {"metadata": {"labels": {f"{PREFIX}/fence-test": "true"}}}


@dataclass(frozen=True, slots=True)
class Found:
    """What trials on one object showed."""

    unfenced: Unfenced | None
    """What is not denied."""
    complete: bool = True
    """All the rules could be tried."""


async def on_pod(api: KubeApi, pod: JsonObject) -> Found:
    """Each trial breaks one rule alone: a fence that lacks any of them is found out.

    Raises:
        NotFound, Conflict: the pod is gone.
        KubeError: to one of them there is no answer.
    """
    namespace, name = field(pod, "metadata", "namespace"), field(pod, "metadata", "name")
    running, going = runs(pod), leaves(pod)
    deletions: dict[str, Deletion] = {}
    if running and not going:
        uid = field(pod, "metadata", "uid")
        deletions["kill a pod without grace"] = Deletion(uid=uid, dry_run=True, grace_seconds=0)
    if not going:
        # Its own grace, or the rule above would be broken too where that is 0.
        grace_seconds = max(1, _own_grace_seconds(pod))
        deletions["delete a pod without its uid"] = Deletion(dry_run=True, grace_seconds=grace_seconds)
    attempts: dict[str, Awaitable[object]] = {
        "change a pod's labels": api.dry_run(PODS, namespace, name, _LABEL),
        **{what: api.delete(PODS, namespace, name, deletion) for what, deletion in deletions.items()},
    }
    return Found(await _judged(attempts, "nothing is written until it is"), complete=running and not going)


async def on_policy(api: KubeApi, namespace: str) -> Found:
    """The same on a policy. Only one that could be changed withholds writes: they are to pods.

    Raises:
        TooManyRequests, Unavailable: no answer.
    """
    try:
        policies = await api.list(POLICIES, namespace)
        if not policies:
            return Found(None, complete=False)
        await api.dry_run(POLICIES, namespace, field(policies[0], "metadata", "name"), _LABEL)
    except (TooManyRequests, Unavailable):
        raise
    except KubeError as error:
        return Found(None, complete=_denied(error))
    return Found(_open("change a policy", "nothing is written until it is"))


async def on_eviction(api: KubeApi, namespace: str, pod: str, uid: str) -> Found:
    """The same with evictions. The fence sees the eviction, and nothing of the pod.

    Raises:
        NotFound, Conflict: the pod is gone.
        KubeError: to one of them there is no answer.
    """
    attempts: dict[str, Awaitable[object]] = {
        "evict a pod without its uid": api.evict(namespace, pod, Deletion(dry_run=True)),
        "evict a pod without grace": api.evict(namespace, pod, Deletion(uid=uid, dry_run=True, grace_seconds=0)),
    }
    return Found(await _judged(attempts, "no pod is evicted until it is"))


async def on_job(api: KubeApi, namespace: str, job: str) -> Found:
    """The same on a Job.

    Raises:
        NotFound: the Job is gone.
        KubeError: there is no answer.
    """
    attempts: dict[str, Awaitable[object]] = {"change a Job's labels": api.dry_run(JOBS, namespace, job, _LABEL)}
    return Found(await _judged(attempts, "no Job is suspended until it is"))


async def _judged(attempts: Mapping[str, Awaitable[object]], consequence: str) -> Unfenced | None:
    """What is not denied; an answer that says nothing about the fence is raised, where nothing else is open."""
    answers = await asyncio.gather(*attempts.values(), return_exceptions=True)
    found = (_unfenced(what, answer, consequence) for what, answer in zip(attempts, answers, strict=True))
    unfenced = next((one for one in found if one is not None), None)
    failed = next((one for one in answers if isinstance(one, BaseException) and not _denied(one)), None)
    if unfenced is None and failed is not None:
        raise failed
    return unfenced


def _unfenced(what: str, answer: object, consequence: str) -> Unfenced | None:
    """What the answer to a forbidden write proves to be open; None: it was denied, or there was no answer."""
    # A budget is asked last: admission let it pass.
    if not isinstance(answer, BaseException) or isinstance(answer, DisruptionBudget):
        return _open(what, consequence)
    if isinstance(answer, Forbidden) and not _denied(answer):
        return Unfenced(f"the fence cannot be tried: the operator may not {what}: {answer}")
    return None


def _denied(error: BaseException) -> bool:
    return any(name.startswith(FENCE) for name in denying_policies(error))


def _open(what: str, consequence: str) -> Unfenced:
    return Unfenced(
        f"the operator could {what}: manifests/admission/fence.yaml is not installed for its account; {consequence}"
    )


def field(body: JsonObject, part: str, name: str) -> str:
    """A text two levels deep; empty where there is none."""
    return text(mapping(body.get(part)).get(name))


def runs(pod: JsonObject) -> bool:
    """Whether it can be killed: the rule of the grace holds for no other."""
    return bool(field(pod, "spec", "nodeName")) and field(pod, "status", "phase") not in ("Succeeded", "Failed")


def leaves(pod: JsonObject) -> bool:
    """It is being deleted: another deletion that shortens nothing is not even shown to admission."""
    return bool(field(pod, "metadata", "deletionTimestamp"))


def _own_grace_seconds(pod: JsonObject) -> int:
    return integer(mapping(pod.get("spec")).get("terminationGracePeriodSeconds"), 30)
