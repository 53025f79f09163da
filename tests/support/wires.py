"""Strategies of hypothesis: any JSON, and states as an operator can have left them."""

from dataclasses import replace

from hypothesis import strategies as st

from precision_operator.api.canary import CanaryVerdict, Comparison
from precision_operator.api.conditions import Condition
from precision_operator.api.incident import Incident, Scope
from precision_operator.api.messages import Notified
from precision_operator.api.mitigation import Mitigation, MitigationResult, Rung
from precision_operator.api.modes import Mode
from precision_operator.api.selector import Requirement, Selector
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.state import Failing, HeldWorkload, Phase, Restart, State, Suspension
from precision_operator.api.verification import Checks
from precision_operator.contract import MAX_INDEXES

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)

moments = st.integers(0, 4_000_000_000_000).map(lambda millis: millis / 1000)
names = st.text("abcdefghijklmnopqrstuvwxyz0123456789-.", min_size=1, max_size=12)
workload_keys = st.builds(
    "{}/{}".format, st.sampled_from(["apps/Deployment", "batch/Job", "/Pod", "label", "jobset.x-k8s.io/JobSet"]), names
)
counts = st.integers(0, 10**6)
modes = st.sampled_from(Mode)

incidents = st.builds(
    Incident,
    id=names,
    severity=st.sampled_from(Severity),
    scope=st.sampled_from(Scope),
    reason=names,
    message=st.text(max_size=30),
    workloads=st.lists(names, max_size=3).map(tuple),
    detected_at=moments,
    decided_at=moments,
    deadline_at=moments,
    last_patch_at=st.none() | moments,
    last_ack_at=st.none() | moments,
    recovered_at=st.none() | moments,
    expedited_at=st.none() | moments,
    escalated=st.booleans(),
    predicted_seconds=st.none() | st.floats(0, 1e6),
    strategy=st.sampled_from(Strategy),
    checks=st.none() | st.builds(Checks, counts, counts, counts, counts),
)
comparisons = st.builds(
    Comparison,
    since=st.none() | moments,
    looked_at=st.none() | moments,
    looks=counts,
    total=st.floats(-1e6, 1e6),
    squares=st.floats(0, 1e6),
    better=st.floats(-1e3, 1e3),
    worse=st.floats(-1e3, 1e3),
    verdict=st.sampled_from(CanaryVerdict),
    ended_at=st.none() | moments,
)
breaches = st.builds(
    Failing,
    key=workload_keys | st.just(""),
    signal=st.sampled_from(Signal),
    severity=st.sampled_from(Severity),
    since=moments,
    count=counts,
    evaluated_at=moments,
    measured=names,
)
windows = st.builds(
    Mitigation,
    key=workload_keys,
    signal=st.sampled_from(Signal),
    since=moments,
    until=moments,
    rung=st.none() | st.sampled_from(Rung),
    generation=counts,
    rung_since=st.none() | moments,
    acknowledged_at=st.none() | moments,
    good_since=st.none() | moments,
    found=st.lists(names, max_size=3).map(tuple),
    result=st.sampled_from(MitigationResult),
)
conditions = st.builds(
    Condition,
    type=names,
    status=st.sampled_from(["True", "False", "Unknown"]),
    reason=names,
    message=st.text(max_size=20),
    observed_generation=counts,
    last_transition_time=moments,
)
selectors = st.builds(
    Selector,
    st.dictionaries(names, names, max_size=2).map(lambda labels: tuple(sorted(labels.items()))),
    st.lists(
        st.builds(Requirement, names, st.sampled_from(["In", "Exists"]), st.lists(names, max_size=2).map(tuple)),
        max_size=2,
    ).map(tuple),
)
key_lists = st.lists(workload_keys, max_size=5, unique=True).map(lambda found: tuple(sorted(found)))
held_lists = st.dictionaries(workload_keys, st.tuples(names, moments), max_size=5).map(
    lambda found: tuple(HeldWorkload(key, reason, since) for key, (reason, since) in sorted(found.items()))
)
settings = st.sampled_from(["", '{"fallback":"fp32","rollback":{"ackTimeout":"45s"}}'])

_restarts = st.tuples(
    st.builds(Restart, rounds=st.integers(1, 9), since=moments, newest=moments, pods=st.integers(-1, 10**6)),
    st.none() | st.integers(0, 10**9),
).map(
    lambda drawn: drawn[0] if drawn[1] is None else replace(drawn[0], gone=round(drawn[0].since + drawn[1] / 1000, 3))
)
_fleets = st.builds(
    State,
    selector=selectors,
    generation=counts,
    fallback=st.none() | modes,
    modes=st.dictionaries(workload_keys, modes, max_size=5),
    indexes=st.dictionaries(workload_keys, st.integers(0, MAX_INDEXES), max_size=3),
    index_mode=st.none() | modes,
    contested=st.frozensets(workload_keys, max_size=3),
    enforce=st.booleans(),
    hold_on_delete=st.booleans(),
    deletable=st.booleans(),
    changed=st.dictionaries(workload_keys, st.integers(1, 10**12), max_size=5),
    members=key_lists,
    held=held_lists,
    silent=st.dictionaries(workload_keys, moments, max_size=4),
    canary=key_lists,
    breached=key_lists,
    poisoned=key_lists,
    restart_seconds=st.lists(st.floats(0, 1e6), max_size=3).map(tuple),
    suspensions=st.dictionaries(
        workload_keys, st.builds(Suspension, st.uuids().map(str), counts, moments, st.booleans()), max_size=3
    ),
    restarts=st.dictionaries(workload_keys, _restarts, max_size=4),
    failing=st.lists(breaches, max_size=4).map(tuple),
    mitigations=st.lists(windows, max_size=4).map(tuple),
)
_records = st.fixed_dictionaries(
    {
        "policy_uid": names,
        "observed_generation": counts,
        "commands": st.dictionaries(names, counts, max_size=3),
        "settings": settings,
        "phase": st.sampled_from(Phase),
        "reason": names,
        "message": st.text(max_size=40),
        "precision": st.none() | modes,
        "transition_id": counts,
        "step_index": counts,
        "phase_since": st.none() | moments,
        "step_since": st.none() | moments,
        "evidence_since": st.none() | moments,
        "no_data_since": st.none() | moments,
        "attempts": counts,
        "incident": st.none() | incidents,
        "comparison": st.none() | comparisons,
        "conditions": st.lists(conditions, max_size=3).map(tuple),
        "notified": st.lists(st.builds(Notified, names, names, moments, counts), max_size=3).map(tuple),
        "writer": names,
        "epoch": counts,
    }
)
states = st.builds(
    lambda fleet, record: replace(fleet, contested=fleet.contested - fleet.modes.keys(), **record), _fleets, _records
)
"""Any state."""
