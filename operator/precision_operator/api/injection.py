"""Why admission did not write the contract into a pod that asks for it by its label."""

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

    @property
    def reason(self) -> Reason:
        """With its meaning and what to do."""
        return Reason[self.name]


def parse_refusal(record: object) -> Refusal | None:
    """The refusal in the annotation ``injected``; None where the contract was injected, or nothing known is said."""
    if not isinstance(record, str) or not record.startswith(REFUSED):
        return None
    reason = record.removeprefix(REFUSED)
    return Refusal(reason) if reason in tuple(Refusal) else None
