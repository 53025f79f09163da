"""The operator tries forbidden writes on a pod, as dry runs, before it acts: what nothing forbids, it does not use."""

import logging
from collections.abc import Awaitable, Callable

from precision_operator.contract import PREFIX
from precision_operator.errors import Forbidden, KubeError, NotFound, Unfenced
from precision_operator.kube.port import PODS, JsonObject, KubeApi
from precision_operator.runtime.clock import Clock

_LOG = logging.getLogger(__name__)

AGAIN_SECONDS = 600.0
"""How often the fence is tried."""

POLICY = "precision-fence"
"""What its denials name."""


class Fence:
    """Tries the fence (manifests/admission/fence.yaml) on the first pod that is to be written, and again in time."""

    def __init__(self, api: KubeApi, clock: Clock, *, required: bool = True) -> None:
        """``required``: False where the operator runs with a person's rights, for development."""
        self._api = api
        self._clock = clock
        self._required = required
        self._proven = -AGAIN_SECONDS

    async def check(self, namespace: str, pod: str) -> Unfenced | None:
        """Why nothing may be written; None: the API server holds us to what we need."""
        if not self._required or self._clock.monotonic() - self._proven < AGAIN_SECONDS:
            return None
        patch: JsonObject = {"metadata": {"labels": {f"{PREFIX}/fence-test": "true"}}}
        forbidden: tuple[tuple[str, Callable[[], Awaitable[object]]], ...] = (
            ("change a pod's labels", lambda: self._api.dry_run(PODS, namespace, pod, patch)),
            ("kill a pod without grace", lambda: self._api.delete(PODS, namespace, pod, dry_run=True, grace=0)),
        )
        for what, attempt in forbidden:
            try:
                await attempt()
            except NotFound:
                return None  # the pod is gone; the next one tells
            except KubeError as error:
                if POLICY in str(error):
                    continue
                if isinstance(error, Forbidden):
                    return Unfenced(f"the fence cannot be tried: the operator may not {what}: {error}")
                return Unfenced(f"the fence cannot be tried: {error}")
            return Unfenced(
                f"the operator could {what}: manifests/admission/fence.yaml is not installed for its account; "
                "nothing is written until it is"
            )
        _LOG.info("fenced: forbidden writes are denied", extra={"reason": "Fenced"})
        self._proven = self._clock.monotonic()
        return None
