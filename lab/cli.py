"""`python -m lab`: the laboratory from a shell."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

from rich.table import Table

from lab import paths
from lab.cluster import Cluster, ControlPlane
from lab.cluster.full import require_machine
from lab.cluster.manifests import apply_product
from lab.cluster.monitoring import apply_prometheus
from lab.errors import LabError
from lab.images import ALL, build_images
from lab.interrupts import INTERRUPTED, take_sigterm_as_interrupt
from lab.progress import console, say, step
from lab.setup.kube import kube_binaries
from lab.setup.prerequisites import require_control_plane_programs


def main(arguments: list[str] | None = None) -> int:
    """Run one command; print a fault as what was expected, found, and to be done next."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["kubectl"]:  # before argparse, which would take kubectl's flags for its own
        return _kubectl(words[1:])
    options = _parser().parse_args(words)
    take_sigterm_as_interrupt()
    try:
        return int(options.run(options) or 0)
    except LabError as error:
        console.print(f"[red]stopped[/red]: {error}", markup=True)
        return 1
    except KeyboardInterrupt:
        console.print("[red]interrupted[/red]")
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, action, text in (
        ("up", _up, "bring the full cluster up, with images and Prometheus; what is up stays"),
        ("down", _down, "remove the full cluster, and every trace of it"),
        ("status", _status, "show the cluster's programs and pods"),
        ("images", _images, "build the images that are stale, and show them"),
        ("binaries", _binaries, "compile Kubernetes if its sources changed"),
        ("control-plane", _control_plane, "run a control plane without a node until interrupted"),
        ("kubectl", lambda options: 2, "run kubectl against the full cluster"),
        ("kubeconfig", _kubeconfig, "print where the full cluster's kubeconfig is"),
    ):
        commands.add_parser(name, help=text, description=text).set_defaults(run=action)
    return parser


def _up(options: argparse.Namespace) -> None:
    cluster = Cluster()
    fresh = cluster.up()
    with step("custom resources, admission policies"):
        apply_product(cluster.kubectl)
    with step("Prometheus"):
        url = apply_prometheus(cluster.kubectl)
    if fresh:
        say(f"new images: {', '.join(fresh)}; pods that ran the old ones go on with them until they are replaced")
    say(f"Prometheus: {url}")
    say(f"export KUBECONFIG={cluster.kubeconfig}    (kubectl and helm are in {paths.BIN})")


def _down(options: argparse.Namespace) -> None:
    Cluster().down()


def _status(options: argparse.Namespace) -> int:
    cluster = Cluster()
    table = Table("program", "state", "log")
    for name, running, log in cluster.status():
        table.add_row(name, "[green]running[/green]" if running else "[red]stopped[/red]", os.path.relpath(log))
    console.print(table)
    if not cluster.running():
        return 3
    print(cluster.kubectl("get", "nodes,pods", "-A", "-o", "wide").stdout, end="")
    return 0


def _images(options: argparse.Namespace) -> None:
    require_machine()
    for built in build_images(ALL):
        print(f"{built.image.reference}\t{built.key}")


def _binaries(options: argparse.Namespace) -> None:
    print(kube_binaries())


def _control_plane(options: argparse.Namespace) -> None:
    require_control_plane_programs()
    with (
        tempfile.TemporaryDirectory(prefix="control-plane-") as directory,
        ControlPlane(Path(directory)) as control_plane,
    ):
        apply_product(control_plane.kubectl)
        say(f"export KUBECONFIG={control_plane.kubeconfig}")
        say(f"audit log: {control_plane.audit_log}")
        say("Ctrl-C ends it")
        signal.pause()


def _kubeconfig(options: argparse.Namespace) -> None:
    print(Cluster().kubeconfig)


def _kubectl(words: list[str]) -> int:
    program = kube_binaries() / "kubectl"
    os.execv(program, [str(program), "--kubeconfig", str(Cluster().kubeconfig), *words])
