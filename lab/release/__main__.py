"""`python -m lab.release make|verify|pin|push|krew|install`: make a release, verify one, pin the Debian packages of base
images, push the images to a registry, write Krew's manifest of a release, or install from a registry.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from lab import paths
from lab.cluster.full import require_machine
from lab.errors import LabError
from lab.images.builder import Builder
from lab.images.catalogue import Base
from lab.images.packages import PINS, pin
from lab.progress import console, say
from lab.release.make import IMAGES, RELEASES, make
from lab.release.publish import install, push, push_release, require_registry, write_manifest
from lab.release.verify import UNKNOWN_MAKER, verify


def main() -> int:
    """Run one command; print a fault as what was expected, found, and to be done next."""
    options = _parser().parse_args()
    try:
        options.run(options)
    except LabError as error:
        console.print(f"[red]stopped[/red]: {error}", markup=True)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.release", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    making = commands.add_parser("make", help="make the release of the commit that is checked out")
    making.add_argument("--key", type=Path, help="cosign's private key; COSIGN_PASSWORD opens it")
    making.set_defaults(run=_make)
    verifying = commands.add_parser("verify", help="verify a release, offline")
    verifying.add_argument(
        "folder", type=Path, nargs="?", help="the release; without one, the newest that was made here"
    )
    verifying.set_defaults(run=_verify)
    commands.add_parser("pin", help=f"write {PINS.name} from Debian's packages of today").set_defaults(run=_pin)
    pushing = commands.add_parser("push", help="push the images of this checkout, or a release with its signatures")
    pushing.add_argument("--release", type=Path, help="the folder of a release; without it, this checkout's images")
    pushing.set_defaults(run=_push)
    indexing = commands.add_parser("krew", help="write the manifest by which Krew installs the plugin of a release")
    indexing.add_argument("folder", type=Path, help="the release")
    indexing.add_argument("--uri", default="", help="where its archives can be fetched: https://…/{version}/{file}")
    indexing.set_defaults(run=_krew)
    for command in (verifying, pushing, indexing):
        command.add_argument("--key", type=Path, help="the public key that you trust; without one, the release's own")
    installing = commands.add_parser("install", help="install from a registry onto a cluster, and test it there")
    installing.add_argument("--context", default=os.environ.get("CONTEXT", ""), help="of the kubeconfig; else its own")
    installing.add_argument("--prometheus", default="", help="address of its Prometheus; else the chart's default")
    installing.set_defaults(run=_install)
    for command in (pushing, installing):
        command.add_argument("--registry", default=os.environ.get("REGISTRY", ""), help="host/path of the images")
    return parser


def _make(options: argparse.Namespace) -> None:
    require_machine()
    folder = make(key=options.key)
    say(f"release: {folder.relative_to(paths.ROOT)}; verify it: python -m lab.release verify {folder}")


def _verify(options: argparse.Namespace) -> None:
    made = sorted(RELEASES.glob("*/SHA256SUMS"), key=lambda sums: sums.stat().st_mtime)
    if options.folder is None and not made:
        raise LabError("a release", f"none in {RELEASES}", "make one with `make release`, or name its folder")
    verify((options.folder or made[-1].parent).resolve(), key=options.key)
    say(f"verified: made by who holds the key of {options.key}" if options.key else f"whole; {UNKNOWN_MAKER}")


def _pin(options: argparse.Namespace) -> None:
    require_machine()
    bases = sorted({image.base for image in IMAGES if isinstance(image.base, Base)}, key=lambda base: base.name)
    paths.BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=paths.BUILD) as scratch:
        builder = Builder(Path(scratch))
        pin({base: builder.root(base) for base in bases})
    say(f"wrote {PINS.relative_to(paths.ROOT)}")


def _push(options: argparse.Namespace) -> None:
    require_registry(options.registry, "push")
    if options.release:
        push_release(options.release.resolve(), options.registry, key=options.key)
    else:
        require_machine()
        push(options.registry)


def _krew(options: argparse.Namespace) -> None:
    say(f"wrote {write_manifest(options.folder.resolve(), options.uri, key=options.key).relative_to(paths.ROOT)}")


def _install(options: argparse.Namespace) -> None:
    require_registry(options.registry, "install")
    install(registry=options.registry, context=options.context, prometheus=options.prometheus)


if __name__ == "__main__":
    sys.exit(main())
