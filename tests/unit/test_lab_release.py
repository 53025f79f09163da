"""Of a release: what pins a base, what two builds must share, what an image's statement says, what checksums refuse."""

import io
import json
import shlex
import tarfile
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lab import paths
from lab.errors import CommandFailed, LabError
from lab.images import OPERATOR, TRAINER, Image, packages
from lab.images.builder import Builder, plain_http
from lab.images.catalogue import PYTHON, Base
from lab.images.layout import Layout
from lab.images.packages import Package, packages_of, pin, pinned, require_pinned
from lab.release import __main__ as command
from lab.release import publish
from lab.release import tools as programs
from lab.release.make import CHART_BILL, IMAGES, SUMS, require_equal, sha256
from lab.release.plugin import PLATFORMS, write_archive
from lab.release.provenance import Source, Subject, statement
from lab.release.publish import install_commands, push_release, require_registry
from lab.release.sbom import carried, component, locked, require_named
from lab.release.verify import require_archives, require_files, require_named_image, require_subject, require_sums

DPKG_STATUS = """\
Package: libc6
Status: install ok installed
Version: 2.41-12
Description: GNU C Library
 Version: in a description

Package: python3
Version: 3.13.5-1
"""
INDEX = """\
Package: libc6
Version: 2.41-11
SHA256: aaaa

Package: libc6
Version: 2.41-12
SHA256: bbbb

Package: python3
Version: 3.13.5-1
SHA256: cccc
"""
FOUND = {"libc6": Package("2.41-12", "bbbb"), "python3": Package("3.13.5-1", "cccc")}
SUBJECT = Subject("precision-operator", "sha256:abcd")


def root(folder: Path) -> Path:
    file = folder / "root.tar"
    with tarfile.open(file, "w") as tar:
        info = tarfile.TarInfo("./var/lib/dpkg/status")
        info.size = len(DPKG_STATUS.encode())
        tar.addfile(info, io.BytesIO(DPKG_STATUS.encode()))
    return file


def release(folder: Path, version: str = "") -> Path:
    """``version``: of its files; else the folder's name, as it must be."""
    files = [folder / "chart.tar", folder / f"{TRAINER.name}-{version or folder.name}.oci.tar"]
    for file in files:
        file.write_text(file.name)
    (folder / SUMS).write_text("".join(f"{sha256(file)}  {file.name}\n" for file in files))
    return folder


def test_a_package_has_the_checksum_that_the_index_gives_its_installed_version(tmp_path: Path) -> None:
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "archive_main_binary-amd64_Packages").write_text(INDEX)
    assert packages_of(root(tmp_path), lists) == FOUND


def test_a_base_that_holds_what_is_pinned_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "PINS", tmp_path / "bases.json")
    pin({PYTHON: FOUND})
    assert pinned(PYTHON) == FOUND
    require_pinned(PYTHON, FOUND)


@pytest.mark.parametrize(
    ("found", "named"),
    [
        (FOUND | {"libc6": Package("2.41-13", "dddd")}, "libc6 2.41-13"),
        (FOUND | {"libc6": Package("2.41-12", "dddd")}, "libc6 2.41-12 (dddd)"),
        (FOUND | {"curl": Package("8", "eeee")}, "curl 8"),
        ({"libc6": FOUND["libc6"]}, "python3 none"),
    ],
)
def test_a_base_with_another_package_is_refused_by_name(
    found: dict[str, Package], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "pinned", lambda base: FOUND)
    with pytest.raises(LabError, match=r"python -m lab\.release pin") as refused:
        require_pinned(PYTHON, found)
    assert named in refused.value.found


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.name)
def test_the_base_of_every_released_image_is_pinned(image: Image) -> None:
    assert isinstance(image.base, Base)
    assert set(image.base.packages) <= pinned(image.base).keys()


def test_two_equal_builds_are_taken() -> None:
    require_equal("operator", [["sha256:c", "sha256:1"], ["sha256:c", "sha256:1"]])


@pytest.mark.parametrize(
    ("second", "named"), [(["sha256:d", "sha256:1"], "configuration"), (["sha256:c", "sha256:2"], "layer 1 of 1")]
)
def test_two_builds_that_differ_are_refused_with_the_part_that_differs(second: list[str], named: str) -> None:
    with pytest.raises(LabError, match="two builds of operator to be equal") as refused:
        require_equal("operator", [["sha256:c", "sha256:1"], second])
    assert named in refused.value.found


def bill(*components: tuple[str, str], form: str = "CycloneDX") -> dict[str, object]:
    named = [{"type": "library", "name": name, "version": version} for name, version in components]
    return {"bomFormat": form, "specVersion": "1.6", "components": named}


