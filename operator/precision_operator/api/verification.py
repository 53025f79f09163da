"""The verification checklist of an incident, counted: what of its results stands in the policy's status."""

from dataclasses import dataclass
from typing import Annotated

from precision_operator.api.fields import Field


@dataclass(frozen=True, slots=True)
class Checks:
    """How many lines have which result. The lines themselves stand in the PrecisionIncident."""

    passed: Annotated[int, Field("Lines that hold.", least=0)] = 0
    failed: Annotated[int, Field("Lines that do not.", least=0)] = 0
    unknown: Annotated[int, Field("Lines that no data answers.", least=0)] = 0
    pending: Annotated[int, Field("Lines whose time has not come.", least=0)] = 0
