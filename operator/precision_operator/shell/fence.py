"""The operator tries forbidden writes, as dry runs, before it acts: what nothing forbids, it does not use."""

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from itertools import islice

from precision_operator.api.wire import integer, mapping, text
from precision_operator.contract import PREFIX
from precision_operator.errors import (
    Conflict,
    Forbidden,
    KubeError,
    NotFound,
    OperatorError,
    TooManyRequests,
    Unavailable,
    Unfenced,
)
from precision_operator.kube.port import PODS, POLICIES, Deletion, JsonObject, KubeApi
from precision_operator.runtime.clock import Clock, within

_LOG = logging.getLogger(__name__)

AGAIN_SECONDS = 600.0
"""How often the fence is tried."""

PARTLY_SECONDS = 60.0
"""The same, where a rule could not be tried: no pod runs, or there is no policy (any more)."""

KEPT_SECONDS = 3600.0
"""How long an earlier proof counts while the API server gives no answer to a trial (429, 5xx, time-out).

That says nothing about the fence, and it comes in an emergency: all writes of a rollback would wait for what was proven a
few minutes ago. Only people remove a fence. They may have, so a proof does not count for ever: an hour is longer than a
rollback takes, and than an API server stays too busy to answer at all.
"""

PATIENCE_SECONDS = 0.3
"""How long writes wait for a trial while an earlier proof counts."""

PAUSE_SECONDS = 10.0
"""Until the next trial, at least, after one without an answer: the passes in between do not wait for one."""

PODS_TRIED = 5
"""Pods that are looked at, for the first ones may be gone by now."""

DENIED_BY = "ValidatingAdmissionPolicy 'precision-fence"
"""What its denials say. No name of an object can hold this."""

_NEVER = float("-inf")
_LABEL: JsonObject = {"metadata": {"labels": {f"{PREFIX}/fence-test": "true"}}}


@dataclass(frozen=True, slots=True)
class _Found:
    unfenced: Unfenced | None
    """What is not denied."""
    complete: bool
    """All the rules could be tried."""