NAMED = [("libc6", "2.41-12"), ("python3", "3.13.5-1"), ("PyYAML", "6.0.3"), ("zope.interface", "8.0")]


def test_a_bill_that_names_all_that_is_in_its_image_is_taken(tmp_path: Path) -> None:
    lock = tmp_path / "operator.txt"
    lock.write_text(
        "pyyaml==6.0.3 \\\n    --hash=sha256:ab\nzope-interface==8.0 \\\n    --hash=sha256:cd\n"
        "cffi==2.1.1 ; platform_python_implementation != 'PyPy' \\\n    --hash=sha256:ef\n"
    )
    assert locked(lock) == {"pyyaml": "6.0.3", "zope-interface": "8.0"}
    require_named("operator", bill(*NAMED), packages=FOUND, requirements=locked(lock))


@pytest.mark.parametrize(
    ("bom", "named"),
    [
        (bill(*NAMED[1:]), "libc6 2.41-12"),
        (bill(*NAMED[:2]), "pyyaml 6.0.3"),
        (bill(("libc6", "2.41-11"), *NAMED[1:]), "libc6 2.41-12"),
        (bill(), "libc6 2.41-12, python3 3.13.5-1, pyyaml 6.0.3 missing"),
        (bill(*NAMED, form="SPDX"), "SPDX"),
        ({}, "CycloneDX"),
    ],
)
def test_a_bill_that_lacks_what_is_in_its_image_is_refused(bom: dict[str, object], named: str) -> None:
    with pytest.raises(LabError, match=named):
        require_named("operator", bom, packages=FOUND, requirements={"pyyaml": "6.0.3"})


@pytest.mark.parametrize(
    ("lines", "licences"),
    [
        ("License-Expression: MIT AND Apache-2.0\nLicense: old", [{"expression": "MIT AND Apache-2.0"}]),
        ("License: BSD", [{"license": {"name": "BSD"}}]),
        (
            "License: The whole\n        text\nClassifier: License :: OSI Approved :: MIT License\nClassifier: Topic :: A",
            [{"license": {"name": "MIT License"}}],
        ),
        ("", []),
    ],
    ids=["expression", "name", "text", "none"],
)
def test_an_archive_is_described_by_the_metadata_in_it(tmp_path: Path, lines: str, licences: list[object]) -> None:
    for python in ("cp311", "cp312"):
        file = tmp_path / "tree" / "lib" / python / "some_thing-1.2.dist-info" / "METADATA"
        file.parent.mkdir(parents=True)
        file.write_text(f"Metadata-Version: 2.4\nName: Some.Thing\nVersion: 1.2\n{lines}\n\nName: not a header\n")
    write_archive(tmp_path / "tree", tmp_path / "archive.tar.gz")
    found = carried(tmp_path / "archive.tar.gz")
    package = {"type": "library", "name": "Some.Thing", "version": "1.2", "purl": "pkg:pypi/some-thing@1.2"}
    assert found == [{**package, "licenses": licences}]


def test_a_layout_names_an_image_by_its_configuration_and_layers(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    (tmp_path / "layout").mkdir()
    layout.add_root("base", root(tmp_path))
    configuration, layer = layout.blobs("base")
    assert layer == f"sha256:{sha256(tmp_path / 'root.tar')}"
    assert configuration != layer


def test_a_statement_names_image_commit_lock_and_packages() -> None:
    made = statement(
        SUBJECT,
        source=Source("1.2.3", "c0ffee"),
        image=OPERATOR,
        packages=FOUND,
        started=datetime(2026, 1, 1, tzinfo=UTC),
        finished=datetime(2026, 1, 2, tzinfo=UTC),
    )
    assert made["subject"] == [{"name": "precision-operator", "digest": {"sha256": "abcd"}}]
    text = str(made["predicate"])
    for expected in ("c0ffee", "requirements/operator.txt", "pkg:deb/debian/libc6@2.41-12?distro=trixie", "1.2.3"):
        assert expected in text
    require_subject(made, "127.0.0.1:1/precision-operator@sha256:abcd")


def test_a_statement_about_another_image_is_refused() -> None:
    made = {"subject": [{"name": "other", "digest": {"sha256": "ffff"}}]}
    with pytest.raises(LabError, match="ffff"):
        require_subject(made, "127.0.0.1:1/precision-operator@sha256:abcd")


def test_a_release_that_is_whole_is_taken(tmp_path: Path) -> None:
    require_sums(release(tmp_path))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda folder: (folder / "chart.tar").write_text("other"), "chart.tar"),
        (lambda folder: (folder / "chart.tar").unlink(), "missing"),
        (lambda folder: (folder / "more").write_text("more"), "unlisted"),
        (lambda folder: (folder / SUMS).unlink(), "no SHA256SUMS"),
    ],
    ids=["changed", "missing", "added", "no sums"],
)
def test_a_release_that_is_not_what_its_checksums_list_is_refused(
    change: Callable[[Path], object], named: str, tmp_path: Path
) -> None:
    change(release(tmp_path))
    with pytest.raises(LabError, match=named):
        require_sums(tmp_path)


