"""What each phase means."""

from collections.abc import Mapping

from precision_operator.api.state import Phase

PHASES: Mapping[Phase, str] = {
    Phase.PENDING: "nothing has been moved yet",
    Phase.PROGRESSING: "a step is being carried out or judged",
    Phase.PAUSED: "the evidence of the step is good; a person must approve the next one",
    Phase.HEALTHY: "every step is done; the fleet is watched",
    Phase.DEGRADED: "some workloads were rolled back by themselves; the rest is watched",
    Phase.ROLLING_BACK: "all of the fleet is on its way to the fallback; new pods start in it",
    Phase.HELD: "the fleet was rolled back and stays so until a person retries; new pods start in the fallback",
}

BY_CANARY = "a few breached workloads are in the fallback; the rest follows only if that helps"
"""Of RollingBack, as long as it has come no further than its canary."""

LEFT_BEHIND = "its policy was deleted; what a rollback put into the fallback stays there, new pods included"
"""Of Held, after the policy's deletion."""
