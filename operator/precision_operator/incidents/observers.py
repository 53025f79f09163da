"""The observers of the passes, made together with what they share."""

from collections.abc import Callable, Mapping

from precision_operator.api.policy import PolicyKey
from precision_operator.incidents.announcer import Announcer
from precision_operator.incidents.collector import EvidenceCollector
from precision_operator.incidents.evidence import evidence_bytes
from precision_operator.incidents.investigator import Investigator
from precision_operator.incidents.notifier import Notifier
from precision_operator.incidents.reporter import Reporter
from precision_operator.incidents.store import IncidentStore
from precision_operator.incidents.templates import chosen
from precision_operator.incidents.wording import Wording
from precision_operator.kube.events import EventRecorder
from precision_operator.kube.port import KubeApi
from precision_operator.observability.metrics import Metrics
from precision_operator.runtime.clock import Clock
from precision_operator.settings import Settings
from precision_operator.signals.endpoint import Circuit
from precision_operator.signals.port import MetricArchive


class Observers:
    """Reporter, investigator and announcer: one store, one collector of evidence, one notifier."""

    def __init__(
        self,
        api: KubeApi,
        *,
        settings: Settings,
        sources: Mapping[str, MetricArchive],
        circuits: Callable[[], Mapping[str, Circuit]],
        events: EventRecorder,
        metrics: Metrics,
        clock: Clock,
        leading: Callable[[], bool],
        changed: Callable[[PolicyKey], None],
    ) -> None:
        """Make them.

        Args:
            api: where incidents are kept.
            settings: the admin's.
            sources: by the name of their endpoint.
            circuits: an open one is not asked.
            events: records what an investigation found.
            metrics: counts what failed.
            clock: what is waited by.
            leading: whether this replica leads.
            changed: called when a policy's next pass has something to remember.
        """
        wording = Wording(settings.incidents, chosen(settings.message_templates, metrics.report_error))
        notifier = Notifier(settings.notifications, metrics=metrics, clock=clock, wording=wording)
        store = IncidentStore(api, settings=settings.incidents, clock=clock)
        collector = EvidenceCollector(
            sources,
            settings.queries,
            clock=clock,
            failed=metrics.report_error,
            most_bytes=evidence_bytes(settings.incidents.recording_bytes),
            circuits=circuits,
        )
        self.announcer = Announcer(
            notifier, wording=wording, metrics=metrics, clock=clock, leading=leading, changed=changed
        )
        self.investigator = Investigator(collector, store, events=events, failed=metrics.report_error)
        self.reporter = Reporter(
            api,
            store=store,
            collector=collector,
            settings=settings.incidents,
            notifier=notifier,
            wording=wording,
            metrics=metrics,
            clock=clock,
            leading=leading,
            namespaces=settings.watch_namespaces,
        )

    @property
    def all(self) -> tuple[Reporter, Investigator, Announcer]:
        """In the order in which they see a pass."""
        return self.reporter, self.investigator, self.announcer