PARTS = [
    *(f"{image.name}-1.2.3.{kind}" for image in IMAGES for kind in ("oci.tar", "cdx.json", "intoto.json")),
    *("precision-operator-chart-1.2.3.oci.tar", CHART_BILL.format(version="1.2.3"), "README.md"),
    *(name for platform in PLATFORMS for name in (platform.archive("1.2.3"), platform.bill("1.2.3"))),
]


@pytest.mark.parametrize("lacking", ["", *PARTS])
def test_a_release_that_lacks_a_part_is_refused_by_name(tmp_path: Path, lacking: str) -> None:
    folder = tmp_path / "1.2.3"
    folder.mkdir()
    for name in set(PARTS) - {lacking}:
        (folder / name).touch()
    with pytest.raises(LabError, match=f"{lacking} in the release") if lacking else nullcontext():
        require_files(folder)


def described_archives(folder: Path) -> Path:
    """The archives of a release, each with the part of its SBOM that says whose it is."""
    for platform in PLATFORMS:
        archive = folder / platform.archive(folder.name)
        archive.write_text(platform.os + platform.arch)
        described = {"metadata": {"component": {"hashes": [{"alg": "SHA-256", "content": sha256(archive)}]}}}
        (folder / platform.bill(folder.name)).write_text(json.dumps(described))
    return folder


def test_an_archive_with_the_bill_of_itself_is_taken(tmp_path: Path) -> None:
    require_archives(described_archives(tmp_path))


def test_an_archive_with_the_bill_of_another_is_refused(tmp_path: Path) -> None:
    folder = described_archives(tmp_path)
    first, *_, last = (folder / platform.bill(folder.name) for platform in PLATFORMS)
    last.write_text(first.read_text())
    with pytest.raises(LabError, match=f"{last.name} of the archive"):
        require_archives(folder)


def test_a_bill_that_names_no_archive_is_refused(tmp_path: Path) -> None:
    folder = described_archives(tmp_path)
    (folder / PLATFORMS[0].bill(folder.name)).write_text("{}")
    with pytest.raises(LabError, match="of another one: None"):
        require_archives(folder)


@pytest.mark.parametrize(("named", "taken"), [(["sha256:ab"], True), (["sha256:cd"], False), ([], False)])
def test_a_chart_whose_bill_names_another_image_of_the_operator_is_refused(named: list[str], *, taken: bool) -> None:
    described = {"components": [component("container", OPERATOR.name, "1.2.3", digest) for digest in named]}
    with nullcontext() if taken else pytest.raises(LabError, match="sha256:ab in the SBOM of the chart"):
        require_named_image(described, "1.2.3", "sha256:ab")


class Cosign:
    """Answers as cosign does for a release that another key signed, or that this one did; keeps what it was asked."""

    def __init__(self, *, forged: bool) -> None:
        self.forged = forged
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, *words: str | Path, cwd: Path | None = None) -> str:
        self.asked.append(tuple(map(str, words)))
        if self.forged and words[0] == "cosign":
            raise CommandFailed("cosign verify-blob", 1, "Error: invalid signature")
        return ""


@pytest.fixture
def cosign(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Cosign:
    found = Cosign(forged=getattr(request, "param", False))
    monkeypatch.setattr(publish, "tools", lambda making: found)
    return found


def test_a_release_in_a_folder_that_is_not_named_as_its_version_is_refused_with_the_name_that_it_must_have(
    tmp_path: Path, cosign: Cosign
) -> None:
    folder = tmp_path / "downloads"
    folder.mkdir()
    with pytest.raises(LabError, match=r"named as its version, 1\.2\.3") as refused:
        push_release(release(folder, "1.2.3"), "127.0.0.1:1", key=Path("/cosign.pub"))
    assert "downloads" in refused.value.found
    assert [words[0] for words in cosign.asked] == ["cosign"]


@pytest.mark.parametrize("cosign", [True], indirect=True, ids=["forged"])
@pytest.mark.parametrize(
    "publishes",
    [
        lambda folder, key: push_release(folder, "127.0.0.1:1", key=key),
        lambda folder, key: publish.write_manifest(folder, "https://example.invalid/{file}", key=key),
    ],
    ids=["push", "krew"],
)
def test_a_release_that_the_trusted_key_did_not_sign_is_neither_pushed_nor_named_to_krew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cosign: Cosign, publishes: Callable[[Path, Path], object]
) -> None:
    monkeypatch.setattr(publish, "MANIFEST", tmp_path / "krew" / "precision.yaml")
    folder = tmp_path / "1.2.3"
    folder.mkdir()
    with pytest.raises(LabError, match=f"{SUMS} to be signed by"):
        publishes(release(folder), tmp_path / "cosign.pub")
    assert [words[:2] for words in cosign.asked] == [("cosign", "verify-blob")]
    assert not publish.MANIFEST.exists()


