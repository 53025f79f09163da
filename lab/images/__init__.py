"""The images that pods run, built from this checkout."""

from lab.images.builder import Built, build_images, push_images
from lab.images.catalogue import ALL, OPERATOR, PAUSE, PROMETHEUS, TOOLS, TRAINER, Image

__all__ = [
    "ALL",
    "OPERATOR",
    "PAUSE",
    "PROMETHEUS",
    "TOOLS",
    "TRAINER",
    "Built",
    "Image",
    "build_images",
    "push_images",
]
