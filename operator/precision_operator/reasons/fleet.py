"""Which workloads a policy has, and its own life."""

from precision_operator.reasons.row import ATTENTION, DECISION, NORMAL, WAITING

_RELEASE = "end what it holds, so that new pods start as their templates have them: `!release {name}`"

NO_WORKLOADS = (
    ATTENTION,
    "no workload's pod template carries the labels of spec.selector",
    "compare, here with those of Deployments: `!kubectl get deployments "
    "-o custom-columns=NAME:.metadata.name,LABELS:.spec.template.metadata.labels`; of bare pods: "
    "`!kubectl get pods --show-labels`",
)
UNDELIVERABLE = (
    ATTENTION,
    "these workloads can be moved in no way that spec.delivery allows",
    "declare the contract in their pod template, by hand or by one label (docs/onboarding.md), or name "
    "ENABLE_FP16_TRAINING there, or choose another delivery",
    "what cannot be restarted changes precision only by the contract, or as new pods (spec.delivery: NewOnly)",
    "where it has the label precision.genesis.ai/inject already, make pods anew that are older than the policy that obeys "
    "it: `!kubectl get mutatingadmissionpolicy precision-inject.precision.genesis.ai`",
)
POLICY_CONFLICT = (
    ATTENTION,
    "a workload of two policies belongs to the one that holds it, else to the older one",
    "make the selectors disjoint: `!get`",
)
FLEET_TOO_LARGE = (
    ATTENTION,
    "the record of so many workloads would not fit into one PrecisionAssignment: nothing is moved",
    "divide the fleet among several policies with disjoint selectors",
)
SELECTOR_PENDING = (
    ATTENTION,
    "spec.selector was edited; the one before stays in force while a rollback holds workloads under it",
    "retry what is held: `!retry {name}`",
    "or put the old selector back",
)
STATE_LOST = (
    ATTENTION,
    "the PrecisionAssignment was deleted: which workload was in which mode is not known any more, so that all of them "
    "went to the fallback",
    "find out who deleted it: `!history {name}`, the API server's audit log",
    "see what must be acknowledged before a retry: `!ack {name}`",
    "then start again: `!retry {name}`",
)
POLICY_DELETED = (
    DECISION,
    "the policy was deleted; what a rollback put into the fallback stays there, and no other pod is changed",
    "apply the policy again to go on from here",
    _RELEASE,
)
POLICY_RECREATED = (WAITING, "a new policy of this name goes on from what the one before it left behind")
ACCEPTED = (NORMAL, "the policy can be carried out")
WRITES_ACCEPTED = (NORMAL, "the API server takes every write of the operator")
KINDS_SUPPORTED = (NORMAL, "every selected pod belongs to a workload of a supported kind")
NOTHING_PENDING = (NORMAL, "no change of a template waits for a restart")
NOTHING_LOST = (NORMAL, "every replacement found a place")
NOTHING_REFUSED = (NORMAL, "the contract was written into every pod that asks for it")
NOTHING_TO_TELL = (NORMAL, "there is no alert")
POLICY_GONE = (
    ATTENTION,
    "the policy was deleted before it was judged",
    "apply the policy again, if it was deleted by mistake",
)
