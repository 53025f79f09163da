"""Delivers messages to the channels of their roles: at least once, with back-off, and given up after a while."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from precision_operator.observability.metrics import Metrics
from precision_operator.report.channels import NotDelivered, send
from precision_operator.report.document import name_for
from precision_operator.report.incident import Message, Report
from precision_operator.runtime.clock import Clock
from precision_operator.settings import NotificationChannel

_LOG = logging.getLogger(__name__)

ON_CALL, ML_LEAD, EXECUTIVE = "on-call", "ml-lead", "executive"
_LADDER = (ON_CALL, ML_LEAD, EXECUTIVE)

TRIES = 8
"""Then a channel is given up for a message: with the back-off that is after about ten minutes."""
RETRY_SECONDS = (2.0, 300.0)

Send = Callable[[NotificationChannel, Message, Mapping[str, str]], Awaitable[None]]


class Notifier:
    """Delivers a report's messages, and notes on them to whom they went."""

    def __init__(
        self, channels: Mapping[str, NotificationChannel], *, metrics: Metrics, clock: Clock, send: Send = send
    ) -> None:
        self._channels = channels
        self._metrics = metrics
        self._clock = clock
        self._send = send
        self._tries: dict[tuple[str, str, str], tuple[int, float]] = {}
        """(incident, time of the message, channel) → tries so far, and when the next is due."""

    def due_at(self, report: Report, namespace: str) -> float | None:
        """When the next delivery is due; None: nothing is owed."""
        moments = [self._tries.get(key, (0, 0.0))[1] for key, _, _ in self._owed(report, namespace)]
        return min(moments, default=None)

    async def deliver(self, report: Report, namespace: str) -> Report:
        """Try all that is due; the report with what was delivered. Never raises."""
        now = self._clock.time()
        for key, message, name in self._owed(report, namespace):
            tries, due_at = self._tries.get(key, (0, 0.0))
            if due_at > now:
                continue
            try:
                await self._send(self._channels[name], message, _facts(report, namespace))
            except NotDelivered as error:
                first, most = RETRY_SECONDS
                self._tries[key] = (tries + 1, now + min(most, first * 2**tries))
                self._metrics.report_error(error.reason)
                last = tries + 1 >= TRIES
                _LOG.log(
                    logging.ERROR if last else logging.WARNING,
                    "channel %s, %s of %s: %s; %s",
                    *(name, message.kind, report.id, error, "given up" if last else "again later"),
                    extra={"reason": error.reason},
                )
                continue
            self._tries.pop(key, None)
            messages = tuple(
                replace(m, delivered=(*m.delivered, name)) if (m.kind, m.at) == (message.kind, message.at) else m
                for m in report.messages
            )
            report = replace(report, messages=messages)
        return report

    def forget(self, report: Report, namespace: str) -> None:
        """The incident is over: nothing more is tried."""
        whose = f"{namespace}/{name_for(report)}"
        self._tries = {key: value for key, value in self._tries.items() if key[0] != whose}

    def _owed(self, report: Report, namespace: str) -> list[tuple[tuple[str, str, str], Message, str]]:
        owed = []
        whose = f"{namespace}/{name_for(report)}"
        for message in report.messages:
            roles = _roles(report, message)
            for name, channel in sorted(self._channels.items()):
                key = (whose, f"{message.kind} {message.at}", name)
                tried = self._tries.get(key, (0, 0.0))[0]
                if channel.role in roles and name not in message.delivered and tried < TRIES:
                    owed.append((key, message, name))
        return owed


def _roles(report: Report, message: Message) -> tuple[str, ...]:
    """The first message goes to who is on call; each escalation reaches one rung higher; the all-clear whoever got one."""
    escalations = [m.at for m in report.messages if m.kind == "Escalation"]
    reached = sum(at <= message.at for at in escalations) if message.kind != "AllClear" else len(escalations)
    return _LADDER[: 1 + min(reached, len(_LADDER) - 1)]


def _facts(report: Report, namespace: str) -> dict[str, str]:
    return {
        "incident": name_for(report),
        "namespace": namespace,
        "policy": report.policy,
        "severity": str(report.severity),
        "scope": str(report.scope),
        "reason": report.reason,
        "phase": str(report.phase),
    }
