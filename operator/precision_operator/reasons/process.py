"""The operator itself: its files, its lease, its connections, its faults."""

from precision_operator.reasons.row import ATTENTION, DECISION, NORMAL, OPERATOR_PODS, READ_LOG, WAITING

OPERATOR_ERROR = (ATTENTION, "the operator cannot go on with this", READ_LOG)
CONFIGURATION_INVALID = (
    ATTENTION,
    "the operator's settings cannot be used",
    "correct the field that the message names (config of the chart), and roll the operator out again",
)
KUBERNETES_API_ERROR = (ATTENTION, "the API server refused a request", READ_LOG)
NOT_FOUND = (WAITING, "the object does not exist any more")
CONFLICT = (WAITING, "another writer was first: the operator reads again")
LEASE_LOST = (WAITING, "another replica may lead: this one writes nothing more")
HISTORY_REWOUND = (WAITING, "etcd was restored: the operator starts again and reads everything")
PRECONDITION_FAILED = (WAITING, "the object is not the one that was decided on: the operator reads again")
TOO_MANY_REQUESTS = (WAITING, "the API server asks the operator to slow down")
UNAVAILABLE = (WAITING, "the API server is away, slow or broken")
NEWER_VERSION = (
    ATTENTION,
    "a newer operator wrote the state: this one writes nothing",
    f"end the older operator, or finish the upgrade: `{OPERATOR_PODS} -L app.kubernetes.io/version`",
)
INTERNAL_ERROR = (
    ATTENTION,
    "the operator has a defect: its log holds the trace",
    READ_LOG,
    "report it with that trace",
)
RECORDING_INVALID = (
    ATTENTION,
    "a recording of evidence cannot be read",
    "look at the PrecisionIncident: another program may have written it, or a newer operator",
)
FIGURES_MISSING = (DECISION, "matplotlib is not installed, so no figures are drawn")
NOT_DELIVERED = (
    ATTENTION,
    "a channel did not take a message",
    "check the channel's address and secret in the operator's configuration (docs/notifications.md)",
)
TEMPLATE_INVALID = (
    ATTENTION,
    "a template of a message cannot be used, and the built-in one is sent",
    "correct config.messageTemplates as the operator's log says (docs/notifications.md), and roll the operator out again",
)
WATCH_LOST = (WAITING, "a watch ended unasked: the operator starts again and reads everything")
LEASE_ACQUIRED = (NORMAL, "this replica leads now, and begins to act")
LEADING = (NORMAL, "this replica holds the Lease")
NOT_LEADING = (WAITING, "this replica does not hold the Lease any more")
LEASE_NOT_RELEASED = (WAITING, "the Lease could not be given back: it expires by itself")
RECEIVER_OFF = (NORMAL, "no alerts are received, because receiver.tokenFile is not set")
RECEIVER_MISCONFIGURED = (
    ATTENTION,
    "alerts may be refused",
    "correct receiver in the operator's configuration (docs/alertmanager.md)",
)
ACCEPT_FAILED = (
    ATTENTION,
    "the receiver cannot accept connections",
    "raise the limit of open files of the operator's pod",
)
ALERT_FAILED = (ATTENTION, "an alert could not be taken: the operator's log holds the trace", READ_LOG)
