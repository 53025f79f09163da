"""The operator tries forbidden writes, as dry runs, before it acts: what nothing forbids, it does not use.

Each kind of write has rules and a proof of its own. One that is not fenced withholds its own kind alone: evictions that
nothing limits are no reason to leave a pod in a broken precision. The end of a suspension is withheld by nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from itertools import islice

from precision_operator.controller.trials import Found, field, leaves, on_eviction, on_job, on_pod, on_policy, runs
from precision_operator.errors import (
    Conflict,
    KubeError,
    NotFound,
    OperatorError,
    TooManyRequests,
    Unavailable,
    Unfenced,
)
from precision_operator.kube.port import PODS, JsonObject, KubeApi
from precision_operator.reasons import Reason
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

TRIED = 5
"""Objects that are looked at, for the first ones may be gone by now."""

_NEVER = float("-inf")


class Fence:
    """Tries the fence (manifests/admission/fence.yaml) on what is to be written, and on a policy, and again in time."""

    def __init__(self, api: KubeApi, clock: Clock, *, required: bool = True) -> None:
        """``required``: False where the operator runs with a person's rights, for development."""
        self._api = api
        self._required = required
        self._pods = _Proof(clock, "writes to pods")
        self._evictions = _Proof(clock, "evictions")
        self._jobs = _Proof(clock, "suspensions")

    async def begin(self, namespace: str, name: str) -> None:
        """Try it on the operator's own pod, so that an open fence shows at the start and not in the first emergency.

        Never raises. Where that says nothing, or the fence is open, it is tried again before the first write.
        """
        if not self._required:
            return
        try:
            uid = field(await self._api.get(PODS, namespace, name), "metadata", "uid")
        except KubeError as error:
            _LOG.info("the fence is tried before the first write: no pod of the operator to try it on: %s", error)
            return
        await self._pods.begin(lambda: self._try_pods([(namespace, name)]))
        await self._evictions.begin(lambda: on_eviction(self._api, namespace, name, uid))

    async def check(self, pods: Iterable[tuple[str, str]]) -> OperatorError | None:
        """Why nothing may be written to these pods (namespace, name); None: the API server holds us to what we need.

        TooManyRequests where it says when to ask again; else Unfenced.
        """
        return await self._pods.check(lambda: self._try_pods(pods)) if self._required else None

    async def check_evictions(self, pods: Iterable[tuple[str, str, str]]) -> OperatorError | None:
        """The same of the eviction of these pods (namespace, name, uid)."""
        tried = (on_eviction(self._api, namespace, name, uid) for namespace, name, uid in pods)
        return await self._evictions.check(lambda: _first(tried)) if self._required else None

    async def check_jobs(self, jobs: Iterable[tuple[str, str]]) -> OperatorError | None:
        """The same of the suspension of these Jobs (namespace, name)."""
        tried = (on_job(self._api, namespace, name) for namespace, name in jobs)
        return await self._jobs.check(lambda: _first(tried)) if self._required else None

    async def _try_pods(self, pods: Iterable[tuple[str, str]]) -> Found:
        there = await self._there(pods)
        return await _first(self._on_pod(pod) for pod in there)

    async def _on_pod(self, pod: JsonObject) -> Found:
        tried = on_pod(self._api, pod), on_policy(self._api, field(pod, "metadata", "namespace"))
        answers = await asyncio.gather(*tried, return_exceptions=True)
        found = [answer for answer in answers if isinstance(answer, Found)]
        unfenced = next((one.unfenced for one in found if one.unfenced is not None), None)
        failed = next((answer for answer in answers if isinstance(answer, BaseException)), None)
        if unfenced is None and failed is not None:
            raise failed
        return Found(unfenced, complete=all(one.complete for one in found))

    async def _there(self, pods: Iterable[tuple[str, str]]) -> list[JsonObject]:
        """The first pods that are there; those that most can be tried on come first."""
        asked = (self._api.get(PODS, namespace, name) for namespace, name in islice(pods, TRIED))
        found = await asyncio.gather(*asked, return_exceptions=True)
        for error in found:
            if isinstance(error, BaseException) and not isinstance(error, NotFound):
                raise error
        there = [pod for pod in found if not isinstance(pod, BaseException)]
        return sorted(there, key=lambda pod: (leaves(pod), not runs(pod)))


