"""Templates of messages: the built-in ones, those of the admin in their place, and what becomes of a bad one.

``string.Template`` fills in words and nothing else: no template runs code, asks for an attribute or makes a loop.
"""

import logging
from collections.abc import Callable, Mapping
from string import Template
from typing import Final

from precision_operator.api.messages import MessageKind
from precision_operator.api.text import bounded
from precision_operator.reasons import Reason
from precision_operator.settings import MessageTemplate

_LOG = logging.getLogger(__name__)

SUBJECT_CHARACTERS, BODY_CHARACTERS = 512, 16384
"""What the schema takes."""
LINK_CHARACTERS = 1024
"""Of the body, for each of the links and the command at its end."""
VALUE_CHARACTERS = 4096
"""Of one field."""
TEMPLATE_CHARACTERS = 8192
PLACEHOLDERS = 100
"""Of one template."""

FIELDS: Final[Mapping[str, str]] = {
    "kind": "the message's kind",
    "meaning": "what that kind means",
    "namespace": "of the policy",
    "policy": "its name",
    "incident": "the rollback that it is about; empty: none",
    "severity": "of that rollback: P0, P1 or P2",
    "scope": "how far that rollback reaches",
    "reason": "the stable word for why",
    "impact": "the same in words, with numbers",
    "status": "what is so now",
    "phase": "the policy's phase",
    "step": "the rollout's step",
    "workloads": "how many workloads are where the policy wants them, or which are concerned",
    "target": "the mode that the fleet is to train in",
    "fallback": "the mode that a rollback goes to",
    "since": "when it began",
    "duration": "how long it has stood, or took, as measured",
    "deadline": "when the rollback must be over",
    "eta": "the same, and how far away that is",
    "deadline_result": "whether the deadline was met",
    "late": "by how much the rollback is predicted to miss its deadline",
    "actions": "a list: what was done",
    "next_steps": "a list: what to do, or what follows",
    "expected": "a list: what the fallback costs, from the fleet's own FP32 baseline",
    "timeline": "a list: the newest entries of the incident's timeline",
    "verification": "a list: the checks with their results",
    "performance": "a list: success rate, loss, throughput, time and memory, as measured",
    "throughput_factor": "throughput after by throughput before",
    "time_factor": "time per sample after by time before",
    "memory_factor": "device memory after by device memory before",
    "root_cause": "what called for it, and what had changed",
    "postmortem": "the time that is proposed for the post-mortem",
    "dashboard": "the dashboard's address",
    "command": "the command that the message ends with",
    "runbook": "the runbook's address",
}
"""Every field that a template may name. A list begins on a new line. A line of which a field is empty is left out."""

_STANDING = MessageTemplate(
    "[$kind] $namespace/$policy: $reason",
    """\
WHAT: $meaning
STATUS: $status
SINCE: $since ($duration ago)
PHASE: $phase
STEP: $step
WORKLOADS: $workloads
DEADLINE: $eta
PREDICTED: $late late
NEXT STEPS:$next_steps""",
)

BUILT_IN: Final[Mapping[MessageKind, MessageTemplate]] = {
    **dict.fromkeys(MessageKind, _STANDING),
    MessageKind.NOTICE: MessageTemplate(
        "[$severity] $namespace/$policy: $status: $reason",
        """\
IMPACT: $impact ($reason)
STATUS: rollback of $workloads to $fallback in progress
ETA: $eta
PREDICTED: $late late
ACTIONS TAKEN:$actions
EXPECTED IMPACT:$expected
NEXT STEPS:$next_steps""",
    ),
    MessageKind.ESCALATION: MessageTemplate(
        "[$severity] $namespace/$policy: unresolved after $duration",
        """\
WHAT: $impact ($reason)
STATUS: $status
DEADLINE: $deadline
LATEST:$timeline
NEXT STEPS:$next_steps""",
    ),
    MessageKind.ALL_CLEAR: MessageTemplate(
        "[RESOLVED] $namespace/$policy: $fallback confirmed",
        """\
STATUS: $fallback confirmed by the processes of $workloads
DURATION: $duration; deadline $deadline_result
VERIFICATION:$verification
PERFORMANCE:$performance
ROOT CAUSE: $root_cause
FOLLOW-UP: post-mortem proposed for $postmortem""",
    ),
    MessageKind.VERIFICATION_FAILED: MessageTemplate(
        "[$severity] $namespace/$policy: verification failed: $status",
        """\
IMPACT: $impact ($reason)
STATUS: $workloads in $fallback, and not well: $status
VERIFICATION:$verification
PERFORMANCE:$performance
NEXT STEPS:$next_steps""",
    ),
}


