"""The archives of ``kubectl precision``: one a platform, for a machine that has Python and nothing else.

What is compiled lies in a folder for each Python, all else once. An archive is equal whenever it is made: its wheels are
those of the lock, its files are sorted and bear one time.
"""

from __future__ import annotations

import gzip
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePath

from lab import paths
from lab.errors import LabError
from lab.images.builder import EPOCH
from lab.process import run
from lab.progress import step

LOCK = paths.ROOT / "requirements" / "plugin.txt"
PROGRAM = "kubectl-precision"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


@dataclass(frozen=True)
class Platform:
    """A machine to install on: as Go names it, and as uv does."""

    os: str
    arch: str
    wheels: str

    def archive(self, version: str) -> str:
        """The name of its archive."""
        return f"{self._name(version)}.tar.gz"

    def bill(self, version: str) -> str:
        """The name of its archive's SBOM."""
        return f"{self._name(version)}.cdx.json"

    def _name(self, version: str) -> str:
        return f"{PROGRAM}-{version}-{self.os}-{self.arch}"


PLATFORMS = (
    Platform("linux", "amd64", "x86_64-manylinux_2_28"),
    Platform("linux", "arm64", "aarch64-manylinux_2_28"),
    Platform("darwin", "amd64", "x86_64-apple-darwin"),
    Platform("darwin", "arm64", "aarch64-apple-darwin"),
)

_LAUNCHER = Path(__file__).with_name("launcher.py")
_UNUSED = re.compile(
    r"\.\.|bin/|bazel-project/|cel_expr_python/ext/|.*/__pycache__/|[^/]+\.dist-info/(?!METADATA$|licenses/|LICENSE)"
)
"""Scripts, a wheel's own sources, CEL's extensions (36 MiB a Python; no rule uses them), and what installers note."""


def build(platform: Platform, version: str, folder: Path) -> Path:
    """Write the archive of a platform into a folder; return it. Fetches the wheels of the lock where uv has none."""
    archive = folder / platform.archive(version)
    with tempfile.TemporaryDirectory(dir=folder) as scratch, step(f"build {archive.name}"):
        sites = {f"cp{python.replace('.', '')}": Path(scratch) / python for python in PYTHONS}
        for python, site in zip(PYTHONS, sites.values(), strict=True):
            _install(platform, python, site)
        tree = Path(scratch) / "tree"
        lay_out(tree, sites)
        write_archive(tree, archive)
    return archive


def lay_out(tree: Path, sites: Mapping[str, Path]) -> None:
    """Lay out what the archive holds.

    Args:
        tree: a folder, which is made.
        sites: for each Python (``cp311``) a folder with the installed packages of the lock, and perhaps others.
    """
    wanted = locked()
    for python, site in sites.items():
        (tree / "lib" / python).mkdir(parents=True)
        for package in distributions(path=[str(site)]):
            if _normal(package.name) in wanted:
                _copy(package, site, tree / "lib" / ("any" if _pure(package) else python))
    shutil.copytree(
        paths.ROOT / "operator" / "precision_operator",
        tree / "app" / "precision_operator",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copyfile(paths.ROOT / "LICENSE", tree / "LICENSE")
    shutil.copyfile(_LAUNCHER, tree / PROGRAM)


def write_archive(tree: Path, archive: Path, *, level: int = 9) -> None:
    """Pack a folder so that the same files give the same bytes."""
    files = sorted(path for path in tree.rglob("*") if path.is_file())
    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", level, raw, int(EPOCH)) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for file in files:
            info = tarfile.TarInfo(file.relative_to(tree).as_posix())
            info.size = file.stat().st_size
            info.mtime = int(EPOCH)
            info.mode = 0o755 if info.name == PROGRAM else 0o644
            with file.open("rb") as content:
                tar.addfile(info, content)


def locked() -> frozenset[str]:
    """The names of the packages that the lock names."""
    return frozenset(_normal(name) for name in re.findall(r"^([\w.-]+)==", LOCK.read_text(), re.MULTILINE))


def manifest(version: str, sums: Mapping[str, str], uri: str) -> dict[str, object]:
    """What Krew installs a release by.

    Args:
        version: of the release.
        sums: checksums of its files by their names.
        uri: where each archive can be fetched, with ``{version}`` and ``{file}`` in it.

    Raises:
        LabError: the address is none that Krew can fetch an archive from, or an archive is missing.
    """
    if not uri.startswith("https://") or "{file}" not in uri:
        raise LabError(
            "URI=, an address over https with {file} in it, and perhaps {version}",
            uri or "nothing",
            "name it: make krew RELEASE=folder URI='https://host/path/{version}/{file}'",
        )
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "precision"},
        "spec": {
            "version": f"v{version}",
            "shortDescription": "See and steer the precision of training fleets",
            "description": "Shows how a fleet of training workloads moves onto FP16 or BF16, and why it waits.\n"
            "Promotes, pauses and rolls back; checks policies before they are applied.\n",
            "caveats": f"Needs Python {PYTHONS[0]} to {PYTHONS[-1]} as python3 on PATH; on Linux, glibc.\n",
            "platforms": list(_platforms(version, sums, uri)),
        },
    }


def _platforms(version: str, sums: Mapping[str, str], uri: str) -> Iterator[dict[str, object]]:
    for platform in PLATFORMS:
        name = platform.archive(version)
        if name not in sums:
            raise LabError(f"a release with {name}", "a release without it", "make it anew: make release")
        yield {
            "selector": {"matchLabels": {"os": platform.os, "arch": platform.arch}},
            "uri": uri.replace("{version}", version).replace("{file}", name),
            "sha256": sums[name],
            "files": [{"from": "*", "to": "."}],
            "bin": PROGRAM,
        }


def _install(platform: Platform, python: str, site: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    where: list[str | Path] = ["--target", site, "--python-platform", platform.wheels, "--python-version", python]
    what: list[str | Path] = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--link-mode", "copy"]
    run([uv, "pip", "install", "--quiet", *where, *what, "-r", LOCK], timeout=1800)


def _pure(package: Distribution) -> bool:
    return "Root-Is-Purelib: true" in (package.read_text("WHEEL") or "")


def _copy(package: Distribution, site: Path, target: Path) -> None:
    for file in _kept(package.files or ()):
        to = target / file
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(site / file, to)


def _kept(files: Iterable[PurePath]) -> Iterator[PurePath]:
    return (file for file in files if not _UNUSED.match(file.as_posix()))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
