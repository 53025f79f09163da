"""The verification checklist of an incident, counted: what of its results stands in the policy's status."""

from dataclasses import dataclass, fields

from precision_operator.api.wire import integer, mapping


@dataclass(frozen=True, slots=True)
class Checks:
    """How many lines have which result. The lines themselves stand in the PrecisionIncident."""

    passed: int = 0
    failed: int = 0
    unknown: int = 0
    pending: int = 0


def checks_to_wire(checks: Checks | None) -> dict[str, object] | None:
    """As the CRD has it; None where nothing has been checked yet."""
    return {f.name: getattr(checks, f.name) for f in fields(Checks)} if checks is not None else None


def parse_checks(raw: object) -> Checks | None:
    """Read what ``checks_to_wire`` wrote; None where it is absent."""
    body = mapping(raw)
    return Checks(**{f.name: integer(body.get(f.name), 0) for f in fields(Checks)}) if body else None