class Fence:
    """Tries the fence (manifests/admission/fence.yaml) on a pod that is to be written and on a policy, and again in time."""

    def __init__(self, api: KubeApi, clock: Clock, *, required: bool = True) -> None:
        """``required``: False where the operator runs with a person's rights, for development."""
        self._api = api
        self._clock = clock
        self._required = required
        self._proven = _NEVER
        self._due = _NEVER

    async def check(self, pods: Iterable[tuple[str, str]]) -> OperatorError | None:
        """Why nothing may be written to these pods (namespace, name); None: the API server holds us to what we need.

        TooManyRequests where it says when to ask again; else Unfenced.
        """
        now = self._clock.monotonic()
        if not self._required or now < self._due:
            return None
        proven = now - self._proven < KEPT_SECONDS
        trial = self._trial(pods)
        try:
            unfenced = await (within(self._clock, PATIENCE_SECONDS, trial) if proven else trial)
        except (TimeoutError, TooManyRequests, Unavailable) as error:
            if not proven:
                return _untried(error)
            self._put_off(error)
            return None
        except NotFound:
            return Unfenced("the fence cannot be tried: the pods that are to be written are gone; looking again")
        except KubeError as error:
            unfenced = _untried(error)
        if unfenced is not None:
            self._proven = _NEVER
        return unfenced

    def _put_off(self, error: Exception) -> None:
        asked_seconds = error.retry_after_seconds if isinstance(error, TooManyRequests) else 0.0
        self._due = self._clock.monotonic() + max(PAUSE_SECONDS, asked_seconds)
        reason = error.reason if isinstance(error, OperatorError) else Unavailable.reason
        _LOG.warning("the fence cannot be tried, the earlier proof counts: %s", error, extra={"reason": reason})

    async def _trial(self, pods: Iterable[tuple[str, str]]) -> OperatorError | None:
        """What is not denied; None: all that can be tried here is, which is remembered.

        Raises:
            NotFound: the pods are gone.
            KubeError: as the API server answered.
        """
        for pod in await self._there(pods):
            tried = self._on_pod(pod), self._on_policy(_field(pod, "metadata", "namespace"))
            answers = await asyncio.gather(*tried, return_exceptions=True)
            found = [answer for answer in answers if isinstance(answer, _Found)]
            unfenced = next((one.unfenced for one in found if one.unfenced is not None), None)
            if unfenced is not None:
                return unfenced
            failed = next((answer for answer in answers if isinstance(answer, BaseException)), None)
            if isinstance(failed, NotFound | Conflict):
                continue  # it is gone meanwhile, or another has its name
            if failed is not None:
                raise failed
            self._proven = self._clock.monotonic()
            self._due = self._proven + (AGAIN_SECONDS if all(one.complete for one in found) else PARTLY_SECONDS)
            _LOG.info("fenced: forbidden writes are denied", extra={"reason": "Fenced"})
            return None
        raise NotFound("no pod is left")

    async def _there(self, pods: Iterable[tuple[str, str]]) -> list[JsonObject]:
        """The first pods that are there; those that most can be tried on come first."""
        asked = (self._api.get(PODS, namespace, name) for namespace, name in islice(pods, PODS_TRIED))
        found = await asyncio.gather(*asked, return_exceptions=True)
        for error in found:
            if isinstance(error, BaseException) and not isinstance(error, NotFound):
                raise error
        there = [pod for pod in found if not isinstance(pod, BaseException)]
        return sorted(there, key=lambda pod: (_leaves(pod), not _runs(pod)))

    async def _on_pod(self, pod: JsonObject) -> _Found:
        """Each trial breaks one rule alone: a fence that lacks any of them is found out.

        Raises:
            NotFound, Conflict: the pod is gone.
            KubeError: to one of them there is no answer.
        """
        namespace, name = _field(pod, "metadata", "namespace"), _field(pod, "metadata", "name")
        runs, leaves = _runs(pod), _leaves(pod)
        deletions: dict[str, Deletion] = {}
        if runs and not leaves:
            uid = _field(pod, "metadata", "uid")
            deletions["kill a pod without grace"] = Deletion(uid=uid, dry_run=True, grace_seconds=0)
        if not leaves:
            # Its own grace, or the rule above would be broken too where that is 0.
            grace_seconds = max(1, _own_grace_seconds(pod))
            deletions["delete a pod without its uid"] = Deletion(dry_run=True, grace_seconds=grace_seconds)
        attempts: dict[str, Awaitable[object]] = {
            "change a pod's labels": self._api.dry_run(PODS, namespace, name, _LABEL),
            **{what: self._api.delete(PODS, namespace, name, deletion) for what, deletion in deletions.items()},
        }
        answers = await asyncio.gather(*attempts.values(), return_exceptions=True)
        found = (_unfenced(what, answer) for what, answer in zip(attempts, answers, strict=True))
        unfenced = next((one for one in found if one is not None), None)
        failed = next((one for one in answers if isinstance(one, BaseException) and DENIED_BY not in str(one)), None)
        if unfenced is None and failed is not None:
            raise failed
        return _Found(unfenced, complete=runs and not leaves)

    async def _on_policy(self, namespace: str) -> _Found:
        """The same on a policy. Only one that could be changed withholds writes: they are to pods.

        Raises:
            TooManyRequests, Unavailable: no answer.
        """
        try:
            policies = await self._api.list(POLICIES, namespace)
            if not policies:
                return _Found(None, complete=False)
            await self._api.dry_run(POLICIES, namespace, _field(policies[0], "metadata", "name"), _LABEL)
        except (TooManyRequests, Unavailable):
            raise
        except KubeError as error:
            return _Found(None, complete=DENIED_BY in str(error))
        return _Found(_unfenced("change a policy", None), complete=True)


def _unfenced(what: str, answer: object) -> Unfenced | None:
    """What the answer to a forbidden write proves to be open; None: it was denied, or there was no answer."""
    if not isinstance(answer, BaseException):
        return Unfenced(
            f"the operator could {what}: manifests/admission/fence.yaml is not installed for its account; "
            "nothing is written until it is"
        )
    if isinstance(answer, Forbidden) and DENIED_BY not in str(answer):
        return Unfenced(f"the fence cannot be tried: the operator may not {what}: {answer}")
    return None


def _untried(error: Exception) -> OperatorError:
    """The API server's wish for a pause is passed on."""
    why = f"the fence cannot be tried: {error}"
    if isinstance(error, TooManyRequests):
        return TooManyRequests(why, status=error.status, retry_after_seconds=error.retry_after_seconds)
    return Unfenced(why)


def _field(body: JsonObject, part: str, name: str) -> str:
    return text(mapping(body.get(part)).get(name))


def _runs(pod: JsonObject) -> bool:
    """Whether it can be killed: the rule of the grace holds for no other."""
    return bool(_field(pod, "spec", "nodeName")) and _field(pod, "status", "phase") not in ("Succeeded", "Failed")


def _leaves(pod: JsonObject) -> bool:
    """It is being deleted: another deletion that shortens nothing is not even shown to admission."""
    return bool(_field(pod, "metadata", "deletionTimestamp"))


def _own_grace_seconds(pod: JsonObject) -> int:
    return integer(mapping(pod.get("spec")).get("terminationGracePeriodSeconds"), 30)
