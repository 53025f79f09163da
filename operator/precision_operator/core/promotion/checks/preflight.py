"""Before a rollout starts: can each workload train in the target, and come back? As far as metrics and dry runs show it.

What nobody says is not known, and holds nothing: the process itself refuses what it cannot do, and then it does not
acknowledge, which promotes nothing. An answer that is under way is waited for.
"""

import re

from precision_operator.api.conditions import Condition
from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase
from precision_operator.api.text import bounded, names
from precision_operator.core.facts import Facts
from precision_operator.core.model import RunsOn, WorkloadView
from precision_operator.core.progress import live_pods
from precision_operator.reasons import Cause, Reason

LEAST_TORCH = (2, 0)
LEAST_CAPABILITY = {Mode.FP16: (5, 3), Mode.BF16: (8, 0)}
"""Of a CUDA device: arithmetic in FP16, and in BF16."""
SHOWN = 3
PREFLIGHT = Reason.PREFLIGHT_PASSED
"""Type of the condition."""

_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")


def preflight(facts: Facts) -> Cause | None:
    """Closed where a workload cannot train in the target, or could not come back; and while that is being tried."""
    failed = _failed(facts)
    if failed is not None:
        return failed
    tried = [w.name for w in _concerned(facts) if w.key in facts.observation.way_back_open]
    return Cause(Reason.NOT_REPORTED, f"the way back of {names(tried)} is being tried") if tried else None


def _failed(facts: Facts) -> Cause | None:
    failed = [(w, why) for w in _concerned(facts) if (why := _fails(facts, w))]
    if not failed:
        return None
    shown = "; ".join(f"{bounded(w.name, 63)}: {why}" for w, why in failed[:SHOWN])
    rest = f"; and {len(failed) - SHOWN} more" if len(failed) > SHOWN else ""
    return Cause(Reason.PREFLIGHT_FAILED, f"{shown}{rest}")


def checked(facts: Facts) -> Condition:
    """The condition; once the rollout has begun it stays as it was."""
    if facts.state.phase is not Phase.PENDING or facts.evaluation is None:
        known = next((c for c in facts.state.conditions if c.type == PREFLIGHT), None)
        return known or Condition(PREFLIGHT, "Unknown", Reason.NOT_CHECKED, "")
    failed = _failed(facts)
    if failed is not None:
        return Condition(PREFLIGHT, "False", failed.reason, failed.message)
    silent = [w.name for w in _concerned(facts) if not _known(facts, w)]
    if silent:
        text = f"not reported, or not tried, of {names(silent)}: torch, device (genesis_run_info), or the way back"
        return Condition(PREFLIGHT, "Unknown", Reason.NOT_REPORTED, text)
    return Condition(PREFLIGHT, "True", Reason.PREFLIGHT_PASSED, "")


def _concerned(facts: Facts) -> list[WorkloadView]:
    held = facts.state.held_keys
    return [w for w, _ in facts.movable if w.key not in held]


def _runs_on(facts: Facts, workload: WorkloadView) -> list[RunsOn | None]:
    seen = (facts.signals.get(pod.name) for pod in live_pods(workload))
    return [signals.runs_on if signals is not None else None for signals in seen]


def _known(facts: Facts, workload: WorkloadView) -> bool:
    said = _runs_on(facts, workload)
    return all(on is not None and on.torch and on.device for on in said) and workload.key in facts.observation.way_back


def _fails(facts: Facts, workload: WorkloadView) -> str:
    """Why, with the next step; empty: nothing is known against it."""
    for on in _runs_on(facts, workload):
        against = _lacks(on, facts.spec.target) if on is not None else ""
        if against:
            return against
    refused = facts.observation.way_back.get(workload.key, "")
    return f"the way back would be refused ({bounded(refused, 200)})" if refused else ""


def _lacks(on: RunsOn, target: Mode) -> str:
    torch, capability = _version(on.torch), _version(on.capability)
    if torch is not None and torch < LEAST_TORCH:
        return f"torch {on.torch}, expected {_text(LEAST_TORCH)} or later: build its image with a newer one"
    least = LEAST_CAPABILITY.get(target, (0, 0))
    if on.device == "cuda" and capability is not None and capability < least:
        other = "set spec.target: fp16, or " if capability >= LEAST_CAPABILITY[Mode.FP16] else ""
        return (
            f"a device of capability {on.capability}, {target} needs {_text(least)}: {other}"
            "select only workloads on newer GPUs"
        )
    return ""


def _version(text: str) -> tuple[int, int] | None:
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2])) if found else None


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
