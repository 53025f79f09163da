"""The checks of a promotion: a chain of small pure checks, one file a concern.

The first that does not pass wins; its reason and message go straight into the ``Progressing`` condition, so that *what is it
waiting for* has one answer. (The shape is cert-manager's policy chain.)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from precision_operator.api.policy import Policy
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Criterion
from precision_operator.api.state import State
from precision_operator.api.steps import Stage
from precision_operator.core.evidence.assessment import Assessment
from precision_operator.core.model import Evaluation, WorkloadView
from precision_operator.core.progress import Progress
from precision_operator.reasons import Cause


@dataclass(frozen=True, slots=True)
class CheckInput:
    """What a check may look at."""

    policy: Policy
    state: State
    stage: Stage
    """The step that would be left."""
    evaluation: Evaluation | None
    progress: tuple[tuple[WorkloadView, Progress], ...]
    """Every member of the cohort and where it stands."""
    verdicts: tuple[Assessment, ...]
    """Every member that trains in the target precision, judged; and who was found in it outside of the cohort."""
    promotion: Mapping[Signal, Criterion]
    """What readings are held against."""
    evidence_since: float | None
    """Since when every reading of every member has been good enough to promote."""


PromotionCheck = Callable[[CheckInput], Cause | None]
"""Why the promotion waits; None: it passes."""
