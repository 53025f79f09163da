"""The names on which operator and workloads meet (docs/contract.md)."""

PREFIX = "precision.genesis.ai"

REQUEST = f"{PREFIX}/request"
ENABLE = f"{PREFIX}/enable-fp16"
MODE = f"{PREFIX}/mode"

LOSS_SCALE_FACTOR = "lossScaleFactor"
"""Key of a request: the loss scale is multiplied by this once; [2^-16, 2^16]."""
CHECKPOINT = "checkpoint"
"""Key of a request: save a checkpoint at the step boundary at which the request is applied."""
GROWTH_INTERVAL = "growthInterval"
"""Key of a request: good steps until the loss scale grows, from then on; [1, 10^9]."""

ADMITTED = f"{PREFIX}/admitted"
"""What admission gave a pod at its creation: ``<assignment>/<generation>/<mode>``, several separated by a space."""

ECHO = f"{PREFIX}/echo"
ECHO_NONCE = f"{PREFIX}/echo-nonce"
"""On a policy, in a dry run only: what is asked of admission, and what it answers."""

PROMOTE = f"{PREFIX}/promote"
RETRY = f"{PREFIX}/retry"
ROLLBACK = f"{PREFIX}/rollback"
ABORT = f"{PREFIX}/abort"

ACK = f"{PREFIX}/ack-"
"""Followed by an item, e.g. ``rootCause``."""
STAMP = "-by"
"""Follows a command's name: who gave it, written by the API server (manifests/admission/commands.yaml)."""
SUSPEND_BY = f"{PREFIX}/suspend-by"

MAX_GENERATION = 2**49
"""Half of what a trainer can carry. What stands above was counted by nobody: it is not believed, and overwritten."""

ENABLE_ENV = "ENABLE_FP16_TRAINING"
MODE_ENV = "PRECISION_MODE"
