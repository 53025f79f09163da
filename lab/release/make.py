"""Make a release: every image is built twice and compared, then signed, described and packed, all on this machine."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lab import paths
from lab.errors import LabError
from lab.images import OPERATOR, TRAINER, Built, Image
from lab.images.builder import Builder
from lab.images.catalogue import Base
from lab.images.packages import Packages, require_pinned
from lab.process import run
from lab.progress import say, step
from lab.release import plugin
from lab.release.note import README, readme, torch_note
from lab.release.provenance import PREDICATE_TYPE, Json, Source, Subject, statement
from lab.release.sbom import bill, carried, component, locked, require_named
from lab.release.tools import Tools, registry, tools

IMAGES = (OPERATOR, TRAINER)
REQUIREMENTS = paths.ROOT / "requirements" / "operator.txt"
CHART = paths.ROOT / "helm" / "precision-operator"
RELEASES = paths.BUILD / "release"
SUMS = "SHA256SUMS"
SUMS_BUNDLE = f"{SUMS}.sigstore.json"
PUBLIC_KEY = "cosign.pub"
OFFLINE_SIGN = (
    "--yes",
    "--signing-config",
    paths.ROOT / "lab" / "release" / "signing-config.json",
    "--trusted-root",
    paths.ROOT / "lab" / "release" / "trusted-root.json",
)
"""By a key alone: no transparency log, no certificate authority and no time stamp is asked for."""
BOM_TYPE = "https://cyclonedx.org/bom"
CHART_BILL = f"{CHART.name}-chart-{{version}}.cdx.json"

PLAIN_HTTP = "--allow-http-registry"


@dataclass(frozen=True)
class Workshop:
    """What every step of making a release uses."""

    tools: Tools
    registry: str
    target: Path
    key: Path
    source: Source

    def name(self, kind: str) -> Path:
        """The file of the release that is called so."""
        return self.target / kind.format(version=self.source.version)


def make(*, key: Path | None) -> Path:
    """Make the release of the commit that is checked out; return its folder.

    One of the same version that was made before stays as it is until this one is whole.

    Args:
        key: cosign's private key; None: this user's own, which is made where there is none.

    Raises:
        LabError: the tree holds what is in no commit, the changelog lacks the version, Debian's packages are not the
            pinned ones, or two builds differ.
    """
    source = _source()
    programs = tools(making=True)
    RELEASES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="making-", dir=RELEASES) as scratch:
        made = Path(scratch) / source.version
        made.mkdir()
        _fill(made, source, programs, key=key)
        target = RELEASES / source.version
        shutil.rmtree(target, ignore_errors=True)
        return made.rename(target)


def _fill(target: Path, source: Source, programs: Tools, *, key: Path | None) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="registry-", dir=RELEASES) as served,
        registry(programs, Path(served)) as address,
    ):
        workshop = Workshop(programs, address, target, key or _own_key(programs), source)
        export_key(workshop)
        packages = {image: _release_image(workshop, image) for image in IMAGES}
        _release_chart(workshop)
    for platform in plugin.PLATFORMS:
        _release_plugin(workshop, platform)
    (target / README).write_text(readme(source.version, packages[TRAINER]))
    sign_sums(workshop)
    say(torch_note(packages[TRAINER]))


def _source() -> Source:
    changed = run(["git", "status", "--porcelain"], cwd=paths.ROOT).stdout.strip()
    if changed:
        raise LabError("a tree that is committed whole", changed.splitlines()[0].strip(), "commit, or stash it")
    commit = run(["git", "rev-parse", "HEAD"], cwd=paths.ROOT).stdout.strip()
    chart = (CHART / "Chart.yaml").read_text().splitlines()
    version = next(line.split()[1] for line in chart if line.startswith("version:"))
    require_changes(version, (paths.ROOT / "CHANGELOG.md").read_text())
    return Source(version, commit)


def require_changes(version: str, changelog: str) -> None:
    """Refuse a version of which the changelog says nothing.

    Raises:
        LabError: it names the heading that is missing.
    """
    heading = f"## [{version}]"
    if not any(line.startswith(heading) for line in changelog.splitlines()):
        raise LabError(
            f"a section {heading} in CHANGELOG.md",
            "none",
            f"write {heading} - and the date above what it brings; commit",
        )


def _own_key(programs: Tools) -> Path:
    folder = paths.own_key()
    if not (folder / "cosign.key").exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        programs("cosign", "generate-key-pair", cwd=folder)
        say(f"made a signing key: {folder}/cosign.key; keep it, and pass KEY= to use another")
    return folder / "cosign.key"


def export_key(workshop: Workshop) -> None:
    """Lay the public key beside what it signs."""
    public = workshop.tools("cosign", "public-key", "--key", workshop.key)
    (workshop.target / PUBLIC_KEY).write_text(public)


def _release_image(workshop: Workshop, image: Image) -> Packages:
    """Return the packages of its base."""
    started = datetime.now(UTC)
    with _builders(workshop.source.version) as builders:
        built = [_built(builder, image) for builder in builders]
        pairs = zip(builders, built, strict=True)
        require_equal(image.name, [builder.layout.blobs(item.layout_reference) for builder, item in pairs])
        say(f"{image.name}: built twice, equal")
        tag = f"{workshop.registry}/{image.name}:{workshop.source.version}"
        subject = Subject(image.name, builders[0].push(built[0], tag))
        packages = _require_base(builders[0], image)
    reference = f"{workshop.registry}/{image.name}@{subject.digest}"
    origin = statement(
        subject,
        source=workshop.source,
        image=image,
        packages=packages,
        started=started,
        finished=datetime.now(UTC),
    )
    with step(f"describe and sign {image.name}"):
        bom = workshop.name(f"{image.name}-{{version}}.cdx.json")
        named = ("--source-name", image.name, "--source-version", workshop.source.version)
        workshop.tools("syft", "scan", f"registry:{reference}", *named, "-o", f"cyclonedx-json={bom}")
        described = json.loads(bom.read_text())
        # On Debian's torch nothing of the trainer's lock is installed: its base has all of it.
        requirements = locked(REQUIREMENTS) if image is OPERATOR else {}
        require_named(image.name, described, packages=packages, requirements=requirements)
        sign(workshop, reference)
        attest(workshop, reference, kind=BOM_TYPE, predicate=described)
        _write(workshop.name(f"{image.name}-{{version}}.intoto.json"), origin)
        attest(workshop, reference, kind=PREDICATE_TYPE, predicate=origin["predicate"])
    pack(workshop, tag, workshop.name(f"{image.name}-{{version}}.oci.tar"))
    return packages


def _require_base(builder: Builder, image: Image) -> Packages:
    """Return the packages of an image's base, where they are the pinned ones."""
    assert isinstance(image.base, Base), f"{image.name} stands on a base"
    packages = builder.root(image.base)
    require_pinned(image.base, packages)
    return packages


