"""`make push` of a checkout: what it says of the images, which are built by nothing here."""

from __future__ import annotations

import pytest

from lab.images import builder
from lab.images.builder import Built
from lab.images.catalogue import PYTHON, TORCH, Base
from lab.images.packages import Package, Packages, pinned
from lab.release import publish
from precision_operator import __version__


def pushed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: dict[Base, Packages]) -> str:
    """What a push of images on these packages says."""

    class Machine:
        def push(self, built: Built, name: str) -> str:
            return f"sha256:of-{built.key}"

    monkeypatch.setattr(builder, "_shared", Machine)
    monkeypatch.setattr(publish, "build_images", lambda images: [Built(image, image.name) for image in images])
    monkeypatch.setattr(publish, "base_packages", found.__getitem__)
    publish.push("host/path")
    printed = capsys.readouterr()
    return " ".join((printed.out + printed.err).split())


def test_a_push_of_images_on_other_packages_than_the_pinned_ones_names_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = {**pinned(PYTHON), "libc6": Package("9.9-1", "aaaa")}
    said = pushed(monkeypatch, capsys, {PYTHON: newer, TORCH: pinned(TORCH)})
    assert "the base python has not the packages that bases.json pins: libc6 9.9-1 (aaaa) in place of" in said
    assert "the base torch" not in said


def test_a_push_says_the_digest_of_each_image(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = pushed(monkeypatch, capsys, {PYTHON: pinned(PYTHON), TORCH: pinned(TORCH)})
    for name in ("precision-operator", "precision-trainer"):
        assert f"pushed host/path/{name}:{__version__}@sha256:of-{name}" in said


def test_a_push_says_that_the_trainers_image_is_not_for_production(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = pushed(monkeypatch, capsys, {PYTHON: pinned(PYTHON), TORCH: pinned(TORCH)})
    assert "bases.json" not in said
    assert "not for production" in said
