"""Programs that sign, list, carry and serve a release, each compiled once from its Go module; and the registry at work."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab import paths
from lab.cluster.ports import free_ports
from lab.digest import digest
from lab.process import Daemon, run
from lab.setup.go import compiled_once
from lab.setup.kube import ENVIRONMENT, kube_binaries
from lab.waiting import wait_for

_FOLDER = paths.ROOT / "lab" / "release"
_MODULES = {
    "signing": (
        "github.com/distribution/distribution/v3/cmd/registry",
        "github.com/sigstore/cosign/v3/cmd/cosign",
        "oras.land/oras/cmd/oras",
    ),
    "listing": ("github.com/anchore/syft/cmd/syft",),
}
"""Two modules: what they need of others does not agree."""

_QUIET = {"SYFT_CHECK_FOR_APP_UPDATE": "false", "SYFT_REGISTRY_INSECURE_USE_HTTP": "true", "NO_COLOR": "1"}


@dataclass(frozen=True)
class Tools:
    """The folders of the programs; ``password`` opens the signing key."""

    folders: Mapping[str, Path]
    password: str

    def __call__(self, name: str, *arguments: str | Path, cwd: Path | None = None) -> str:
        """Run one of them; return its standard output."""
        environment = {**_QUIET, "COSIGN_PASSWORD": self.password}
        return run([self.folders[name] / name, *arguments], env=environment, timeout=1800, cwd=cwd).stdout


def tools(*, making: bool) -> Tools:
    """Compile what is missing (about ten minutes on two cores the first time).

    Args:
        making: whether a release is made: that needs Helm, which is compiled with Kubernetes, and what lists an image.
    """
    folders = {"helm": kube_binaries()} if making else {}
    for module, packages in _MODULES.items():
        if making or module != "listing":
            folder = _compiled(module, packages)
            folders |= {package.rpartition("/")[2]: folder for package in packages}
    return Tools(folders, os.environ.get("COSIGN_PASSWORD", ""))


def _compiled(module: str, packages: tuple[str, ...]) -> Path:
    source = _FOLDER / module

    def build(go: Path, folder: Path) -> None:
        flags = ["-trimpath", "-mod=readonly", "-ldflags", "-s -w", "-o", f"{folder}/"]
        environment = {
            **ENVIRONMENT,
            "GOTOOLCHAIN": "auto",
        }  # these modules need a newer patch of Go than Kubernetes does
        run([go, "build", *flags, *packages], cwd=source, env=environment, timeout=3600)

    names = ", ".join(package.rpartition("/")[2] for package in packages)
    title = f"compile {names} (about five minutes on two cores the first time)"
    return compiled_once(f"release-{module}-{digest([source], packages)}", title, build)


@contextmanager
def registry(tools: Tools, directory: Path) -> Iterator[str]:
    """Serve an empty registry on loopback; yields its host and port."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    directory.mkdir(parents=True, exist_ok=True)
    configuration = directory / "registry.json"  # JSON is YAML
    configuration.write_text(
        json.dumps(
            {
                "version": 0.1,
                "log": {"level": "error"},
                "storage": {"filesystem": {"rootdirectory": str(directory / "registry")}},
                "http": {"addr": address},
            }
        )
    )
    daemon = Daemon("registry", [tools.folders["registry"] / "registry", "serve", configuration], directory)
    daemon.start()
    try:
        wait_for(lambda: _answers(address), what="the registry to answer", seconds=30, found=daemon.tail)
        yield address
    finally:
        daemon.stop()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/v2/", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False
