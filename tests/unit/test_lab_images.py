"""Building an image compiles Kubernetes only where the image copies a program from it."""

from pathlib import Path

import pytest

from lab.errors import LabError
from lab.images import ALL, PAUSE, Image, builder
from lab.images.builder import Builder
from lab.images.layout import Layout


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Builder:
    """Finds every image built, on a machine that cannot compile."""

    def fails() -> Path:
        raise LabError("Go", "none", "install it")

    monkeypatch.setattr(builder, "kube_binaries", fails)
    monkeypatch.setattr(builder, "image_key", lambda image: "abcd")
    monkeypatch.setattr(Layout, "manifest_digest", lambda self, reference: "sha256:abcd")
    return Builder(tmp_path)


@pytest.mark.parametrize("image", [image for image in ALL if image is not PAUSE], ids=lambda image: image.name)
def test_an_image_without_a_program_of_kubernetes_needs_none_compiled(builds: Builder, image: Image) -> None:
    assert builds.build(image).image is image


def test_the_pause_image_has_its_program_compiled_first(builds: Builder) -> None:
    with pytest.raises(LabError, match="Go"):
        builds.build(PAUSE)