def _built(builder: Builder, image: Image) -> Built:
    _require_base(builder, image)
    return builder.build(image)


@contextmanager
def _builders(version: str) -> Iterator[tuple[Builder, Builder]]:
    """Two that share nothing."""
    RELEASES.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="first-", dir=RELEASES) as first,
        tempfile.TemporaryDirectory(prefix="second-", dir=RELEASES) as second,
    ):
        yield Builder(Path(first), version=version), Builder(Path(second), version=version)


def require_equal(name: str, builds: Sequence[Sequence[str]]) -> None:
    """Refuse two builds of one image that differ; each is given by the digests of its configuration and layers.

    Raises:
        LabError: it names the first that differs.
    """
    first, second = builds
    for index, (one, other) in enumerate(zip(first, second, strict=True)):
        if one != other:
            part = "configuration" if index == 0 else f"layer {index} of {len(first) - 1}"
            raise LabError(
                f"two builds of {name} to be equal",
                f"another {part}: {one} and {other}",
                "build it twice by `lab.images.builder.Builder`, and compare the two blobs",
            )


def sign(workshop: Workshop, reference: str) -> None:
    """Sign what the registry has under that digest."""
    workshop.tools("cosign", "sign", "--key", workshop.key, *OFFLINE_SIGN, PLAIN_HTTP, reference)


