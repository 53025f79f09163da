"""A PrecisionPolicy as one frozen value."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from precision_operator.api.spec import PolicySpec, parse_spec
from precision_operator.api.status import Status, parse_status
from precision_operator.api.wire import integer, mapping, parse_time, text, texts


@dataclass(frozen=True, slots=True)
class Policy:
    """Metadata that matters, and the spec."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    spec: PolicySpec
    annotations: Mapping[str, str] = field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    deleted_at: float | None = None
    """When its deletion was asked for; None: it lives."""


def parse_policy(body: Mapping[str, object]) -> tuple[Policy, Status]:
    """Read the whole object."""
    meta = mapping(body.get("metadata"))
    policy = Policy(
        namespace=text(meta.get("namespace")),
        name=text(meta.get("name")),
        uid=text(meta.get("uid")),
        generation=integer(meta.get("generation"), 0),
        resource_version=text(meta.get("resourceVersion")),
        spec=parse_spec(body.get("spec")),
        annotations={k: v for k, v in mapping(meta.get("annotations")).items() if isinstance(v, str)},
        finalizers=texts(meta.get("finalizers")),
        deleted_at=parse_time(meta.get("deletionTimestamp")),
    )
    return policy, parse_status(body.get("status"))
