"""Build images without a daemon: Debian's root file systems by mmdebstrap, Dockerfiles by buildah.

Everything is named by the hash of what it is made of and kept in the machine's cache, so building means checking names,
and a change of source costs one layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lab import paths
from lab.digest import digest
from lab.images.catalogue import ALL, SUITE, Base, Image
from lab.images.layout import Layout
from lab.locking import machine_lock
from lab.process import run
from lab.progress import step
from lab.setup.kube import kube_binaries

_CERTIFICATES = Path("/etc/ssl/certs")
_LAYOUT = "oci"
_UNWANTED = ("doc", "locale", "man")


@dataclass(frozen=True)
class Built:
    """An image that lies in the layout."""

    image: Image
    key: str

    @property
    def layout_reference(self) -> str:
        """Its name in the layout."""
        return f"{self.image.name}-{self.key}"


def layout() -> Layout:
    """Return the layout that holds all images built on this machine."""
    return Layout(paths.shared_cache() / _LAYOUT)


def build_images(images: Iterable[Image] = ALL) -> list[Built]:
    """Build what is stale; seconds where nothing is."""
    with machine_lock("images"):
        return [_ensure(image) for image in images]


def push_images(built: Iterable[Built], registry: str) -> dict[str, str]:
    """Push images to a registry, tagged by content; return the name there for each local name."""
    names: dict[str, str] = {}
    for item in built:
        name = f"{registry}/{item.image.name}:{item.key}"
        with step(f"push {name}"):
            _buildah("push", f"localhost/{item.image.name}:{item.key}", f"docker://{name}")
        names[item.image.reference] = name
    return names


def image_key(image: Image) -> str:
    """Hash all that an image is made of."""
    words = [_base_key(image.base)] if image.base else []
    return digest([image.dockerfile, *image.inputs], words)


def _ensure(image: Image) -> Built:
    kube_binaries()  # the pause image copies a program from there
    built = Built(image, image_key(image))
    if layout().manifest_digest(built.layout_reference) is None:
        arguments = ["--build-arg", f"BASE={_ensure_base(image.base)}"] if image.base else []
        with step(f"image {image.reference}"):
            local = f"localhost/{image.name}:{built.key}"
            _buildah(
                "bud", "--layers", "--pull=never", "--isolation=chroot", "--format=oci", "--identity-label=false",
                # Where the network inspects TLS, the machine trusts its certificate; so must the build.
                *(["--volume", f"{_CERTIFICATES}:{_CERTIFICATES}:ro"] if _CERTIFICATES.is_dir() else []),
                *arguments, "--build-arg", f"VERSION={built.key}", "--file", image.dockerfile, "--tag", local, image.context,
            )  # fmt: skip
            _buildah("push", "--disable-compression", local, f"oci:{_LAYOUT}:{built.layout_reference}")
    return built


def _ensure_base(base: Base) -> str:
    """Bring a base image into buildah's store, and return its name there."""
    key = _base_key(base)
    name = f"localhost/base-{base.name}:{key}"
    if _buildah("images", "--quiet", name, check=False):
        return name
    reference = f"base-{base.name}-{key}"
    if layout().manifest_digest(reference) is None:
        _add_root(base, reference)
    with step(f"unpack base image {base.name}"):
        identity = _buildah("pull", "--quiet", f"oci:{_LAYOUT}:{reference}").splitlines()[-1]
        _buildah("tag", identity, name)
    return name


def _add_root(base: Base, reference: str) -> None:
    tar = paths.shared_cache() / f"{reference}.tar"
    tar.parent.mkdir(parents=True, exist_ok=True)
    excludes = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _UNWANTED]
    try:
        with step(f"Debian {SUITE} with {', '.join(base.packages)}"):
            include = f"--include={','.join(base.packages)}"
            run(["mmdebstrap", "--quiet", "--variant=essential", *excludes, include, SUITE, tar], timeout=1800)
        with step(f"base image {base.name}"):
            layout().add_root(reference, tar)
    finally:
        tar.unlink(missing_ok=True)


def _base_key(base: Base) -> str:
    return digest(words=[SUITE, *base.packages])


def _buildah(*arguments: str | Path, check: bool = True) -> str:
    storage: list[str | Path] = ["--root", paths.shared_cache() / "buildah", "--runroot", paths.MACHINE / "buildah"]
    command = ["buildah", *storage, "--storage-driver", "overlay", *arguments]
    # From the cache's folder, so that the layout has a short name: buildah cannot pull from a path with a dot in it.
    return run(command, check=check, timeout=1800, cwd=paths.shared_cache()).stdout.strip()