def attest(workshop: Workshop, reference: str, *, kind: str, predicate: object) -> None:
    """Sign a statement about what the registry has under that digest."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(predicate, file)
        file.flush()
        options = ("--key", workshop.key, "--type", kind, "--predicate", file.name)
        workshop.tools("cosign", "attest", *options, *OFFLINE_SIGN, PLAIN_HTTP, reference)


def _release_chart(workshop: Workshop) -> None:
    with tempfile.TemporaryDirectory() as folder, step("chart"):
        workshop.tools("helm", "package", CHART, "--destination", folder)
        (archive,) = Path(folder).iterdir()
        workshop.tools("helm", "push", archive, f"oci://{workshop.registry}/charts", "--plain-http")
        version = workshop.source.version
        tag = f"{workshop.registry}/charts/{CHART.name}:{version}"
        digest, named = (_digest(workshop, name) for name in (tag, f"{workshop.registry}/{OPERATOR.name}:{version}"))
        # The one image that its values name by default.
        images = [operator_component(version, named)]
        described = bill(component("application", CHART.name, version, digest), images)
        _write(workshop.name(CHART_BILL), described)
        reference = f"{workshop.registry}/charts/{CHART.name}@{digest}"
        sign(workshop, reference)
        attest(workshop, reference, kind=BOM_TYPE, predicate=described)
    pack(workshop, tag, workshop.name(f"{CHART.name}-chart-{{version}}.oci.tar"))


def operator_component(version: str, digest: str) -> Json:
    """The operator's image of a release as the SBOM of the chart names it."""
    return component("container", OPERATOR.name, version, digest)


def archive_hashes(archive: Path) -> list[Json]:
    """The checksum of an archive as its SBOM has it."""
    return [{"alg": "SHA-256", "content": sha256(archive)}]


def _digest(workshop: Workshop, tag: str) -> str:
    return workshop.tools("oras", "resolve", "--plain-http", tag).strip()


def _write(file: Path, document: Json) -> None:
    file.write_text(json.dumps(document, indent=1) + "\n")


def _release_plugin(workshop: Workshop, platform: plugin.Platform) -> None:
    version = workshop.source.version
    with tempfile.TemporaryDirectory(prefix="again-", dir=RELEASES) as folder:
        first, second = (plugin.build(platform, version, where) for where in (workshop.target, Path(folder)))
        if sha256(first) != sha256(second):
            raise LabError(f"two builds of {first.name} to be equal", "they differ", "compare two by `tar --list -v`")
    subject: Json = {"type": "application", "name": plugin.PROGRAM, "version": version}
    subject["hashes"] = archive_hashes(first)
    described = bill(subject, carried(first))
    require_named(first.name, described, packages={}, requirements=locked(plugin.LOCK))
    _write(workshop.target / platform.bill(version), described)
    say(f"{first.name}: built twice, equal")


def pack(workshop: Workshop, tag: str, archive: Path) -> None:
    """Write an OCI archive, with all that was signed and attested."""
    with step(f"pack {archive.name}"):
        workshop.tools("oras", "backup", "--plain-http", "--include-referrers", "--output", archive, tag)


def sign_sums(workshop: Workshop) -> None:
    """Write the checksums of all files, and sign them."""
    sums = workshop.target / SUMS
    files = sorted(path for path in workshop.target.iterdir() if path.name not in (SUMS, SUMS_BUNDLE))
    sums.write_text("".join(f"{sha256(path)}  {path.name}\n" for path in files))
    bundle = ("--bundle", workshop.target / SUMS_BUNDLE)
    workshop.tools("cosign", "sign-blob", "--key", workshop.key, *OFFLINE_SIGN, *bundle, sums)
    (workshop.target / SUMS_BUNDLE).chmod(0o644)  # cosign lets nobody else read it


def read_sums(folder: Path) -> dict[str, str]:
    """The checksums of a release by the names of its files."""
    lines = (line.partition("  ") for line in (folder / SUMS).read_text().splitlines())
    return {name: checksum for checksum, _, name in lines}


def sha256(path: Path) -> str:
    """The checksum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
