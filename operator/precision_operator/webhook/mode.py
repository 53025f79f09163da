"""Who gives new pods their mode: chosen once, when the operator starts."""

import logging
from enum import StrEnum

from precision_operator.errors import KubeError
from precision_operator.kube.port import MUTATING_POLICIES, MUTATING_POLICIES_BETA, Discovery
from precision_operator.runtime.clock import Clock

_LOG = logging.getLogger(__name__)


class AdmissionMode(StrEnum):
    """Who changes new pods."""

    POLICY = "Policy"
    """The API server itself, by MutatingAdmissionPolicies."""
    WEBHOOK = "Webhook"
    """Each replica of the operator, by a mutating webhook."""


RETRY_SECONDS = 1.0
"""How soon an API server that gives no answer is asked again."""


async def chosen_mode(api: Discovery, clock: Clock, setting: str) -> AdmissionMode:
    """The mode of ``admission.mode``; ``Auto`` means Policy where the API server serves it in any version.

    Nothing can be done before an answer: it is waited for.
    """
    if setting != "Auto":
        return AdmissionMode(setting)
    while True:
        try:
            for resource in (MUTATING_POLICIES, MUTATING_POLICIES_BETA):
                if await api.serves(resource):
                    return AdmissionMode.POLICY
            return AdmissionMode.WEBHOOK
        except KubeError as error:
            _LOG.warning("the API server does not say what it serves: %s", error, extra={"reason": error.reason})
            await clock.sleep(RETRY_SECONDS)
