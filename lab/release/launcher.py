#!/usr/bin/env python3
"""``kubectl precision`` of the archive: Python's own modules, then nothing but what lies beside this file."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Run the command line on the packages of this Python. An old Python must come as far as the message."""
    compiled = HERE / "lib" / "cp{}{}".format(*sys.version_info[:2])
    if not compiled.is_dir():
        known = ", ".join(sorted(f"{p.name[2]}.{p.name[3:]}" for p in compiled.parent.glob("cp*")))
        found = f"{sys.version_info[0]}.{sys.version_info[1]} ({sys.executable})"
        sys.stderr.write(
            f"kubectl precision: expected Python {known}, found {found}: put one of them first on PATH as python3\n"
        )
        return 1
    sys.path[:0] = [str(HERE / "app"), str(HERE / "lib" / "any"), str(compiled)]
    from precision_operator.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
