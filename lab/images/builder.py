"""Build images without a daemon: Debian's root file systems by mmdebstrap, Dockerfiles by buildah.

Everything is named by the hash of what it is made of and kept in the machine's cache, so building means checking names,
and a change of source costs one layer. What is built twice from the same packages and sources is equal, byte by byte.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import paths
from lab.digest import digest
from lab.images.catalogue import ALL, PAUSE, SUITE, Base, Image
from lab.images.layout import Layout
from lab.images.packages import Package, packages_of, read_packages, write_packages
from lab.locking import machine_lock
from lab.process import run
from lab.progress import say, step
from lab.setup.kube import kube_binaries

EPOCH = "1767225600"
"""The time that built files bear, and images say they were created at: 2026-01-01, in seconds."""

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

    @property
    def local_name(self) -> str:
        """Its name in buildah's store."""
        return f"localhost/{self.image.name}:{self.key}"


class Builder:
    """Builds images in a folder of its own: an OCI layout, and buildah's store."""

    def __init__(self, directory: Path, *, version: str | None = None) -> None:
        """``version``: what images are labelled with; None: the hash of what they are made of."""
        self.layout = Layout(directory / _LAYOUT)
        self._directory = directory
        self._version = version

    def build(self, image: Image) -> Built:
        """Build an image, unless it is there."""
        if image is PAUSE:
            kube_binaries()  # it copies a program from there
        built = Built(image, image_key(image))
        if self.layout.manifest_digest(built.layout_reference) is None:
            arguments = ["--build-arg", f"BASE={self._base(image.base)}"] if image.base else []
            with step(f"image {image.reference}"):
                self._buildah(
                    "bud", "--layers", "--pull=never", "--isolation=chroot", "--format=oci", "--identity-label=false",
                    "--timestamp", EPOCH,
                    # Where the network inspects TLS, the machine trusts its certificate; so must the build.
                    *(["--volume", f"{_CERTIFICATES}:{_CERTIFICATES}:ro"] if _CERTIFICATES.is_dir() else []),
                    *arguments, "--build-arg", f"VERSION={self._version or built.key}",
                    "--file", image.dockerfile, "--tag", built.local_name, image.context,
                )  # fmt: skip
                target = f"oci:{_LAYOUT}:{built.layout_reference}"
                self._buildah("push", "--disable-compression", built.local_name, target)
        return built

    def push(self, built: Built, name: str) -> str:
        """Push an image to a registry; return the digest of its manifest there."""
        with tempfile.NamedTemporaryFile() as file, step(f"push {name}"):
            plain = ["--tls-verify=false"] if plain_http(name) else []
            self._buildah("push", *plain, "--digestfile", file.name, built.local_name, f"docker://{name}")
            return Path(file.name).read_text()

    def root(self, base: Base) -> dict[str, Package]:
        """Make a base's root file system, unless it is there; return the Debian packages that it holds."""
        reference = _base_reference(base)
        packages_file = self._directory / f"{reference}.packages.json"
        if self.layout.manifest_digest(reference) is None:
            self._add_root(base, reference, packages_file)
        return read_packages(packages_file)

    def _base(self, base: Base | Image) -> str:
        """Bring a base image into buildah's store, and return its name there."""
        if isinstance(base, Image):
            return self.build(base).local_name
        name = f"localhost/base-{base.name}:{_base_key(base)}"
        if self._buildah("images", "--quiet", name, check=False):
            return name
        self.root(base)
        with step(f"unpack base image {base.name}"):
            layout = f"oci:{_LAYOUT}:{_base_reference(base)}"
            identity = self._buildah("pull", "--quiet", layout).splitlines()[-1]
            self._buildah("tag", identity, name)
        return name

    def _add_root(self, base: Base, reference: str, packages_file: Path) -> None:
        excludes = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _UNWANTED]
        self._directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._directory) as scratch:
            tar = Path(scratch) / "root.tar"
            with step(f"Debian {SUITE} with {', '.join(base.packages)}"):
                include = f"--include={','.join(base.packages)}"
                lists = f"--customize-hook=copy-out /var/lib/apt/lists {scratch}"
                command = ["mmdebstrap", "--quiet", "--variant=essential", *excludes, include, lists, SUITE, str(tar)]
                run(command, timeout=1800, env={"SOURCE_DATE_EPOCH": EPOCH})
            with step(f"base image {base.name}"):
                write_packages(packages_file, packages_of(tar, Path(scratch) / "lists"))
                self.layout.add_root(reference, tar)

    def _buildah(self, *arguments: str | Path, check: bool = True) -> str:
        runs = paths.MACHINE / "buildah" / digest(words=[str(self._directory)])
        storage: list[str | Path] = ["--root", self._directory / "buildah", "--runroot", runs]
        command = ["buildah", *storage, "--storage-driver", "overlay", *arguments]
        # From the folder, so that the layout has a short name: buildah cannot pull from a path with a dot in it.
        return run(command, check=check, timeout=1800, cwd=self._directory).stdout.strip()


def layout() -> Layout:
    """Return the layout that holds all images built on this machine."""
    return _shared().layout


def build_images(images: Iterable[Image] = ALL) -> list[Built]:
    """Build what is stale; seconds where nothing is."""
    with machine_lock("images"):
        return [_shared().build(image) for image in images]


def base_packages(base: Base) -> dict[str, Package]:
    """The Debian packages of a base on which this machine builds; it is made where it is not there."""
    return _shared().root(base)


def plain_http(name: str) -> bool:
    """Whether a registry, or an image by its name there, is on this machine: TLS is asked of all others."""
    return name.partition("/")[0].partition(":")[0] in ("localhost", "127.0.0.1")


def push_images(built: Sequence[Built], registry: str, *, tag: str | None = None) -> dict[str, str]:
    """Push images to a registry, and say by which digests they are there; return the name there for each local name.

    ``tag``: None tags them by content.
    """
    names = {item.image.reference: f"{registry}/{item.image.name}:{tag or item.key}" for item in built}
    for item in built:
        name = names[item.image.reference]
        say(f"pushed {name}@{_shared().push(item, name)}")
    return names


def image_key(image: Image) -> str:
    """Hash all that an image is made of."""
    base = image.base
    words = [] if base is None else [image_key(base) if isinstance(base, Image) else _base_key(base)]
    return digest([image.dockerfile, *image.inputs], words)


def _shared() -> Builder:
    return Builder(paths.shared_cache())


def _base_reference(base: Base) -> str:
    return f"base-{base.name}-{_base_key(base)}"


def _base_key(base: Base) -> str:
    return digest(words=[SUITE, EPOCH, *base.packages])
