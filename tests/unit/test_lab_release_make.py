"""Making a release: what it says of itself. Nothing is built here: tests/release has real ones."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from lab import paths
from lab.errors import LabError
from lab.images import Image
from lab.images.catalogue import TORCH
from lab.images.packages import Package, Packages, pinned
from lab.release import make as making
from lab.release import note, plugin
from lab.release.make import CHART_BILL, Workshop, read_sums
from lab.release.note import README, SAFE_LOAD_FLOOR, torch_note
from lab.release.provenance import Source
from lab.release.verify import require_archives

ROOT = Path(__file__).parents[2]
OLD = {note.TORCH: Package("2.6.0+dfsg-7", "aaaa")}
DIGESTS = {"precision-operator:1.2.3": "sha256:aaaa", "charts/precision-operator:1.2.3": "sha256:bbbb"}
Makes = Callable[..., Path]


@pytest.fixture
def makes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Makes:
    """Makes a release of small files by no real program; ``fails``: no image comes to be."""

    def program(name: str, *words: str | Path, **of: object) -> str:
        if words[0] == "sign-blob":
            Path(words[words.index("--bundle") + 1]).touch()
        if words[0] == "generate-key-pair":
            (Path(str(of["cwd"])) / "cosign.key").touch()
        if words[0] == "package":
            (Path(words[-1]) / "chart.tgz").touch()
        if words[0] == "resolve":
            return DIGESTS[str(words[-1]).removeprefix("127.0.0.1:1/")] + "\n"
        return ""

    @contextmanager
    def registry(*_: object) -> Iterator[str]:
        yield "127.0.0.1:1"

    def image(workshop: Workshop, image: Image, *, fails: bool) -> Packages:
        if fails:
            raise LabError("two builds to be equal", "they differ", "compare them")
        workshop.name(f"{image.name}-{{version}}.oci.tar").write_text(workshop.source.commit)
        workshop.name(f"{image.name}-{{version}}.cdx.json").touch()
        return OLD

    def archive(platform: plugin.Platform, version: str, folder: Path) -> Path:
        made = folder / platform.archive(version)
        plugin.write_archive(tmp_path / "tree", made)
        return made

    def make(commit: str = "c0ffee", *, key: Path | None = Path("cosign.key"), fails: bool = False) -> Path:
        monkeypatch.setattr(making, "_source", lambda: Source("1.2.3", commit))
        monkeypatch.setattr(making, "_release_image", lambda *words: image(*words, fails=fails))
        return making.make(key=key)

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(making, "RELEASES", tmp_path / "release")
    monkeypatch.setattr(making, "tools", lambda **_: program)
    monkeypatch.setattr(making, "registry", registry)
    monkeypatch.setattr(plugin, "build", archive)
    monkeypatch.setattr(plugin, "LOCK", tmp_path / "plugin.txt")
    plugin.LOCK.write_text("some-thing==1.2\n")
    metadata = tmp_path / "tree" / "lib" / "any" / "some_thing-1.2.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Name: some-thing\nVersion: 1.2\nLicense-Expression: MIT\n")
    return make


def test_a_release_whose_torch_is_below_the_trainers_floor_says_that_it_is_not_for_production(
    makes: Makes, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = makes()
    text = (folder / README).read_text()
    assert "not for production" in text
    assert "2.6.0+dfsg-7" in text
    assert "is below 2.10 (CVE-2026-24747)" in text
    assert README in read_sums(folder)
    printed = capsys.readouterr()
    assert "not for production" in " ".join((printed.out + printed.err).split())


def test_a_torch_that_reaches_the_floor_has_no_known_flaw_and_is_on_cpu_still() -> None:
    text = torch_note({note.TORCH: Package("2.10.0-1", "aaaa")})
    assert "CVE" not in text
    assert "on CPU" in text


def test_a_base_without_the_torch_that_the_note_is_about_is_refused() -> None:
    with pytest.raises(LabError, match=note.TORCH):
        torch_note({})


def test_the_pinned_base_of_the_trainer_has_the_torch_that_the_note_is_about() -> None:
    assert torch_note(pinned(TORCH))


def test_the_floor_is_the_trainers() -> None:
    lines = ast.parse((ROOT / "trainer_image" / "precision_trainer" / "compat.py").read_text()).body
    floors = [
        ast.literal_eval(line.value)
        for line in lines
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "SAFE_LOAD_FLOOR"
    ]
    assert floors == [SAFE_LOAD_FLOOR]


def test_a_release_takes_the_place_of_an_older_one_of_its_version(makes: Makes) -> None:
    makes("older")
    folder = makes("newer")
    assert {path.read_text() for path in folder.glob("*.oci.tar")} == {"newer"}
    assert list(folder.parent.iterdir()) == [folder]


def test_a_release_that_fails_leaves_the_one_before_as_it_was(makes: Makes) -> None:
    folder = makes("older")
    with pytest.raises(LabError, match="two builds"):
        makes("newer", fails=True)
    assert {path.read_text() for path in folder.glob("*.oci.tar")} == {"older"}
    assert list(folder.parent.iterdir()) == [folder]


def test_the_key_that_signs_is_made_once_and_outside_of_what_clean_removes(makes: Makes, tmp_path: Path) -> None:
    makes(key=None)
    (key,) = tmp_path.glob("config/genesis-precision/*/cosign.key")
    key.write_text("first")
    makes(key=None)
    assert key.read_text() == "first"
    assert paths.BUILD not in paths.own_key().parents


def test_every_part_of_a_release_has_a_bill_of_materials_whose_checksum_is_signed(makes: Makes) -> None:
    folder = makes()
    require_archives(folder)
    assert {file.name for file in folder.glob("*.cdx.json")} <= read_sums(folder).keys()


def test_the_bill_of_the_chart_names_the_image_of_its_values_by_digest(makes: Makes) -> None:
    bill = json.loads((makes() / CHART_BILL.format(version="1.2.3")).read_text())
    chart, (image,) = bill["metadata"]["component"], bill["components"]
    assert chart["purl"] == "pkg:oci/precision-operator@sha256%3Abbbb?tag=1.2.3"
    assert image["purl"] == "pkg:oci/precision-operator@sha256%3Aaaaa?tag=1.2.3"
    assert yaml.safe_load((making.CHART / "values.yaml").read_text())["image"]["repository"] == image["name"]


def test_the_bill_of_an_archive_names_its_checksum_and_its_packages(makes: Makes) -> None:
    folder = makes()
    for platform in plugin.PLATFORMS:
        bill = json.loads((folder / platform.bill("1.2.3")).read_text())
        checksum = read_sums(folder)[platform.archive("1.2.3")]
        assert bill["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": checksum}]
        assert [package["purl"] for package in bill["components"]] == ["pkg:pypi/some-thing@1.2"]


def test_an_archive_that_lacks_a_package_of_the_lock_ends_the_release(makes: Makes) -> None:
    plugin.LOCK.write_text("some-thing==1.2\nother==3\n")
    with pytest.raises(LabError, match=r"all of 2 packages of kubectl-precision-1\.2\.3-linux-amd64") as refused:
        makes()
    assert "other 3 missing" in refused.value.found
