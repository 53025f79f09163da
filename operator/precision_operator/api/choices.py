"""The words that a PrecisionPolicy chooses from."""

from enum import StrEnum

from precision_operator.api.fields import Via


class Severity(StrEnum):
    """How fast a breach must be answered; how, says ``rollback.strategies``."""

    P0 = "P0"
    P1 = "P1"
    P2 = "P2"
    P3 = "P3"
    """Reported, and nothing is promoted meanwhile; never rolled back for."""


class Delivery(StrEnum):
    """How a workload is moved."""

    AUTO = "Auto"
    HOT = "Hot"
    RESTART = "Restart"
    NEW_ONLY = "NewOnly"


class Unit(StrEnum):
    """What the weight of a step counts."""

    WORKLOAD = "Workload"
    POD = "Pod"
    """Pods of independent replicas; a process group is one."""


class PolicyEnforcement(StrEnum):
    """What comes of a decision."""

    ENFORCE = "Enforce"
    OBSERVE = "Observe"
    """It is reported, and nothing is changed."""


class Strategy(StrEnum):
    """How a breach is answered."""

    EMERGENCY = "Emergency"
    """Everything at once: hot flips, restarts where those do not answer."""
    GRADUAL = "Gradual"
    """In batches, each acknowledged before the next; after in-flight work; expedited where the deadline would be missed."""
    CANARY = "Canary"
    """A share first, compared with the rest by a sequential test; the rest in batches only where that has helped."""
    HOLD = "Hold"
    """Nothing is promoted, and nothing rolled back."""


class Fallback(StrEnum):
    """What an unanswered metric leads to, past its limit."""

    HOLD = "Hold"
    ROLLBACK = "Rollback"


class DeletionPolicy(StrEnum):
    """What stays after a policy is deleted."""

    HOLD = "Hold"
    """What a rollback put into the fallback."""
    RELEASE = "Release"
    """Nothing."""


AS_DELETION_POLICY = Via(
    DeletionPolicy,
    read=lambda found: found is DeletionPolicy.HOLD,
    write=lambda hold: DeletionPolicy.HOLD if hold else DeletionPolicy.RELEASE,
)
"""Whether something stays, on the wire as a word."""


class OnPendingRevision(StrEnum):
    """What becomes of a workload whose template was changed and whose pods were not, when it has to be restarted."""

    WAIT = "Wait"
    RESTART = "Restart"
    """An emergency restarts it, and its pods come from the changed template."""


class OnMemoryShortage(StrEnum):
    """What becomes of a workload that could change at a step boundary, where its devices lack memory for FP32."""

    RESTART = "Restart"
    BF16 = "BF16"
    """What trains in FP16 goes to BF16 at a step boundary and is held there."""
