"""Where an image comes from: an in-toto statement with SLSA's provenance (https://slsa.dev/spec/v1.0/provenance)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from lab import paths
from lab.images import Image
from lab.images.catalogue import SUITE
from lab.images.packages import Packages

Json = dict[str, object]

PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "https://precision.genesis.ai/release/v1"
"""docs/release.md says what a build of this type does."""


@dataclass(frozen=True)
class Source:
    """What a release is made of."""

    version: str
    commit: str


@dataclass(frozen=True)
class Subject:
    """An image in a registry, by the digest of its manifest (``sha256:…``)."""

    name: str
    digest: str


def statement(
    subject: Subject, *, source: Source, image: Image, packages: Packages, started: datetime, finished: datetime
) -> Json:
    """The statement about one image.

    Args:
        subject: the image.
        source: the commit that it was built from.
        image: its entry of the catalogue.
        packages: Debian packages of its base.
        started: when building began, UTC.
        finished: when it had ended, UTC.
    """
    files = [image.dockerfile, *(path for path in image.inputs if path.is_file())]
    dependencies: list[Json] = [{"name": "source", "digest": {"gitCommit": source.commit}}]
    for file in files:
        dependencies.append(_dependency("name", str(file.relative_to(paths.ROOT)), _sha256(file)))
    for name, package in sorted(packages.items()):
        uri = f"pkg:deb/debian/{name}@{package.version}?distro={SUITE}"
        dependencies.append(_dependency("uri", uri, package.sha256))
    predicate: Json = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"image": image.name, "version": source.version},
            "resolvedDependencies": dependencies,
        },
        "runDetails": {
            "builder": {"id": BUILD_TYPE},
            "metadata": {"startedOn": _time(started), "finishedOn": _time(finished)},
        },
    }
    algorithm, _, value = subject.digest.partition(":")
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": subject.name, "digest": {algorithm: value}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }


def _dependency(field: str, value: str, sha256: str) -> Json:
    return {field: value, "digest": {"sha256": sha256}}


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
