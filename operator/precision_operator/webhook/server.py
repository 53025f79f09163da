"""The HTTPS server that API servers send new pods to. It refuses nothing: what goes wrong here is counted and logged."""

import base64
import json
import logging
import ssl
from collections.abc import Callable
from enum import StrEnum

from aiohttp import web

from precision_operator.admission.known import KnownAssignments
from precision_operator.admission.review import Patch, patch_for
from precision_operator.api.text import bounded
from precision_operator.api.wire import mapping, text
from precision_operator.reasons import Reason
from precision_operator.runtime.listening import listening_socket

_LOG = logging.getLogger(__name__)

MAX_BODY_BYTES = 4 * 1024 * 1024
"""The API server takes requests of 3 MiB; a review of an update holds the object twice, but policies are small."""


class ReviewResult(StrEnum):
    """What became of one request, as the metric counts it."""

    PATCHED = "Patched"
    UNCHANGED = "Unchanged"
    FAILED = "Failed"
    """The pod passed unchanged, because of a fault here."""


Count = Callable[[ReviewResult], None]
"""Takes the result of one review."""


class WebhookServer:
    """Serves until ``stop``. It asks nobody who he is: what it answers, any assignment in the API says as well."""

    def __init__(self, known: KnownAssignments, *, count: Count, injecting: bool = True) -> None:
        """``injecting``: whether the label ``inject`` is obeyed."""
        self._known = known
        self._injecting = injecting
        self._count = count
        self._runner: web.AppRunner | None = None

    async def start(self, port: int, context: ssl.SSLContext, *, host: str | None = None) -> int:
        """Listen, on every address where there is no ``host``; port 0 picks a free one. Returns the port.

        Raises:
            OSError: the port is taken.
        """
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post("/admit", self._admit)
        app.router.add_get("/known/{namespace}/{name}", self._tell)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        listening = listening_socket(host, port)
        await runner.setup()
        await web.SockSite(runner, listening, ssl_context=context).start()
        self._runner = runner
        return int(listening.getsockname()[1])

    async def stop(self) -> None:
        """Stop listening; harmless when not started."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _admit(self, request: web.Request) -> web.Response:
        uid = ""
        answer: dict[str, object] = {"allowed": True}
        try:
            body = mapping(mapping(json.loads(await request.read())).get("request"))
            uid = text(body.get("uid"))
            answer |= _encoded(patch_for(body, self._known, injecting=self._injecting))
            result = ReviewResult.PATCHED if "patch" in answer else ReviewResult.UNCHANGED
        except Exception as error:  # noqa: BLE001 - a pod must start, whatever is wrong here
            result = ReviewResult.FAILED
            said = bounded(f"{type(error).__name__}: {error}")
            _LOG.warning("a request passes unchanged: %s", said, extra={"reason": Reason.REVIEW_FAILED})
        self._count(result)
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": uid, **answer}}
        return web.json_response(review)

    async def _tell(self, request: web.Request) -> web.Response:
        """Which generation of an assignment this replica gives to new pods."""
        generation = self._known.generation(request.match_info["namespace"], request.match_info["name"])
        if generation is None:
            return web.json_response({"generation": None}, status=404)
        return web.json_response({"generation": generation})


def _encoded(patch: Patch) -> dict[str, object]:
    if not patch:
        return {}
    return {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
