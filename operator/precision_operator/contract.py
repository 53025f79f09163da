"""The names on which operator and workloads meet (docs/contract.md)."""

PREFIX = "precision.genesis.ai"

REQUEST = f"{PREFIX}/request"
ENABLE = f"{PREFIX}/enable-fp16"
MODE = f"{PREFIX}/mode"
ADMITTED = f"{PREFIX}/admitted"
"""Which assignments a new pod was admitted under: ``name/generation/mode``, separated by one space."""

WORKLOAD = f"{PREFIX}/workload"
"""Pod label that names the workload where no controller's own label does."""

INJECT = f"{PREFIX}/inject"
"""Pod label that names the container into which admission writes the contract."""
INJECTED = f"{PREFIX}/injected"
"""What admission made of that label: the container's name, or ``refused: `` and why (:mod:`api.injection`)."""

ECHO_NONCE = f"{PREFIX}/echo-nonce"
"""On a policy, in a dry run only: the question which generation admission knows."""
ECHO = f"{PREFIX}/echo"
"""Admission's answer: ``nonce/name/generation``."""

LOSS_SCALE_FACTOR = "lossScaleFactor"
"""Key of a request: the loss scale is multiplied by this once; [2^-16, 2^16]."""
CHECKPOINT = "checkpoint"
"""Key of a request: save a checkpoint at the step boundary at which the request is applied."""
REWIND = "rewind"
"""Key of a request: go back to the newest healthy checkpoint."""
GROWTH_INTERVAL = "growthInterval"
"""Key of a request: good steps until the loss scale grows, from then on; [1, 10^9]."""

NO_FAILURE_EXIT_CODES = (0, 75, 143)
"""How a trainer ends whose training has not failed: finished, a rank of another pod lost, stopped by SIGTERM."""

PROMOTE = f"{PREFIX}/promote"
RETRY = f"{PREFIX}/retry"
ROLLBACK = f"{PREFIX}/rollback"
ABORT = f"{PREFIX}/abort"
DRILL = f"{PREFIX}/drill"

ACK = f"{PREFIX}/ack-"
"""Followed by an item, e.g. ``rootCause``."""
STAMP = "-by"
"""Follows a command's name: who gave it, written by the API server (manifests/admission/commands.yaml)."""
SUSPEND_BY = f"{PREFIX}/suspend-by"

MAX_GENERATION = 2**49
"""Half of what a trainer can carry: no assignment goes above it."""
MAX_INDEXES = 10_000
"""A workload with an index above this is not moved by index: an assignment must fit, and a pass must end."""
MAX_POD_GENERATION = 2**48
"""What a pod carries above this, and above its assignment, was written by a stranger: it is not believed, and overwritten.
Half of the above, so that no pod can take the operator's own counting to its end."""

ENABLE_ENV = "ENABLE_FP16_TRAINING"
MODE_ENV = "PRECISION_MODE"
POD_UID_ENV = "PRECISION_POD_UID"
REQUEST_FILE_ENV = "PRECISION_REQUEST_FILE"

REQUEST_FILE = "/etc/precision/request"
"""Where the trainer reads its request, unless it is told otherwise."""
METRICS_PORT = 9400
METRICS_PORT_NAME = "metrics"
SCRAPE = "prometheus.io/scrape"
"""Pod annotation: scrape it."""
SCRAPE_PORT = "prometheus.io/port"

TRUE_SPELLINGS = frozenset({"true", "1", "yes", "on", "y", "t"})
"""What turns ENABLE_FP16_TRAINING on, in any case and with spaces around it. The trainer refuses anything else."""
