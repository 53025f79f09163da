"""The images of this project: what each is made of, and so what makes it stale."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lab import paths

SUITE = "trixie"
"""The Debian release of the base images."""

_IMAGES = paths.ROOT / "lab" / "images"


@dataclass(frozen=True)
class Base:
    """A Debian root file system: the essential packages, and these."""

    name: str
    packages: tuple[str, ...]


@dataclass(frozen=True)
class Image:
    """An image that a Dockerfile makes from a base and from files of the checkout."""

    name: str
    tag: str
    dockerfile: Path
    context: Path
    inputs: tuple[Path, ...]
    """Everything in the context that the Dockerfile reads."""
    base: Base | Image | None = None

    @property
    def reference(self) -> str:
        """The name by which pods ask for it."""
        return f"localhost/{self.name}:{self.tag}"


PYTHON = Base("python", ("ca-certificates", "python3", "python3-venv"))
TORCH = Base("torch", ("libopenblas0-pthread", "python3", "python3-prometheus-client", "python3-torch"))
"""With OpenBLAS: on the reference BLAS one FP32 matrix product of 1024² takes half a second."""
PROMETHEUS_BASE = Base("prometheus", ("prometheus",))

PAUSE = Image("pause", "1", _IMAGES / "pause.Dockerfile", paths.BIN, (paths.BIN / "pause",))
PROMETHEUS = Image("prometheus", "dev", _IMAGES / "prometheus.Dockerfile", _IMAGES, (), PROMETHEUS_BASE)
OPERATOR = Image(
    "precision-operator",
    "dev",
    paths.ROOT / "operator" / "Dockerfile",
    paths.ROOT,
    (paths.ROOT / "requirements" / "operator.txt", paths.ROOT / "operator" / "precision_operator"),
    PYTHON,
)
TRAINER = Image(
    "precision-trainer",
    "dev",
    paths.ROOT / "trainer_image" / "Dockerfile",
    paths.ROOT,
    (paths.ROOT / "requirements" / "trainer.txt", paths.ROOT / "trainer_image" / "precision_trainer"),
    TORCH,
)
TOOLS = Image(
    "precision-trainer-tools",
    "dev",
    paths.ROOT / "tools" / "Dockerfile",
    paths.ROOT,
    (paths.ROOT / "tools" / "precision_tools",),
    TRAINER,
)
"""The trainer that can have a fault on purpose: the lab's and the demo's."""
ALL = (PAUSE, PROMETHEUS, OPERATOR, TRAINER, TOOLS)
