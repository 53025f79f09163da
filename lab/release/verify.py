"""Verify a release offline: its checksums, their signature, and the signatures and attestations of images and chart."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.errors import CommandFailed, LabError
from lab.images import OPERATOR, TRAINER, Image
from lab.progress import say, step
from lab.release import plugin
from lab.release.make import (
    BOM_TYPE,
    CHART,
    CHART_BILL,
    IMAGES,
    PLAIN_HTTP,
    PUBLIC_KEY,
    RELEASES,
    SUMS,
    SUMS_BUNDLE,
    archive_hashes,
    operator_component,
    read_sums,
    sha256,
)
from lab.release.note import README
from lab.release.provenance import PREDICATE_TYPE
from lab.release.tools import Tools, registry, tools
from precision_operator.api.wire import mapping, sequence

UNKNOWN_MAKER = (
    "who made it was not checked, for the key is the release's own; name one that you trust, got from elsewhere: "
    "KEY=cosign.pub"
)
"""Anybody can make a release whole."""
_DISTRUST = "trust nothing of this release; get it again"


def verify(folder: Path, *, key: Path | None) -> None:
    """Verify a release; everything that is found is named by a line.

    Args:
        folder: a release.
        key: the public key that is trusted; None: the one that lies in the release, which only shows that the release is
            whole.

    Raises:
        LabError: a file is missing, changed or of nobody's making.
    """
    programs = tools(making=False)
    public = require_signed(programs, folder, key=key)
    version = folder.name
    require_files(folder)
    require_archives(folder)
    digests: dict[Image, str] = {}
    RELEASES.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="verify-", dir=RELEASES) as served,
        registry(programs, Path(served)) as address,
    ):
        for image in IMAGES:
            archive = folder / f"{image.name}-{version}.oci.tar"
            reference = _restored(programs, archive, f"{address}/{image.name}", version)
            _cosign(programs, folder, "verify", "--key", public, PLAIN_HTTP, reference)
            origin = read_json(folder / f"{image.name}-{version}.intoto.json")
            require_subject(origin, reference)
            for kind, expected in (
                (PREDICATE_TYPE, origin["predicate"]),
                (BOM_TYPE, read_json(folder / f"{image.name}-{version}.cdx.json")),
            ):
                _require_attested(programs, folder, public, reference, kind, expected)
            digests[image] = reference.partition("@")[2]
            say(f"{reference.partition('/')[2]}: signed; provenance and SBOM attested, as they lie here")
        archive = folder / f"{CHART.name}-chart-{version}.oci.tar"
        reference = _restored(programs, archive, f"{address}/charts/{CHART.name}", version)
        _cosign(programs, folder, "verify", "--key", public, PLAIN_HTTP, reference)
        bill = read_json(folder / CHART_BILL.format(version=version))
        require_named_image(bill, version, digests[OPERATOR])
        _require_attested(programs, folder, public, reference, BOM_TYPE, bill)
        say(f"{reference.partition('/')[2]}: signed; SBOM attested, as it lies here, and of this operator's image")


def require_signed(programs: Tools, folder: Path, *, key: Path | None) -> Path:
    """Refuse a folder that is not named as its version, or does not hold exactly the files whose checksums were signed.

    Returns the key that signed them.

    Args:
        programs: cosign among them.
        folder: a release.
        key: the public key that is trusted; None: the release's own.

    Raises:
        LabError: it names the first file that is missing, changed or added, the key that did not sign, or the version.
    """
    require_sums(folder)
    public = (key or folder / PUBLIC_KEY).resolve()  # a relative one is none of the release, where cosign runs
    _cosign(programs, folder, "verify-blob", "--key", public, "--bundle", folder / SUMS_BUNDLE, folder / SUMS)
    require_version(folder)
    say(f"{SUMS}: signed by {public}, and true of every file")
    if key is None:
        say(UNKNOWN_MAKER)
    return public


def require_sums(folder: Path) -> None:
    """Refuse a folder that does not hold exactly the files that its checksums name, as they were.

    Raises:
        LabError: it names the first file that is missing, changed or added.
    """
    sums = folder / SUMS
    if not sums.exists():
        raise LabError(f"a release in {folder}", f"no {SUMS}", "name the folder of a release, or run `make release`")
    listed = read_sums(folder)
    there = {path.name for path in folder.iterdir()} - {SUMS, SUMS_BUNDLE}
    for name in sorted(listed.keys() | there):
        found = "missing" if name not in there else "unlisted" if name not in listed else sha256(folder / name)
        if found != listed.get(name):
            raise LabError(
                f"{name} as {SUMS} lists it", f"it is {found}", "fetch the release again, and trust nothing of this one"
            )


def require_version(folder: Path) -> None:
    """Refuse a release in a folder that is not named as its version, from which the names of its files follow.

    Raises:
        LabError: it names the version that the files have.
    """
    start, end = f"{TRAINER.name}-", ".oci.tar"
    listed = [name for name in read_sums(folder) if name.startswith(start) and name.endswith(end)]
    versions = [name.removeprefix(start).removesuffix(end) for name in listed]
    if folder.name not in versions:
        raise LabError(
            f"a release in a folder that is named as its version, {' or '.join(versions) or 'with its images'}",
            f"the folder {folder.name}",
            "rename the folder; its checksums stay as they are",
        )


def require_files(folder: Path) -> None:
    """Refuse a release that lacks any of its parts: images, chart and archives, what describes each, and the page.

    Raises:
        LabError: it names the file that is missing.
    """
    version = folder.name
    names = [f"{image.name}-{version}.{kind}" for image in IMAGES for kind in ("oci.tar", "cdx.json", "intoto.json")]
    names += [f"{CHART.name}-chart-{version}.oci.tar", CHART_BILL.format(version=version), README]
    names += [name for platform in plugin.PLATFORMS for name in (platform.archive(version), platform.bill(version))]
    for name in names:
        if not (folder / name).is_file():
            raise LabError(f"{name} in the release", "no such file", "make it anew: make release")


def require_archives(folder: Path) -> None:
    """Refuse an SBOM that is of another archive than the one beside it.

    Raises:
        LabError: it names the SBOM.
    """
    for platform in plugin.PLATFORMS:
        archive, name = platform.archive(folder.name), platform.bill(folder.name)
        described = mapping(mapping(read_json(folder / name).get("metadata")).get("component")).get("hashes")
        if described != archive_hashes(folder / archive):
            raise LabError(f"{name} of the archive {archive}", f"of another one: {described}", _DISTRUST)


def require_named_image(bill: Mapping[str, object], version: str, digest: str) -> None:
    """Refuse an SBOM of the chart that names another image of the operator than ``sha256:…``.

    Raises:
        LabError: it names what the SBOM names.
    """
    named = [mapping(component).get("purl") for component in sequence(bill.get("components"))]
    if named != [operator_component(version, digest)["purl"]]:
        raise LabError(f"the operator's image {digest} in the SBOM of the chart", f"{named}", _DISTRUST)


def _restored(programs: Tools, archive: Path, repository: str, version: str) -> str:
    """Bring an archive into the registry; return its name there, by digest."""
    with step(f"unpack {archive.name}"):
        programs("oras", "restore", "--plain-http", "--input", archive, f"{repository}:{version}")
    digest = programs("oras", "resolve", "--plain-http", f"{repository}:{version}").strip()
    return f"{repository}@{digest}"


def _require_attested(programs: Tools, folder: Path, public: Path, reference: str, kind: str, expected: object) -> None:
    if _attested(programs, folder, public, reference, kind) != expected:
        name = reference.partition("/")[2].partition("@")[0]
        raise LabError(f"the {kind} of {name} as it lies here", "another was attested", _DISTRUST)


def _attested(programs: Tools, folder: Path, public: Path, reference: str, kind: str) -> object:
    """What a statement of that kind, whose signature is good, says about an image or the chart."""
    arguments = ("--key", public, PLAIN_HTTP, "--type", kind, reference)
    envelope = json.loads(_cosign(programs, folder, "verify-attestation", *arguments))
    return json.loads(base64.b64decode(envelope["payload"]))["predicate"]


def require_subject(statement: Mapping[str, Any], reference: str) -> None:
    """Refuse a statement about another image than ``…@sha256:…``.

    Raises:
        LabError: it names the image that the statement is about.
    """
    expected = reference.partition("@sha256:")[2]
    if [subject["digest"]["sha256"] for subject in statement["subject"]] != [expected]:
        raise LabError(f"provenance of {reference}", f"of {statement['subject']}", _DISTRUST)


def read_json(file: Path) -> dict[str, Any]:
    """A file that holds a JSON object."""
    body = json.loads(file.read_text())
    assert isinstance(body, dict)
    return body


def _cosign(programs: Tools, folder: Path, command: str, *arguments: str | Path) -> str:
    # No transparency log was written to: what is verified is the key.
    try:
        return programs("cosign", command, "--insecure-ignore-tlog", *arguments, cwd=folder)
    except CommandFailed as error:
        found = error.output.strip().splitlines()[-1]
        raise LabError(f"{arguments[-1]} to be signed by {arguments[1]}", found, _DISTRUST) from error
