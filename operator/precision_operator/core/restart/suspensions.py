"""Jobs that are suspended until no pod is left, and resumed: each step is recorded before it is done."""

from dataclasses import dataclass, field

from precision_operator.api.state import Suspension
from precision_operator.core.actions import ResumeJob, SuspendJob
from precision_operator.core.model import WorkloadView

REPEATED_SECONDS = 30.0
"""A suspension that is still asked for is recorded anew after so long."""

ABANDONED_SECONDS = 60.0 + REPEATED_SECONDS
"""A suspension that was not recorded anew and not carried out for so long will not be: no write is on its way."""


@dataclass(slots=True)
class Suspensions:
    """Those of one pass."""

    generation: int
    """What the writes carry."""
    now: float
    records: dict[str, Suspension] = field(default_factory=dict)
    """By workload, after the writes of this pass."""
    resumptions: list[ResumeJob] = field(default_factory=list)

    def begin(self, job: WorkloadView, *, respects_budgets: bool, since: float | None = None) -> SuspendJob:
        """Record it and do it: whoever leads next finds the record. ``since``: when it was recorded before."""
        began = since if since is not None and 0 <= self.now - since < REPEATED_SECONDS else self.now
        self.records[job.key] = Suspension(job.uid, job.object_generation, began)
        return SuspendJob(job, self.generation, job.object_generation, respects_budgets=respects_budgets)

    def go_on(self, key: str, record: Suspension, job: WorkloadView, *, again: bool) -> bool:
        """The next step of a suspension that we recorded: none is left half done, and none of others is undone.

        A write carries the generation of the Job for which its step was recorded, so that one that arrives late does
        nothing. While a suspension may still arrive its record stands. Out of its turn nothing is sent: the record lapses,
        and it gets another turn after the others.

        Args:
            again: it is wanted still, and it is its turn.

        Returns:
            whether it has to be begun once more.
        """
        generation, moved = job.object_generation, job.object_generation > record.generation
        if job.suspended:
            # Not a suspension before this one, which a cache that lags may show. Of the same generation a person wrote it.
            begins = moved or (generation == record.generation and not record.resuming)
            if begins and job.emptied and not job.pods:
                record = Suspension(record.uid, generation, self.now, resuming=True)
            self.records[key] = record
            if record.resuming:
                self.resumptions.append(ResumeJob(job, self.generation, record.generation))
        elif record.resuming:
            if not moved:  # not seen yet
                self.records[key] = record
        elif again:
            return True
        elif not moved and 0 <= self.now - record.since < ABANDONED_SECONDS:
            self.records[key] = record
        return False
