"""Images and releases go into a real registry, which is compiled once a machine."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.cluster.full import require_machine
from lab.images import ALL, OPERATOR, TRAINER
from lab.images.builder import build_images, layout
from lab.release.make import CHART, IMAGES, Workshop, export_key, sign_sums
from lab.release.provenance import Source
from lab.release.publish import push, push_release
from lab.release.tools import Tools, registry, tools
from precision_operator import __version__

ACCEPTED = "application/vnd.oci.image.manifest.v1+json"
TEAM = "team/images"


@pytest.fixture(scope="module")
def programs() -> Tools:
    require_machine()
    return tools(making=False)


@pytest.fixture
def target(programs: Tools, tmp_path: Path) -> Iterator[str]:
    """``host:port/path`` of an empty registry."""
    with registry(programs, tmp_path) as address:
        yield f"{address}/{TEAM}"


def manifest(target: str, name: str, reference: str = __version__) -> dict[str, Any]:
    address, _, path = target.partition("/")
    request = urllib.request.Request(f"http://{address}/v2/{path}/{name}/manifests/{reference}")
    request.add_header("Accept", ACCEPTED)
    with urllib.request.urlopen(request, timeout=10) as response:
        found: dict[str, Any] = json.load(response)
    return found


def test_a_push_brings_both_images_under_the_version_that_the_chart_asks_for(target: str) -> None:
    push(target)
    for built in build_images((OPERATOR, TRAINER)):
        pushed = manifest(target, built.image.name)
        assert pushed["config"]["digest"] == layout().blobs(built.layout_reference)[0]


@pytest.fixture
def release(programs: Tools, tmp_path: Path) -> Path:
    """A release of which only the checksums are signed, and whose images are small: what is pushed is the archives."""
    folder = tmp_path / "release" / "9.9.9"
    folder.mkdir(parents=True)
    (pause,) = build_images([image for image in ALL if image.name == "pause"])
    with registry(programs, tmp_path / "source") as address:
        for name, archive in [
            *((item.name, item.name) for item in IMAGES),
            (f"charts/{CHART.name}", f"{CHART.name}-chart"),
        ]:
            source, copied = f"{layout().directory}:{pause.layout_reference}", f"{address}/{name}:9.9.9"
            programs("oras", "cp", "--from-oci-layout", "--to-plain-http", source, copied)
            programs("oras", "backup", "--plain-http", "--output", folder / f"{archive}-9.9.9.oci.tar", copied)
    programs("cosign", "generate-key-pair", cwd=tmp_path)
    workshop = Workshop(programs, "", folder, tmp_path / "cosign.key", Source("9.9.9", "0" * 40))
    export_key(workshop)
    sign_sums(workshop)
    return folder


def test_a_release_is_pushed_with_its_chart(release: Path, target: str) -> None:
    push_release(release, target, key=release.parents[1] / "cosign.pub")
    for name in (*(item.name for item in IMAGES), f"charts/{CHART.name}"):
        assert manifest(target, name, "9.9.9")["layers"]
