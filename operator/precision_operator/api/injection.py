"""Why admission did not write the contract into a pod that asks for it by its label: reasons, and what to do."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from precision_operator.reasons import Reason

REFUSED = "refused: "
"""Begins the record of a refusal; no container's name contains a colon."""


class Refusal(StrEnum):
    """Why nothing at all was injected. The first that holds counts, in this order."""

    CONTAINER_ABSENT = Reason.CONTAINER_ABSENT
    STATIC_POD = Reason.STATIC_POD
    WINDOWS = Reason.WINDOWS
    HOST_NETWORK = Reason.HOST_NETWORK
    TOO_LARGE = Reason.TOO_LARGE
    REQUEST_FILE_ELSEWHERE = Reason.REQUEST_FILE_ELSEWHERE
    MOUNT_PATH_TAKEN = Reason.MOUNT_PATH_TAKEN
    VOLUME_NAME_TAKEN = Reason.VOLUME_NAME_TAKEN
    PORT_TAKEN = Reason.PORT_TAKEN
    PORT_NAME_TAKEN = Reason.PORT_NAME_TAKEN


@dataclass(frozen=True, slots=True)
class Remedy:
    """A refusal, for a person."""

    meaning: str
    step: str


_BY_HAND = "declare the contract by hand and take the label off (docs/onboarding.md)"

REMEDIES: Mapping[Refusal, Remedy] = {
    Refusal.CONTAINER_ABSENT: Remedy(
        "spec.containers has none of the name that the label precision.genesis.ai/inject says; init containers do not count",
        "set the label in the pod template to the name of the trainer's container",
    ),
    Refusal.STATIC_POD: Remedy(
        "the pod is the mirror of a static pod, which runs as its node's file says",
        "declare the contract by hand in the node's file, or run the trainer from a Deployment",
    ),
    Refusal.WINDOWS: Remedy("spec.os.name is windows, and the trainer runs on Linux", "take the label off"),
    Refusal.HOST_NETWORK: Remedy(
        "with spec.hostNetwork the metrics port would be taken on the node, and two trainers cannot share one",
        f"take spec.hostNetwork away, or {_BY_HAND}",
    ),
    Refusal.TOO_LARGE: Remedy(
        "the pod has more than 100 containers, or more than 1,000 env entries, ports, mounts and volumes together",
        _BY_HAND,
    ),
    Refusal.REQUEST_FILE_ELSEWHERE: Remedy(
        "PRECISION_REQUEST_FILE of the container is not /etc/precision/request", f"remove the variable, or {_BY_HAND}"
    ),
    Refusal.MOUNT_PATH_TAKEN: Remedy(
        "the container mounts another volume or a device at, above or below /etc/precision",
        f"mount it elsewhere, or {_BY_HAND} with another path in PRECISION_REQUEST_FILE",
    ),
    Refusal.VOLUME_NAME_TAKEN: Remedy(
        "the pod has another volume with the name precision",
        f"rename that volume, or {_BY_HAND} with another volume name",
    ),
    Refusal.PORT_TAKEN: Remedy(
        "another container of the pod has TCP port 9400",
        f"give that container another port, or {_BY_HAND} with another --metrics-port",
    ),
    Refusal.PORT_NAME_TAKEN: Remedy(
        "another port of the pod has the name metrics", f"rename that port, or {_BY_HAND} with another port name"
    ),
}


def parse_refusal(record: object) -> Refusal | None:
    """The refusal in the annotation ``injected``; None where the contract was injected, or nothing known is said."""
    if not isinstance(record, str) or not record.startswith(REFUSED):
        return None
    reason = record.removeprefix(REFUSED)
    return Refusal(reason) if reason in tuple(Refusal) else None
