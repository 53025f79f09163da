"""Policies and assignments as the inventory keeps them: slim, without bodies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from precision_operator.api.assignment import rolled_back_in
from precision_operator.api.policy import Revision, revision_of
from precision_operator.api.selector import Selector, parse_selector
from precision_operator.api.wire import mapping, text
from precision_operator.workloads.records import WorkloadRecord


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """A policy, as the watch last reported it."""

    uid: str
    created: str
    selector: Selector
    revision: Revision = field(compare=False)
    version: str = field(default="", compare=False)
    """Its resourceVersion."""

    @classmethod
    def read(cls, body: Mapping[str, object]) -> Self:
        """Of its body."""
        metadata = mapping(body.get("metadata"))
        return cls(
            text(metadata.get("uid")),
            text(metadata.get("creationTimestamp")),
            parse_selector(mapping(body.get("spec")).get("selector")),
            revision_of(body),
            text(metadata.get("resourceVersion")),
        )


@dataclass(frozen=True, slots=True)
class AssignmentRecord:
    """An assignment, as the watch last reported it. It may outlive its policy."""

    uid: str
    selector: Selector
    listed: frozenset[str] | None
    """The keys of the workloads that it is about; None: all that its selector matches."""
    contested: frozenset[str] = field(compare=False)
    """The keys of the workloads that it leaves to another policy."""
    rolled_back: frozenset[str] | None = field(compare=False)
    """The keys of the workloads that a rollback holds; None: all that it is about."""
    version: str = field(default="", compare=False)
    """Its resourceVersion."""

    @classmethod
    def read(cls, body: Mapping[str, object]) -> Self:
        """Of its body."""
        metadata, modes = mapping(body.get("metadata")), mapping(body.get("modes"))
        return cls(
            text(metadata.get("uid")),
            parse_selector(body.get("selector")),
            listed=None if text(body.get("default")) else frozenset(modes),
            contested=frozenset(key for key, mode in modes.items() if mode == ""),
            rolled_back=rolled_back_in(body),
            version=text(metadata.get("resourceVersion")),
        )

    def governs(self, workload: WorkloadRecord) -> bool:
        """Whether it is about this workload, and does not leave it to another policy."""
        key = workload.view.key
        listed = self.listed is None or key in self.listed
        return listed and key not in self.contested and self.selector.matches(workload.template_labels)

    def holds(self, workload: WorkloadRecord) -> bool:
        """Whether a rollback under it holds this workload."""
        held = self.rolled_back is None or workload.view.key in self.rolled_back
        return held and self.governs(workload)
