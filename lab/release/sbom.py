"""Bills of materials: what one must name, and those of what syft cannot list, the chart and the archives."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path, PurePath
from urllib.parse import quote

from lab.errors import LabError
from lab.images.packages import Packages
from lab.release.provenance import Json
from precision_operator.api.wire import mapping, sequence, text

_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)(?!.*;)", re.MULTILINE)
"""A locked requirement that every interpreter installs: one with a marker may be meant for another."""
_NAMED = 3
_LICENCE = "License :: "


def bill(subject: Json, components: Sequence[Json]) -> Json:
    """A CycloneDX document of what a thing holds or names. Without a time or number, it is equal when made again."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": subject},
        "components": [*components],
    }


def component(kind: str, name: str, version: str, digest: str) -> Json:
    """What a registry has under that name and digest (``sha256:…``)."""
    purl = f"pkg:oci/{name}@{quote(digest, safe='')}?tag={version}"
    return {"type": kind, "name": name, "version": version, "purl": purl}


def carried(archive: Path) -> list[Json]:
    """The Python packages that an archive of the plugin carries: each once, by what its metadata says."""
    found = {(name, version): _package(name, version, data) for name, version, data in _metadata(archive)}
    return [found[key] for key in sorted(found)]


def _metadata(archive: Path) -> Iterator[tuple[str, str, Message]]:
    with tarfile.open(archive) as tar:
        for member in tar:
            if PurePath(member.name).match("lib/*/*.dist-info/METADATA") and (file := tar.extractfile(member)):
                data = HeaderParser().parsestr(file.read().decode())
                yield data["Name"], data["Version"], data


def _package(name: str, version: str, data: Message) -> Json:
    purl = f"pkg:pypi/{_normal(name)}@{version}"
    return {"type": "library", "name": name, "version": version, "purl": purl, "licenses": _licences(data)}


def _licences(data: Message) -> list[Json]:
    if expression := data["License-Expression"]:
        return [{"expression": expression}]
    # Some have the whole text in this field.
    if (name := (data["License"] or "").strip()) and "\n" not in name:
        return [{"license": {"name": name}}]
    classifiers = [line for line in data.get_all("Classifier", []) if line.startswith(_LICENCE)]
    return [{"license": {"name": line.rpartition(" :: ")[2]}} for line in classifiers]


def locked(lock: Path) -> dict[str, str]:
    """Normalised name → version, of a lock's requirements."""
    return {_normal(name): version for name, version in _PINNED.findall(lock.read_text())}


def require_named(of: str, bom: Mapping[str, object], *, packages: Packages, requirements: Mapping[str, str]) -> None:
    """Refuse a bill that is no CycloneDX, or lacks a package that its image or archive was made of.

    Args:
        of: the name of the image or archive.
        bom: the document that was read.
        packages: Debian packages of the image's base.
        requirements: Python packages that were installed, by normalised name.

    Raises:
        LabError: it names what is missing.
    """
    if bom.get("bomFormat") != "CycloneDX" or not text(bom.get("specVersion")).startswith("1."):
        found = f"{bom.get('bomFormat')!r} {bom.get('specVersion')!r}"
        raise LabError(f"a CycloneDX document of {of}", found, "see what syft says of its format")
    components = [mapping(component) for component in sequence(bom.get("components"))]
    named = {(_normal(text(c.get("name"))), text(c.get("version"))) for c in components}
    wanted = {**{name: package.version for name, package in packages.items()}, **requirements}
    missing = [f"{name} {version}" for name, version in wanted.items() if (_normal(name), version) not in named]
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise LabError(
            f"all of {len(wanted)} packages of {of} in its bill of materials",
            f"{', '.join(missing[:_NAMED])}{more} missing",
            "of an image: scan it by syft, and look which cataloger finds nothing; of an archive: list its METADATA files",
        )


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
