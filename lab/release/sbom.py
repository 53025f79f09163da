"""What a bill of materials must name: all that is known to be in its image."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from lab.errors import LabError
from lab.images.packages import Packages
from precision_operator.api.wire import mapping, sequence, text

_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)(?!.*;)", re.MULTILINE)
"""A locked requirement that every interpreter installs: one with a marker may be meant for another."""
_NAMED = 3


def locked(lock: Path) -> dict[str, str]:
    """Normalised name → version, of a lock's requirements."""
    return {_normal(name): version for name, version in _PINNED.findall(lock.read_text())}


def require_named(
    image: str, bom: Mapping[str, object], *, packages: Packages, requirements: Mapping[str, str]
) -> None:
    """Refuse a bill that is no CycloneDX, or lacks a package that the image was made of.

    Args:
        image: its name.
        bom: the document that was read.
        packages: Debian packages of the image's base.
        requirements: Python packages that were installed on it, by normalised name.

    Raises:
        LabError: it names what is missing.
    """
    if bom.get("bomFormat") != "CycloneDX" or not text(bom.get("specVersion")).startswith("1."):
        found = f"{bom.get('bomFormat')!r} {bom.get('specVersion')!r}"
        raise LabError(f"a CycloneDX document of {image}", found, "see what syft says of its format")
    components = [mapping(component) for component in sequence(bom.get("components"))]
    named = {(_normal(text(c.get("name"))), text(c.get("version"))) for c in components}
    wanted = {**{name: package.version for name, package in packages.items()}, **requirements}
    missing = [f"{name} {version}" for name, version in wanted.items() if (_normal(name), version) not in named]
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise LabError(
            f"all of {len(wanted)} packages of {image} in its bill of materials",
            f"{', '.join(missing[:_NAMED])}{more} missing",
            "scan the image by syft, and look which of its catalogers finds nothing",
        )


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
