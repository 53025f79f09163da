"""What the rows share: severities, and steps that several of them name."""

from enum import StrEnum
from typing import Self


class ReasonSeverity(StrEnum):
    """What a reason asks of a person."""

    asks: str

    def __new__(cls, word: str, asks: str) -> Self:
        member = str.__new__(cls, word)
        member._value_ = word
        member.asks = asks
        return member

    STUCK = ("Stuck", "What is waited for does not come nearer by itself. Its Event is a Warning.")
    ATTENTION = ("Attention", "A person should look. Its Event is a Warning.")
    DECISION = ("Decision", "A person decides when it goes on; nothing is wrong.")
    WAITING = ("Waiting", "Nothing to do: it goes on by itself.")
    NORMAL = ("Normal", "Nothing to do.")


STUCK, ATTENTION, DECISION, WAITING, NORMAL = ReasonSeverity


LOOK_AT_PODS = "look at the pods named above: `!kubectl describe pods {of}`, `!kubectl logs {of} --tail=50`"
CHECK_SCRAPE = (
    "check that Prometheus scrapes the trainers' port 9400 and attaches the labels namespace and pod (docs/contract.md)"
)
AFTER_BREACH = (
    "find the cause: `!history {name}`, `!get {name}`, `!incident list {name}`, the trainers' logs and dashboards",
    "see what must be acknowledged before a retry: `!ack {name}`",
    "then start again: `!retry {name}`",
)
OPERATOR_PODS = "!kubectl get pods --all-namespaces -l app.kubernetes.io/part-of=genesis-precision"
READ_LOG = f"read the operator's log, in its namespace: `{OPERATOR_PODS}` shows its pods"
