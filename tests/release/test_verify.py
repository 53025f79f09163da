"""A release that is whole is verified; each way to change one is refused, and named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lab.errors import LabError
from lab.images import OPERATOR
from lab.release.make import (
    BOM_TYPE,
    CHART,
    CHART_BILL,
    IMAGES,
    SUMS,
    Workshop,
    archive_hashes,
    attest,
    export_key,
    operator_component,
    pack,
    sha256,
    sign,
    sign_sums,
)
from lab.release.note import README
from lab.release.plugin import PLATFORMS
from lab.release.provenance import PREDICATE_TYPE, Source
from lab.release.tools import Tools, registry, tools
from lab.release.verify import read_json, verify

VERSION = "9.9.9"
IMAGE = IMAGES[0].name
BILL = {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": []}


def key_pair(programs: Tools, folder: Path) -> Path:
    """A new private key; its public one lies beside it."""
    folder.mkdir()
    programs("cosign", "generate-key-pair", cwd=folder)
    return folder / "cosign.key"


@dataclass(frozen=True)
class Made:
    """A release, and the workshop that it was made in."""

    workshop: Workshop

    @property
    def folder(self) -> Path:
        return self.workshop.target

    @property
    def key(self) -> Path:
        """The public key that people trust: it does not come with the release."""
        return self.workshop.key.with_name("cosign.pub")

    def file(self, name: str) -> Path:
        return self.folder / name.format(version=VERSION)


def artifact(workshop: Workshop, name: str, scratch: Path) -> tuple[str, str]:
    """A small thing in the registry, by its tag and by its digest."""
    (scratch / "content").write_text(name)
    tag = f"{workshop.registry}/{name}:{VERSION}"
    workshop.tools("oras", "push", "--plain-http", tag, "content", cwd=scratch)
    digest = workshop.tools("oras", "resolve", "--plain-http", tag).strip()
    return tag, f"{workshop.registry}/{name}@{digest}"


def describe(workshop: Workshop, name: str, reference: str) -> None:
    """Attest an SBOM and the provenance, and lay both into the release."""
    bom = {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [{"name": name}]}
    subject = {"name": name, "digest": {"sha256": reference.partition("@sha256:")[2]}}
    origin = {"subject": [subject], "predicate": {"buildDefinition": {"externalParameters": {"image": name}}}}
    workshop.name(f"{name}-{{version}}.cdx.json").write_text(json.dumps(bom))
    workshop.name(f"{name}-{{version}}.intoto.json").write_text(json.dumps(origin))
    attest(workshop, reference, kind=BOM_TYPE, predicate=bom)
    attest(workshop, reference, kind=PREDICATE_TYPE, predicate=origin["predicate"])


def describe_chart(workshop: Workshop, reference: str, image: str) -> None:
    """Attest an SBOM of the chart that names an image of the registry, and lay it into the release."""
    digest = workshop.tools("oras", "resolve", "--plain-http", image).strip()
    bom = {**BILL, "components": [operator_component(VERSION, digest)]}
    workshop.name(CHART_BILL).write_text(json.dumps(bom))
    attest(workshop, reference, kind=BOM_TYPE, predicate=bom)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """A release whose images, chart and archives are small; all else is as `make release` does it."""
    root, programs = tmp_path_factory.mktemp("release"), tools(making=False)
    target = root / VERSION
    target.mkdir()
    with registry(programs, root / "registry") as address:
        key = key_pair(programs, root / "key")
        workshop = Workshop(programs, address, target, key, Source(VERSION, "0" * 40))
        export_key(workshop)
        for image in IMAGES:
            tag, reference = artifact(workshop, image.name, root)
            sign(workshop, reference)
            describe(workshop, image.name, reference)
            pack(workshop, tag, workshop.name(f"{image.name}-{{version}}.oci.tar"))
        tag, reference = artifact(workshop, f"charts/{CHART.name}", root)
        sign(workshop, reference)
        describe_chart(workshop, reference, f"{address}/{OPERATOR.name}:{VERSION}")
        pack(workshop, tag, workshop.name(f"{CHART.name}-chart-{{version}}.oci.tar"))
        for platform in PLATFORMS:
            (target / platform.archive(VERSION)).write_text(platform.os)
            subject = {"hashes": archive_hashes(target / platform.archive(VERSION))}
            (target / platform.bill(VERSION)).write_text(json.dumps({**BILL, "metadata": {"component": subject}}))
        (target / README).write_text("small")
        sign_sums(workshop)
        yield Made(workshop)


@pytest.fixture
def made(original: Made, tmp_path: Path) -> Made:
    """A copy, to be changed."""
    folder = tmp_path / VERSION
    shutil.copytree(original.folder, folder)
    return Made(replace(original.workshop, target=folder))


def test_a_release_that_is_whole_is_verified(original: Made) -> None:
    verify(original.folder, key=original.key)
    verify(original.folder, key=None)


def test_a_release_is_refused_for_a_key_that_did_not_sign_it(original: Made, tmp_path: Path) -> None:
    other = key_pair(original.workshop.tools, tmp_path / "other").with_name("cosign.pub")
    with pytest.raises(LabError, match=rf"{SUMS} to be signed by"):
        verify(original.folder, key=other)


def test_a_release_that_somebody_signed_anew_is_refused_for_the_key_that_is_trusted(made: Made, tmp_path: Path) -> None:
    trusted, other = made.key, key_pair(made.workshop.tools, tmp_path / "other")
    foreign = replace(made.workshop, key=other)
    export_key(foreign)
    sign_sums(foreign)
    with pytest.raises(LabError, match=rf"{SUMS} to be signed by"):
        verify(made.folder, key=trusted)


def flipped(made: Made) -> None:
    archive = made.file(f"{IMAGE}-{{version}}.oci.tar")
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 1
    archive.write_bytes(content)


def edited_with_new_sums(made: Made) -> None:
    file = made.file(f"{IMAGE}-{{version}}.intoto.json")
    file.write_text(json.dumps({**read_json(file), "predicate": {}}))
    files = sorted(path for path in made.folder.iterdir() if not path.name.startswith(SUMS))
    (made.folder / SUMS).write_text("".join(f"{sha256(path)}  {path.name}\n" for path in files))


def described_otherwise(made: Made) -> None:
    made.file(f"{IMAGE}-{{version}}.cdx.json").write_text(json.dumps({"bomFormat": "CycloneDX", "components": []}))
    sign_sums(made.workshop)


def chart_described_otherwise(made: Made) -> None:
    made.file(CHART_BILL).write_text(json.dumps({**read_json(made.file(CHART_BILL)), "version": 2}))
    sign_sums(made.workshop)


def chart_of_another_image(made: Made) -> None:
    reference = made.workshop.tools(
        "oras", "resolve", "--plain-http", f"{made.workshop.registry}/{IMAGES[1].name}:{VERSION}"
    )
    bom = {**BILL, "components": [operator_component(VERSION, reference.strip())]}
    made.file(CHART_BILL).write_text(json.dumps(bom))
    sign_sums(made.workshop)


def archive_of_another_bill(made: Made) -> None:
    shutil.copy(made.file(PLATFORMS[0].bill(VERSION)), made.file(PLATFORMS[-1].bill(VERSION)))
    sign_sums(made.workshop)


def without_an_archive(made: Made) -> None:
    made.file(PLATFORMS[0].archive(VERSION)).unlink()
    sign_sums(made.workshop)


def without_the_page(made: Made) -> None:
    made.file(README).unlink()
    sign_sums(made.workshop)


def without_provenance(made: Made) -> None:
    made.file(f"{IMAGE}-{{version}}.intoto.json").unlink()
    sign_sums(made.workshop)


def without_the_bill_of_the_chart(made: Made) -> None:
    made.file(CHART_BILL).unlink()
    sign_sums(made.workshop)


def without_the_bill_of_an_archive(made: Made) -> None:
    made.file(PLATFORMS[-1].bill(VERSION)).unlink()
    sign_sums(made.workshop)


def of_another_image(made: Made) -> None:
    other = made.file(f"{IMAGES[1].name}-{{version}}.oci.tar")  # signed and attested, but not this image
    shutil.copy(other, made.file(f"{IMAGE}-{{version}}.oci.tar"))
    sign_sums(made.workshop)


def unsigned(made: Made) -> None:
    archive = made.file(f"{IMAGE}-{{version}}.oci.tar")
    archive.unlink()
    tag = f"{made.workshop.registry}/{IMAGE}:{VERSION}"
    made.workshop.tools("oras", "backup", "--plain-http", "--output", archive, tag)
    sign_sums(made.workshop)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (flipped, rf"{IMAGE}-{VERSION}\.oci\.tar as {SUMS} lists it"),
        (edited_with_new_sums, rf"{SUMS} to be signed by"),
        (described_otherwise, rf"the {BOM_TYPE} of {IMAGE} as it lies here"),
        (chart_described_otherwise, rf"the {BOM_TYPE} of charts/{CHART.name} as it lies here"),
        (without_the_bill_of_the_chart, rf"{CHART.name}-chart-{VERSION}\.cdx\.json in the release"),
        (without_the_bill_of_an_archive, rf"{PLATFORMS[-1].bill(VERSION)} in the release"),
        (chart_of_another_image, r"the operator's image \S+ in the SBOM of the chart"),
        (archive_of_another_bill, rf"{PLATFORMS[-1].bill(VERSION)} of the archive"),
        (without_an_archive, rf"{PLATFORMS[0].archive(VERSION)} in the release"),
        (without_the_page, rf"{README} in the release"),
        (without_provenance, rf"{IMAGE}-{VERSION}\.intoto\.json in the release"),
        (of_another_image, rf"provenance of \S+/{IMAGE}@"),
        (unsigned, rf"/{IMAGE}@\S+ to be signed by"),
    ],
)
def test_a_release_that_was_changed_is_refused_and_the_part_is_named(
    made: Made, change: Callable[[Made], None], named: str
) -> None:
    change(made)
    with pytest.raises(LabError, match=named):
        verify(made.folder, key=made.key)
