"""Which Debian packages a base image holds, and which it must hold: `bases.json` pins name, version and checksum."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from lab import paths
from lab.errors import LabError
from lab.images.catalogue import SUITE, Base

PINS = paths.ROOT / "lab" / "images" / "bases.json"
_NAMED = 3


@dataclass(frozen=True)
class Package:
    """A Debian package file. The checksum is that of the archive's signed index, which apt checked the file against."""

    version: str
    sha256: str


Packages = Mapping[str, Package]


def packages_of(root: Path, lists: Path) -> dict[str, Package]:
    """Name what is installed in a root file system.

    Args:
        root: the file system, a tar file.
        lists: apt's folder of package indices, as it was when they were installed.
    """
    with tarfile.open(root) as tar:
        status = tar.extractfile("./var/lib/dpkg/status")
        if status is None:
            raise LabError("dpkg's status in the root file system", f"none in {root}", "read what mmdebstrap wrote")
        text = status.read().decode()
    installed = {entry["Package"]: entry["Version"] for entry in _paragraphs(text)}
    indexed = {
        (entry["Package"], entry["Version"]): entry["SHA256"]
        for index in sorted(lists.glob("*_Packages"))
        for entry in _paragraphs(index.read_text())
    }
    return {name: Package(version, indexed[name, version]) for name, version in sorted(installed.items())}


def write_packages(file: Path, packages: Packages) -> None:
    """Keep what a base image holds beside it."""
    file.write_text(json.dumps({name: asdict(package) for name, package in packages.items()}, indent=1) + "\n")


def read_packages(file: Path) -> dict[str, Package]:
    """Read what `write_packages` wrote."""
    return {name: Package(**package) for name, package in json.loads(file.read_text()).items()}


def pinned(base: Base) -> dict[str, Package]:
    """What `bases.json` says that a base must hold; empty where it says nothing."""
    pins = json.loads(PINS.read_text()) if PINS.exists() else {}
    return {name: Package(**package) for name, package in pins.get("bases", {}).get(base.name, {}).items()}


def pin(bases: Mapping[Base, Packages]) -> None:
    """Write `bases.json` anew."""
    body = {base.name: {name: asdict(package) for name, package in found.items()} for base, found in bases.items()}
    PINS.write_text(json.dumps({"suite": SUITE, "bases": body}, indent=1, sort_keys=True) + "\n")


def require_pinned(base: Base, found: Packages) -> None:
    """Refuse a base that is not the pinned one.

    Raises:
        LabError: it names the first packages that differ.
    """
    if differences := unpinned(base, found):
        raise LabError(
            f"the {len(pinned(base))} packages that {PINS.relative_to(paths.ROOT)} pins for the base {base.name}",
            differences,
            "read what Debian changed, run `python -m lab.release pin`, and commit the file",
        )


def unpinned(base: Base, found: Packages) -> str:
    """The first packages of a base that are not the pinned ones, for people; empty: all are."""
    expected = pinned(base)
    differences = [
        f"{name} {_shown(found.get(name))} in place of {_shown(expected.get(name))}"
        for name in sorted(expected.keys() | found.keys())
        if found.get(name) != expected.get(name)
    ]
    more = f", and {len(differences) - _NAMED} more" if len(differences) > _NAMED else ""
    return "; ".join(differences[:_NAMED]) + more


def _shown(package: Package | None) -> str:
    return "none" if package is None else f"{package.version} ({package.sha256[:12]})"


def _paragraphs(text: str) -> Iterator[dict[str, str]]:
    """The fields of one line of each paragraph. Debian's format has others; none of them is needed here."""
    for paragraph in text.split("\n\n"):
        lines = (line.partition(": ") for line in paragraph.splitlines() if line[:1].isalpha())
        fields = {key: value for key, _, value in lines if key in ("Package", "Version", "SHA256")}
        if fields:
            yield fields
