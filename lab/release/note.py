"""What people must know of the trainer's image that is made here: which torch it has, and what it is not for."""

from __future__ import annotations

from lab.errors import LabError
from lab.images import TRAINER
from lab.images.packages import Packages

README = "README.md"
TORCH = "python3-torch"
"""Debian's package. It is built without CUDA."""
SAFE_LOAD_FLOOR = (2, 10)
"""As the trainer has it (`compat.py`), which imports torch."""

_OWN = f"""\
docker build -f trainer_image/Dockerfile --build-arg BASE=python@sha256:DIGEST -t REGISTRY/{TRAINER.name}:TAG ."""


def torch_note(packages: Packages) -> str:
    """What a trainer's image on these Debian packages is for, and what to take instead.

    Raises:
        LabError: Debian's torch is not among them.
    """
    torch = packages.get(TORCH)
    if torch is None:
        raise LabError(
            f"{TORCH} in the base of {TRAINER.name}", "no such package", "say in lab/release/note.py what is"
        )
    major, minor = map(int, torch.version.split(".")[:2])
    floor = ".".join(map(str, SAFE_LOAD_FLOOR))
    flaw = f" and is below {floor} (CVE-2026-24747)" if (major, minor) < SAFE_LOAD_FLOOR else ""
    return (
        f"{TRAINER.name} is an image of the laboratory, on CPU, and not for production: "
        f"its torch {torch.version} is Debian's, has no CUDA{flaw}. Build your own: {_OWN}"
    )


def readme(version: str, packages: Packages) -> str:
    """The page of a release for who has only that."""
    return (
        f"# {version}\n\n{torch_note(packages)}\n\nHow to verify and use this release: docs/release.md of its source.\n"
    )
