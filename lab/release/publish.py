"""Bring images into a registry, and the chart from there onto a cluster of one's own; name the plugin's archives to Krew."""

from __future__ import annotations

from pathlib import Path

import yaml

from lab import paths
from lab.errors import LabError
from lab.images import OPERATOR, TRAINER, build_images, push_images
from lab.images.builder import base_packages, plain_http
from lab.images.catalogue import PYTHON, TORCH
from lab.images.packages import PINS, unpinned
from lab.process import run
from lab.progress import say, step
from lab.release import plugin
from lab.release.make import CHART, IMAGES, read_sums
from lab.release.note import torch_note
from lab.release.tools import tools
from lab.release.verify import require_signed
from lab.setup.kube import kube_binaries
from precision_operator import __version__

RELEASE = "precision-operator"
NAMESPACE = "precision-system"
MANIFEST = paths.BUILD / "krew" / "precision.yaml"
"""Krew wants the file to be named as the plugin is."""


def require_registry(registry: str, command: str) -> None:
    """Refuse to go on without one.

    Raises:
        LabError: it names the command line to use.
    """
    if not registry:
        raise LabError(
            "REGISTRY=, a registry and path that the cluster's nodes pull from",
            "nothing",
            f"name it: make {command} REGISTRY=host/path",
        )


def push(registry: str) -> None:
    """Build what is stale of this checkout, and push both images under the version that the chart asks for.

    Unlike a release they may stand on other Debian packages than the pinned ones: which they are is said.
    """
    built = build_images((OPERATOR, TRAINER))
    for base in (PYTHON, TORCH):
        if found := unpinned(base, base_packages(base)):
            say(f"the base {base.name} has not the packages that {PINS.name} pins: {found}")
    push_images(built, registry, tag=__version__)
    say(torch_note(base_packages(TORCH)))


def push_release(folder: Path, registry: str, *, key: Path | None) -> None:
    """Push images and chart of a release, with all that was signed and attested.

    ``key``: the public key that is trusted; None: the release's own, which only shows that the release is whole.

    Raises:
        LabError: the folder is not the release that its checksums name, or that key did not sign them.
    """
    programs = tools(making=False)
    require_signed(programs, folder, key=key)
    version = folder.name
    named = {f"{image.name}-{version}.oci.tar": f"{registry}/{image.name}:{version}" for image in IMAGES}
    named[f"{CHART.name}-chart-{version}.oci.tar"] = f"{registry}/charts/{CHART.name}:{version}"
    plain = ["--plain-http"] if plain_http(registry) else []
    for archive, name in named.items():
        with step(f"push {name}"):
            programs("oras", "restore", *plain, "--input", folder / archive, name)


def write_manifest(folder: Path, uri: str, *, key: Path | None) -> Path:
    """Write the manifest by which Krew installs the plugin of a release; return it.

    ``key``: the public key that is trusted; None: the release's own, which only shows that the release is whole.

    Raises:
        LabError: the folder is not the release that its checksums name, that key did not sign them, or the address is none
            that Krew can use.
    """
    require_signed(tools(making=False), folder, key=key)
    MANIFEST.parent.mkdir(parents=True, exist_ok=True)
    MANIFEST.write_text(yaml.safe_dump(plugin.manifest(folder.name, read_sums(folder), uri), sort_keys=False))
    return MANIFEST


def install_commands(*, registry: str, prometheus: str = "") -> list[list[str]]:
    """What installs the operator, as the README has it; the chart is named from the checkout's root."""
    chart = str(CHART.relative_to(paths.ROOT))
    values = ["--set", f"image.registry={registry}"]
    values += ["--set", f"config.prometheus.default.url={prometheus}"] if prometheus else []
    return [
        ["helm", "upgrade", "--install", RELEASE, chart, "-n", NAMESPACE, "--create-namespace", *values],
        ["helm", "test", RELEASE, "-n", NAMESPACE],
    ]


def install(*, registry: str, context: str, prometheus: str) -> None:
    """Install or upgrade the operator on a cluster of one's own, and test that it works there."""
    chosen = ["--kube-context", context] if context else []
    for program, *arguments in install_commands(registry=registry, prometheus=prometheus):
        with step(f"helm {arguments[0]}"):
            run([kube_binaries() / program, *arguments, *chosen], cwd=paths.ROOT, timeout=600)
    say(f"next: kubectl -n {NAMESPACE} get pods; kubectl apply a policy (README.md, On your cluster)")