async def _first(trials: Iterable[Awaitable[Found]]) -> Found:
    """What the first trial shows whose object is there; the others are not begun.

    Raises:
        NotFound: there is none.
        KubeError: as the API server answered.
    """
    for trial in islice(trials, TRIED):
        try:
            return await trial
        except (NotFound, Conflict):
            continue  # it is gone meanwhile, or another has its name
    raise NotFound("none is left")


class _Proof:
    """What is known of one kind of write."""

    def __init__(self, clock: Clock, what: str) -> None:
        self._clock = clock
        self._what = what
        self._proven = _NEVER
        self._due = _NEVER
        self._trying: tuple[float, asyncio.Task[Found]] | None = None
        """The trial that writes wait for, and when it was begun."""

    async def begin(self, trial: Callable[[], Coroutine[object, object, Found]]) -> None:
        """Make the trial before anything is to be written; what it shows is kept, and said."""
        try:
            found = await self._tried(trial)
        except KubeError as error:
            _LOG.info("the fence is tried for %s before the first of them: %s", self._what, error)
            return
        if found.unfenced is not None:
            _LOG.warning("%s", found.unfenced, extra={"reason": found.unfenced.reason})
        else:
            self._prove(found)

    async def check(self, trial: Callable[[], Coroutine[object, object, Found]]) -> OperatorError | None:
        """Why nothing of this kind may be written; the trial is made when it is due."""
        now = self._clock.monotonic()
        if now < self._due:
            return None
        proven = now - self._proven < KEPT_SECONDS
        try:
            found = await (within(self._clock, PATIENCE_SECONDS, trial()) if proven else self._tried(trial))
        except (TimeoutError, TooManyRequests, Unavailable) as error:
            if not proven:
                return _untried(error)
            self._put_off(error)
            return None
        except NotFound:
            return Unfenced(
                f"the fence cannot be tried for {self._what}: what they are meant for is gone; looking again"
            )
        except KubeError as error:
            self._proven = _NEVER
            return _untried(error)
        if found.unfenced is not None:
            self._proven = _NEVER
            return found.unfenced
        self._prove(found)
        return None

    def _prove(self, found: Found) -> None:
        self._proven = self._clock.monotonic()
        self._due = self._proven + (AGAIN_SECONDS if found.complete else PARTLY_SECONDS)
        _LOG.info("fenced: forbidden %s are denied", self._what, extra={"reason": Reason.FENCED})

    async def _tried(self, trial: Callable[[], Coroutine[object, object, Found]]) -> Found:
        """A pass that gives up waiting leaves the trial under way, and the next one finds it.

        Else a slow API server, of which each pass begins a trial, would never have proven anything.
        """
        now = self._clock.monotonic()
        began, trying = self._trying or (_NEVER, None)
        found = trying is not None and not (trying.done() and now - began >= PARTLY_SECONDS)
        if trying is None or not found:
            trying = asyncio.get_running_loop().create_task(trial())
            trying.add_done_callback(lambda task: task.cancelled() or task.exception())  # it may have been given up
            self._trying = now, trying
        await asyncio.wait({trying})
        if self._trying is not None and self._trying[1] is trying:
            self._trying = None
        try:
            return trying.result()
        except NotFound:
            if not found:
                raise
        return await trial()  # others' pods were gone

    def _put_off(self, error: Exception) -> None:
        asked_seconds = error.retry_after_seconds if isinstance(error, TooManyRequests) else 0.0
        self._due = self._clock.monotonic() + max(PAUSE_SECONDS, asked_seconds)
        reason = error.reason if isinstance(error, OperatorError) else Unavailable.reason
        _LOG.warning("the fence cannot be tried, the earlier proof counts: %s", error, extra={"reason": reason})


def _untried(error: Exception) -> OperatorError:
    """The API server's wish for a pause is passed on."""
    why = f"the fence cannot be tried: {error}"
    if isinstance(error, TooManyRequests):
        return TooManyRequests(why, status=error.status, retry_after_seconds=error.retry_after_seconds)
    return Unfenced(why)
