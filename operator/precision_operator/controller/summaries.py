"""The summary in a policy's status: only what changed is written, and of a rollback's mere progress not everything."""

import logging
from collections.abc import Mapping

from precision_operator.api.gain import NOT_MEASURED, Gain
from precision_operator.api.policy import Policy, PolicyKey
from precision_operator.api.state import Phase
from precision_operator.api.summary import Summary, parse_summary, summary_to_wire
from precision_operator.controller.commit import as_json
from precision_operator.core.decide import Decision
from precision_operator.core.status.summary import begun
from precision_operator.errors import KubeError, NotFound, OperatorError, Unavailable
from precision_operator.kube.port import POLICIES, JsonObject, JsonValue, KubeApi
from precision_operator.runtime.clock import Clock, within

PROGRESS_SECONDS = 10.0
"""How often the status of a rollback is written of which only how far it has come has changed."""

_LOG = logging.getLogger(__name__)


class Summaries:
    """Writes summaries."""

    def __init__(self, api: KubeApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._shown: dict[PolicyKey, float] = {}
        """Until when mere progress is not shown again, by the monotonic clock."""

    async def show(
        self, key: PolicyKey, body: JsonObject, decision: Decision, *, within_seconds: float
    ) -> list[OperatorError]:
        """The summary in the policy's status; returns what failed, so that the caller looks again soon."""
        if decision.state.phase is Phase.ROLLING_BACK and not self._worth_showing(key, body, decision.summary):
            return []
        return await self._write(key, body, decision.summary, within_seconds)

    async def show_first(
        self, key: PolicyKey, body: JsonObject, policy: Policy, *, within_seconds: float
    ) -> list[OperatorError]:
        """A new policy is not left without a status until its metrics were read: that may take the whole deadline."""
        return await self._write(key, body, begun(policy, self._clock.time()), within_seconds)

    async def _write(self, key: PolicyKey, body: JsonObject, summary: Summary, seconds: float) -> list[OperatorError]:
        try:
            await within(self._clock, seconds, write_summary(self._api, key, body, summary))
        except NotFound:
            pass  # deleted meanwhile: the watch will say so
        except TimeoutError:
            # Should it arrive after the next one, the watch reports the policy, and the pass after that puts it right.
            cut_off = Unavailable(f"no answer to a status within {seconds:.1f} s")
            _LOG.info("%s/%s: %s; the next pass writes it", key.namespace, key.name, cut_off)
            return [cut_off]
        except KubeError as error:
            _LOG.warning("%s/%s: the status is not written: %s", key.namespace, key.name, error)
            return [error]
        return []

    def _worth_showing(self, key: PolicyKey, body: JsonObject, summary: Summary) -> bool:
        """In a rollback, how far it has come is written once in a while: its writes are needed for pods."""
        now = self._clock.monotonic()
        if _gist(summary) == _gist(parse_summary(body.get("status"))) and now < self._shown.get(key, 0.0):
            return False
        self._shown = {known: until for known, until in self._shown.items() if until > now}
        self._shown[key] = now + PROGRESS_SECONDS
        return True


async def write_summary(api: KubeApi, key: PolicyKey, body: JsonObject, summary: Summary) -> bool:
    """Write the policy's status where it changed; returns whether it was written.

    What precision brings changes with every look, and is written with what else has: alone only where it has a figure
    that is not shown yet, which happens once a figure.

    Raises:
        KubeError: as the API server answered.
    """
    raw = body.get("status")
    patch = difference(raw if isinstance(raw, dict) else {}, as_json(summary_to_wire(summary)))
    if not patch.keys() - {"gain"} and not _new_figure(parse_summary(raw).gain, summary.gain):
        return False
    await api.merge_patch(POLICIES, key.namespace, key.name, {"status": patch}, subresource="status")
    return True


def _new_figure(shown: Gain | None, now: Gain | None) -> bool:
    return bool((now or NOT_MEASURED).known - (shown or NOT_MEASURED).known)


def _gist(summary: Summary) -> tuple[object, ...]:
    """What of a summary is shown at once: not how many have acknowledged, nor for whom it waits."""
    incident = summary.incident
    urgency = (incident.id, incident.severity, incident.strategy, incident.escalated) if incident is not None else ()
    conditions = tuple((c.type, c.status) for c in summary.conditions)
    return summary.phase, summary.reason, summary.transition_id, urgency, conditions


def difference(old: Mapping[str, JsonValue], new: Mapping[str, JsonValue]) -> JsonObject:
    """The RFC 7396 merge patch that turns ``old`` into ``new``; empty where they are equal."""
    patch: JsonObject = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            inner = difference(before, value)
            if inner:
                patch[key] = inner
        elif key not in old or before != value:
            patch[key] = value
    return patch
