"""A PrecisionPolicy as one frozen value."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from precision_operator.api.commands import commands_of
from precision_operator.api.spec import PolicyEnforcement, PolicySpec, parse_spec
from precision_operator.api.state import State
from precision_operator.api.wire import integer, mapping, text

_FINISHING = (
    "selector",
    "target",
    "fallback",
    "delivery",
    "deletionPolicy",
    "prometheusRef",
    "evaluation",
    "rollback",
)
"""What of a spec is needed to finish a rollback after its policy is gone."""


@dataclass(frozen=True, slots=True, order=True)
class PolicyKey:
    """Which policy: what the work queue and every cache of policies are keyed by."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Policy:
    """Metadata that matters, and the spec."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: PolicySpec
    annotations: Mapping[str, str] = field(default_factory=dict)
    """The commands only, bounded and without credentials."""
    settings: str = ""
    """What of the spec is copied into the assignment, as JSON."""
    deleted: bool = False
    """It is gone: what its assignment holds is finished, and nothing is promoted."""


def parse_policy(body: Mapping[str, object]) -> Policy:
    """Read the whole object."""
    meta = mapping(body.get("metadata"))
    spec = mapping(body.get("spec"))
    kept = {key: spec[key] for key in _FINISHING if key in spec}
    return Policy(
        namespace=text(meta.get("namespace")),
        name=text(meta.get("name")),
        uid=text(meta.get("uid")),
        generation=integer(meta.get("generation"), 0),
        spec=parse_spec(spec),
        annotations=commands_of(mapping(meta.get("annotations"))),
        settings=json.dumps(kept, sort_keys=True, separators=(",", ":")),
    )


@dataclass(frozen=True, slots=True)
class Revision:
    """What of a policy a decision is taken on, slim. Labels, other annotations and the status are no part of it."""

    uid: str
    generation: int
    commands: frozenset[tuple[str, str]]
    stops: bool
    """It is suspended, or only observed: nothing is written for it, not even in an emergency."""


def revision_of(body: Mapping[str, object]) -> Revision:
    """Read from the whole object."""
    meta, spec = mapping(body.get("metadata")), mapping(body.get("spec"))
    return Revision(
        uid=text(meta.get("uid")),
        generation=integer(meta.get("generation"), 0),
        commands=frozenset(commands_of(mapping(meta.get("annotations"))).items()),
        stops=spec.get("suspend") is True or spec.get("enforcement") == PolicyEnforcement.OBSERVE,
    )


def deleted_policy(namespace: str, name: str, state: State) -> Policy:
    """What is known of a policy that is gone, from what its assignment kept."""
    kept = json.loads(state.settings) if state.settings else {}
    spec = parse_spec(kept)
    return Policy(
        namespace, name, state.policy_uid, state.observed_generation, spec, settings=state.settings, deleted=True
    )
