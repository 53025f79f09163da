"""The archive of ``kubectl precision`` runs where there is Python alone; Krew's manifest names it as it is."""

import os
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from lab.errors import LabError
from lab.images import TRAINER
from lab.release import plugin, publish
from lab.release.make import SUMS as SUMS_FILE
from lab.release.make import sha256
from lab.release.sbom import bill, carried, locked, require_named

PYTHON = f"cp{sys.version_info[0]}{sys.version_info[1]}"
URI = "https://example.invalid/{version}/{file}"
SUMS = {platform.archive("1.2.3"): f"{index:064x}" for index, platform in enumerate(plugin.PLATFORMS)}
POLICY = """
apiVersion: precision.genesis.ai/v1alpha1
kind: PrecisionPolicy
metadata: {name: fleet, namespace: training}
spec: {selector: {matchLabels: {fleet: demo}}, target: fp16, failureLimit: 3}
"""


def tree(folder: Path) -> Path:
    """What archives are made of, as small as it can be."""
    for name in ("kubectl-precision", "lib/any/b.py", "lib/any/a.py"):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# {name}")
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of the packages that are installed here, unpacked into an empty folder."""
    folder = tmp_path_factory.mktemp("plugin")
    plugin.lay_out(folder / "tree", {PYTHON: Path(sysconfig.get_path("purelib"))})
    plugin.write_archive(folder / "tree", folder / "archive.tar.gz", level=1)
    with tarfile.open(folder / "archive.tar.gz") as tar:
        tar.extractall(folder / "unpacked", filter="data")
    return folder / "unpacked"


def run(installed: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """By Python alone: no site packages, no variables of the environment."""
    command = [sys.executable, "-S", "-E", installed / plugin.PROGRAM, *words]
    environment = {"PATH": os.environ["PATH"], "HOME": str(installed)}
    return subprocess.run(command, capture_output=True, text=True, cwd=installed, env=environment, timeout=120)


@pytest.mark.slow
def test_the_archive_runs_on_a_machine_that_has_python_alone(installed: Path, tmp_path: Path) -> None:
    shown = run(installed, "--help")
    assert (shown.returncode, shown.stdout.split()[:3]) == (0, ["usage:", "kubectl", "precision"]), shown.stderr
    assert os.access(installed / plugin.PROGRAM, os.X_OK)
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    judged = run(installed, "lint", policy)
    assert (judged.returncode, "failureLimit" in judged.stdout) == (1, True), judged.stdout + judged.stderr


@pytest.mark.slow
def test_the_archive_imports_every_module_that_a_cluster_verb_needs(installed: Path, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],"
        " clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: a, user: {}}]}"
    )
    assert "cannot be reached" in run(installed, "get", "--kubeconfig", kubeconfig).stderr


@pytest.mark.slow
def test_the_bill_of_an_archive_names_all_that_is_locked_each_once(installed: Path) -> None:
    packages = carried(installed.with_name("archive.tar.gz"))
    require_named("archive", bill({}, packages), packages={}, requirements=locked(plugin.LOCK))
    assert len(packages) == len(locked(plugin.LOCK)) == len(plugin.locked())


def test_another_python_is_told_which_ones_the_archive_has_packages_for(tmp_path: Path) -> None:
    (tmp_path / "lib" / "cp39").mkdir(parents=True)
    (tmp_path / plugin.PROGRAM).write_bytes(Path(plugin.__file__).with_name("launcher.py").read_bytes())
    refused = run(tmp_path, "--help")
    assert refused.returncode == 1
    assert refused.stderr.startswith("kubectl precision: expected Python 3.9, found 3.")
    assert refused.stderr.count("\n") == 1


def test_the_same_files_give_the_same_archive_whenever_they_were_written(tmp_path: Path) -> None:
    one, other = tree(tmp_path / "one"), tree(tmp_path / "other")
    for file in other.rglob("*.py"):
        os.utime(file, (1, 1))
        file.chmod(0o600)
    archives = [tmp_path / "one.tar.gz", tmp_path / "other.tar.gz"]
    for folder, archive in zip((one, other), archives, strict=True):
        plugin.write_archive(folder, archive)
    assert len({sha256(archive) for archive in archives}) == 1


def test_the_manifest_has_what_krew_requires_and_names_each_archive_by_its_checksum() -> None:
    found = yaml.safe_load(yaml.safe_dump(plugin.manifest("1.2.3", SUMS, URI)))
    assert (found["apiVersion"], found["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert (found["metadata"]["name"], found["spec"]["version"]) == ("precision", "v1.2.3")
    assert found["spec"]["shortDescription"]
    platforms = found["spec"]["platforms"]
    assert {(item["selector"]["matchLabels"]["os"], item["selector"]["matchLabels"]["arch"]) for item in platforms} == {
        ("linux", "amd64"),
        ("linux", "arm64"),
        ("darwin", "amd64"),
        ("darwin", "arm64"),
    }
    assert {item["uri"].rpartition("/")[2]: item["sha256"] for item in platforms} == SUMS
    assert {item["uri"].rpartition("/")[0] for item in platforms} == {"https://example.invalid/1.2.3"}
    assert all(item["bin"] == plugin.PROGRAM and item["files"] == [{"from": "*", "to": "."}] for item in platforms)


def test_the_manifest_of_a_release_bears_the_checksums_that_were_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "1.2.3"
    folder.mkdir()
    files = *SUMS, f"{TRAINER.name}-1.2.3.oci.tar"
    for name in files:
        (folder / name).write_text(name)
    (folder / SUMS_FILE).write_text("".join(f"{sha256(folder / name)}  {name}\n" for name in files))
    monkeypatch.setattr(publish, "MANIFEST", tmp_path / "krew" / "precision.yaml")
    monkeypatch.setattr(publish, "tools", lambda making: lambda *words, cwd: "")
    platforms = yaml.safe_load(publish.write_manifest(folder, URI, key=None).read_text())["spec"]["platforms"]
    assert [item["sha256"] for item in platforms] == [sha256(folder / name) for name in SUMS]
    (folder / next(iter(SUMS))).write_text("another")
    with pytest.raises(LabError, match="trust nothing of this one"):
        publish.write_manifest(folder, URI, key=None)


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (lambda: plugin.manifest("1.2.3", SUMS, ""), "make krew RELEASE=folder URI="),
        (lambda: plugin.manifest("1.2.3", SUMS, "http://example.invalid/{file}"), "over https"),
        (lambda: plugin.manifest("1.2.3", SUMS, "https://example.invalid/"), "with {file} in it"),
        (lambda: plugin.manifest("1.2.4", SUMS, URI), "kubectl-precision-1.2.4-linux-amd64.tar.gz"),
    ],
    ids=["no address", "no https", "no file in it", "an archive is missing"],
)
def test_no_manifest_is_written_that_krew_could_not_install_by(broken: Callable[[], object], expected: str) -> None:
    with pytest.raises(LabError) as refused:
        broken()
    assert expected in str(refused.value)
