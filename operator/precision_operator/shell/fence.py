"""The operator tries forbidden writes on a pod, as dry runs, before it acts: what nothing forbids, it does not use."""

import logging
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice

from precision_operator.contract import PREFIX
from precision_operator.errors import Forbidden, KubeError, NotFound, Unfenced
from precision_operator.kube.port import PODS, Deletion, JsonObject, KubeApi
from precision_operator.runtime.clock import Clock

_LOG = logging.getLogger(__name__)

AGAIN_SECONDS = 600.0
"""How often the fence is tried."""

PODS_TRIED = 5
"""Pods that are tried, where the first ones are gone by now."""

DENIED_BY = "ValidatingAdmissionPolicy 'precision-fence"
"""What its denials say. No name of an object can hold this."""


class Fence:
    """Tries the fence (manifests/admission/fence.yaml) on a pod that is to be written, and again in time."""

    def __init__(self, api: KubeApi, clock: Clock, *, required: bool = True) -> None:
        """``required``: False where the operator runs with a person's rights, for development."""
        self._api = api
        self._clock = clock
        self._required = required
        self._proven = -AGAIN_SECONDS

    async def check(self, pods: Iterable[tuple[str, str]]) -> Unfenced | None:
        """Why nothing may be written to these pods (namespace, name); None: the API server holds us to what we need."""
        if not self._required or self._clock.monotonic() - self._proven < AGAIN_SECONDS:
            return None
        for namespace, pod in islice(pods, PODS_TRIED):
            try:
                unfenced = await self._try(namespace, pod)
            except NotFound:
                continue
            if unfenced is None:
                _LOG.info("fenced: forbidden writes are denied", extra={"reason": "Fenced"})
                self._proven = self._clock.monotonic()
            return unfenced
        return Unfenced("the fence cannot be tried: the pods that are to be written are gone; looking again")

    async def _try(self, namespace: str, pod: str) -> Unfenced | None:
        """What is not denied on this pod.

        Raises:
            NotFound: the pod is gone.
        """
        patch: JsonObject = {"metadata": {"labels": {f"{PREFIX}/fence-test": "true"}}}
        forbidden: tuple[tuple[str, Callable[[], Awaitable[object]]], ...] = (
            ("change a pod's labels", lambda: self._api.dry_run(PODS, namespace, pod, patch)),
            (
                "kill a pod without grace",
                lambda: self._api.delete(PODS, namespace, pod, Deletion(dry_run=True, grace_seconds=0)),
            ),
        )
        for what, attempt in forbidden:
            try:
                await attempt()
            except NotFound:
                raise
            except KubeError as error:
                if DENIED_BY in str(error):
                    continue
                if isinstance(error, Forbidden):
                    return Unfenced(f"the fence cannot be tried: the operator may not {what}: {error}")
                return Unfenced(f"the fence cannot be tried: {error}")
            return Unfenced(
                f"the operator could {what}: manifests/admission/fence.yaml is not installed for its account; "
                "nothing is written until it is"
            )
        return None