def test_a_key_is_found_where_the_command_was_given_and_never_in_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cosign: Cosign
) -> None:
    folder = tmp_path / "release" / "1.2.3"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    push_release(release(folder), "127.0.0.1:1", key=Path("cosign.pub"))
    assert str(tmp_path / "cosign.pub") in cosign.asked[0]


@pytest.mark.parametrize(
    ("key", "said"), [(None, "who made it was not checked"), (Path("/cosign.pub"), "signed by /cosign.pub")]
)
def test_a_release_that_was_checked_by_its_own_key_is_not_called_verified(
    tmp_path: Path, cosign: Cosign, capsys: pytest.CaptureFixture[str], key: Path | None, said: str
) -> None:
    push_release(release(tmp_path), "127.0.0.1:1", key=key)
    printed = capsys.readouterr()
    words = " ".join((printed.out + printed.err).split())
    assert said in words
    assert ("who made it was not checked" in words) is (key is None)


@pytest.mark.parametrize(("arguments", "said"), [([], "who made it was not checked"), (["--key", "k.pub"], "verified")])
def test_verify_says_verified_only_of_a_key_that_was_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.setattr(command, "verify", lambda folder, key: None)
    monkeypatch.setattr("sys.argv", ["release", "verify", str(release(tmp_path)), *arguments])
    assert command.main() == 0
    printed = capsys.readouterr()
    last = " ".join((printed.out + printed.err).split())
    assert said in last
    assert ("verified" in last) is bool(arguments)


@pytest.mark.parametrize("words", [["make"], ["pin"], ["push", "--registry", "host/path"]])
def test_a_node_is_refused_before_an_image_is_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    def node() -> None:
        raise LabError("a machine that is no Kubernetes node", "signs of another cluster", "use another machine")

    monkeypatch.setattr(command, "require_machine", node)
    monkeypatch.setattr("sys.argv", ["release", *words])
    assert command.main() == 1
    printed = capsys.readouterr()
    assert "signs of another cluster" in printed.out + printed.err


def test_a_fresh_clone_has_its_bases_pinned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found: dict[Base, object] = {}
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    monkeypatch.setattr(command, "require_machine", lambda: None)
    monkeypatch.setattr(Builder, "root", lambda self, base: FOUND)
    monkeypatch.setattr(command, "pin", found.update)
    monkeypatch.setattr("sys.argv", ["release", "pin"])
    assert command.main() == 0
    assert found.keys() == {image.base for image in IMAGES}


@pytest.mark.parametrize(("making", "compiled"), [(False, ["signing"]), (True, ["kubernetes", "signing", "listing"])])
def test_only_making_a_release_compiles_kubernetes_and_what_lists_an_image(
    monkeypatch: pytest.MonkeyPatch, making: bool, compiled: list[str]
) -> None:
    asked: list[str] = []

    def compile_of(name: str) -> Path:
        asked.append(name)
        return Path("/programs")

    monkeypatch.setattr(programs, "kube_binaries", lambda: compile_of("kubernetes"))
    monkeypatch.setattr(programs, "_compiled", lambda module, _: compile_of(module))
    programs.tools(making=making)
    assert asked == compiled


ROOT = Path(__file__).parents[2]


def test_make_install_runs_what_the_readme_shows() -> None:
    block = (ROOT / "README.md").read_text().split("## On your cluster")[1].split("```sh\n")[1].split("```")[0]
    shown = [shlex.split(line) for line in block.replace("\\\n", " ").splitlines() if line.startswith("helm ")]
    assert install_commands(registry="host/path") == shown


def test_an_address_of_prometheus_becomes_the_charts_value() -> None:
    first, _ = install_commands(registry="host/path", prometheus="http://p:9090")
    assert first[-2:] == ["--set", "config.prometheus.default.url=http://p:9090"]


def test_without_a_registry_the_command_is_named() -> None:
    with pytest.raises(LabError, match="make push REGISTRY=host/path"):
        require_registry("", "push")


@pytest.mark.parametrize(
    ("name", "plain"),
    [("localhost:5000/a", True), ("127.0.0.1:1/a", True), ("host/path", False), ("localhost.org/a", False)],
)
def test_only_a_registry_on_this_machine_is_asked_without_tls(name: str, plain: bool) -> None:
    assert plain_http(name) is plain
