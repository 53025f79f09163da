"""``python -m precision_trainer`` and ``precision-trainer``."""

from __future__ import annotations

from .cli import run


def main() -> None:
    """Run the command line and exit with its code."""
    run()


if __name__ == "__main__":
    main()