def chosen(custom: Mapping[str, MessageTemplate], failed: Callable[[str], None]) -> Mapping[str, MessageTemplate]:
    """The admin's templates that can be used; of each other one it is logged and counted why the built-in one stands.

    Args:
        custom: by kind, as the settings have them.
        failed: called with the reason, once a bad template.
    """
    good: dict[str, MessageTemplate] = {}
    for kind, template in custom.items():
        why = objection(kind, template)
        if not why:
            good[kind] = template
            continue
        failed(Reason.TEMPLATE_INVALID)
        _LOG.error(
            "config.messageTemplates.%s: %s; the built-in template is used",
            *(bounded(kind, 64), why),
            extra={"reason": Reason.TEMPLATE_INVALID},
        )
    return good


def objection(kind: str, template: MessageTemplate) -> str:
    """Why a template cannot be used, with what was expected; empty: it can."""
    if kind not in set(MessageKind):
        return f"expected one of {', '.join(MessageKind)}"
    for part, text in (("subject", template.subject), ("body", template.body)):
        if len(text) > TEMPLATE_CHARACTERS:
            return f"{part}: expected at most {TEMPLATE_CHARACTERS} characters, found {len(text)}"
        parsed = Template(text)
        if not parsed.is_valid():
            return part + ": expected $name or ${name} of a field, and $$ for a dollar sign; found a dollar sign alone"
        unknown = sorted(set(parsed.get_identifiers()) - set(FIELDS))
        if unknown:
            return f"{part}: no such field: ${bounded(unknown[0], 64)}; expected one of {', '.join(FIELDS)}"
        if text.count("$") > PLACEHOLDERS:
            return f"{part}: expected at most {PLACEHOLDERS} dollar signs, found {text.count('$')}"
    return ""


def render(
    kind: MessageKind, fields: Mapping[str, str], custom: Mapping[str, MessageTemplate] | None = None
) -> tuple[str, str]:
    """Subject and body of a message. Whatever the template is, the body ends with the links and the command.

    Args:
        kind: of the message.
        fields: values by name; one that is missing is empty.
        custom: templates that were :func:`chosen`.
    """
    built_in = BUILT_IN[kind]
    template = (custom or {}).get(kind, built_in)
    known = {name: fields.get(name, "")[:VALUE_CHARACTERS] for name in FIELDS}
    subject = bounded(_filled(template.subject or built_in.subject, known), SUBJECT_CHARACTERS)
    body = _filled(template.body or built_in.body, known)[: BODY_CHARACTERS - len(_TAIL) * LINK_CHARACTERS]
    tail = [f"{word}: {known[name]}"[: LINK_CHARACTERS - 1] for word, name in _TAIL if known[name]]
    return subject, "\n".join([body, *tail])


_TAIL = (("DASHBOARD", "dashboard"), ("RUN", "command"), ("RUNBOOK", "runbook"))


def _filled(text: str, fields: Mapping[str, str]) -> str:
    lines = (Template(line) for line in text.splitlines())
    return "\n".join(line.substitute(fields) for line in lines if all(fields[name] for name in line.get_identifiers()))
