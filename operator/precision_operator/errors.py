"""The errors of the operator, as a tree; each class has one stable reason.

::

    OperatorError
    ├── ConfigurationError      the admin's settings cannot be used
    ├── KubeError               an answer of the API server that is not success
    │   ├── NotFound            404
    │   ├── Conflict            409: somebody wrote first; gather again
    │   │   ├── LeaseLost       another replica may lead by now; nothing more is written
    │   │   └── Halted          a person halted everything; nothing more is written
    │   ├── PreconditionFailed  422 on a JSON patch `test`: the object is not what was decided on
    │   ├── TooManyRequests     429; carries retry_after_seconds
    │   ├── DisruptionBudget    429 on an eviction: a PodDisruptionBudget keeps the pod; others may go
    │   ├── AnswerTooLarge      longer than was asked for at most: nothing of it was read
    │   ├── Forbidden           403: a verb is missing from the ServiceAccount's role
    │   └── Unavailable         5xx, time-outs, broken connections
    ├── HistoryRewound          etcd was restored from a backup: the process must begin anew
    ├── NotConfirmed            admission has not echoed what was committed: nothing may depend on it yet
    ├── NewerVersion            the state was written by a newer operator
    ├── Unfenced                the API server would let the operator do what it must not
    └── SignalError             a metric query gave no answer that can be believed
        ├── QueryInvalid        Prometheus says the query does not parse
        └── SourceUnavailable   no answer in time, or one that is not Prometheus'
            └── EndpointNotAnswering  it failed several times in a row and is asked less often

A reason is the CamelCase word used alike in conditions, events, metrics and logs. The text of an error may quote what a
server or a tenant wrote, and stands in conditions, Events and logs: credentials in it are masked here, once.
"""

from precision_operator.api.redaction import redact
from precision_operator.reasons import Reason


class OperatorError(Exception):
    """Base of all errors raised on purpose by the operator."""

    reason: Reason = Reason.OPERATOR_ERROR

    def __init__(self, message: str = "") -> None:
        super().__init__(redact(message))


class ConfigurationError(OperatorError):
    """The admin's settings cannot be used; the message names the field, what was found and what is expected."""

    reason = Reason.CONFIGURATION_INVALID


class KubeError(OperatorError):
    """An API call failed."""

    reason = Reason.KUBERNETES_API_ERROR

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class NotFound(KubeError):
    """The object does not exist (any more)."""

    reason = Reason.NOT_FOUND


class Conflict(KubeError):
    """The object changed since it was read."""

    reason = Reason.CONFLICT


class LeaseLost(Conflict):
    """The Lease that a decision was taken under is not held any more."""

    reason = Reason.LEASE_LOST


class Halted(Conflict):
    """Somebody halted everything while a decision was carried out."""

    reason = Reason.HALTED


class HistoryRewound(OperatorError):
    """etcd was restored from a backup: what was watched so far is void, and what comes next would not be told.

    A watch goes on after the last revision that it saw. Until the restored cluster has come as far again, it is silent.
    The process ends, and begins anew with a list of everything, as Kubernetes asks of every component after a restore.
    """

    reason = Reason.HISTORY_REWOUND


class PreconditionFailed(KubeError):
    """A JSON patch ``test`` did not hold: the object is not the one that was decided on."""

    reason = Reason.PRECONDITION_FAILED


class TooManyRequests(KubeError):
    """The API server asks us to slow down."""

    reason = Reason.TOO_MANY_REQUESTS

    def __init__(self, message: str, *, status: int = 429, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message, status=status)
        self.retry_after_seconds = retry_after_seconds


class DisruptionBudget(KubeError):
    """A PodDisruptionBudget keeps pods where they are; says nothing about how busy the API server is."""

    reason = Reason.DISRUPTION_BUDGET

    def __init__(self, message: str, *, status: int = 429, budget: str = "") -> None:
        """``budget``: which one, and what it lacks, for a person."""
        super().__init__(message, status=status)
        self.budget = budget


class AnswerTooLarge(KubeError):
    """An answer is longer than was asked for at most; nothing of it was read."""


class Forbidden(KubeError):
    """The ServiceAccount lacks a verb."""

    reason = Reason.FORBIDDEN


class Unavailable(KubeError):
    """The API server is away, slow or broken; the outcome of a write is not known."""

    reason = Reason.UNAVAILABLE


class NotConfirmed(OperatorError):
    """Admission has not echoed the committed generation."""

    reason = Reason.ADMISSION_NOT_CONFIRMED


class Unfenced(OperatorError):
    """Nothing holds the operator to the writes that it needs: it writes none."""

    reason = Reason.UNFENCED


class NewerVersion(OperatorError):
    """A newer operator wrote the state: this one writes nothing."""

    reason = Reason.NEWER_VERSION


class SignalError(OperatorError):
    """A metric query gave no answer that can be believed."""

    reason = Reason.SIGNAL_ERROR


class QueryInvalid(SignalError):
    """The query does not parse, or its name is not in the catalogue."""

    reason = Reason.QUERY_INVALID


class SourceUnavailable(SignalError):
    """The metric source did not answer in time, or not with a result."""

    reason = Reason.METRICS_UNAVAILABLE


class EndpointNotAnswering(SourceUnavailable):
    """The endpoint's circuit is open: it failed several times in a row."""

    reason = Reason.ENDPOINT_NOT_ANSWERING
