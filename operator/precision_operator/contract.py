"""The names on which operator and workloads meet (docs/contract.md)."""

PREFIX = "precision.genesis.ai"

REQUEST = f"{PREFIX}/request"
ENABLE = f"{PREFIX}/enable-fp16"
MODE = f"{PREFIX}/mode"

GENERATION = f"{PREFIX}/generation"
ORIGINAL = f"{PREFIX}/original"
LATCH = f"{PREFIX}/latch"
SETTLE = f"{PREFIX}/settle"

PROMOTE = f"{PREFIX}/promote"
RETRY = f"{PREFIX}/retry"
ABORT = f"{PREFIX}/abort"

FINALIZER = f"{PREFIX}/restore"

ENABLE_ENV = "ENABLE_FP16_TRAINING"
MODE_ENV = "PRECISION_MODE"
