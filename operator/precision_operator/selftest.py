"""``python -m precision_operator.selftest``: what `helm test` runs, in pods of its own and without any right.

``answers URL`` waits until a replica is ready. ``injected`` tells whether admission changed the pod that it runs in.
"""

import argparse
import os
import sys
import time
import urllib.request
from collections.abc import Sequence

from precision_operator.contract import INJECTED

INJECTED_ENV = "INJECTED"
"""The chart gives the pod its own annotation ``INJECTED`` by this variable."""
PATIENCE_SECONDS = 120.0
"""Starting takes up to a minute on a busy node; an image may have to be pulled before."""
_EVERY_SECONDS = 1.0


def answers(url: str, *, seconds: float = PATIENCE_SECONDS) -> str:
    """What is wrong with the operator's readiness after so many seconds; nothing once it says that it is ready."""
    end = time.monotonic() + seconds
    while wrong := _asked(url):
        if time.monotonic() > end:
            return f"expected {url} to say ok within {seconds:.0f} s, found: {wrong}. Next: kubectl get pods, and their logs"
        time.sleep(_EVERY_SECONDS)
    return ""


def _asked(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return ""
    except OSError as error:
        return str(error)


def injected(*, found: str, container: str) -> str:
    """What is wrong with admission; nothing where it wrote the contract into this container.

    ``found``: the annotation of this pod; admission writes the container's name into it, or why it changed nothing.
    """
    if found == container:
        return ""
    return (
        f"expected admission to write {INJECTED}: {container} into this pod, found {found or 'nothing'!r}. Next: run "
        "`helm test` again, as a new policy takes some seconds; then read docs/reference/admission.md"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one check; returns 1 where something is wrong, and says what."""
    parser = argparse.ArgumentParser(prog="precision_operator.selftest", description=__doc__)
    checks = parser.add_subparsers(dest="check", required=True)
    checks.add_parser("answers").add_argument("url")
    checks.add_parser("injected").add_argument("container")
    arguments = parser.parse_args(argv)
    if arguments.check == "answers":
        wrong = answers(arguments.url)
    else:
        wrong = injected(found=os.environ.get(INJECTED_ENV, ""), container=arguments.container)
    sys.stdout.write(f"{wrong or 'ok'}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
