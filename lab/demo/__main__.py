"""``python -m lab.demo``: the main job, from an empty machine to ``build/demo/report.json`` and ``demo.svg``."""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lab import paths
from lab.cluster import Cluster, Kubectl
from lab.cluster.full import require_machine
from lab.cluster.kubectl import Json
from lab.cluster.monitoring import apply_prometheus
from lab.demo.fleet import ACCELERATOR, NAMESPACE, VOLUME_PATH
from lab.demo.metrics import SERVICE, Metrics
from lab.demo.picture import picture
from lab.demo.report import build
from lab.demo.stage import RELEASE, SYSTEM, ApiProxy, Images, LogFollower, Stage, advertise, helm_of
from lab.demo.story import Story
from lab.demo.timeline import Timeline
from lab.errors import LabError
from lab.images import OPERATOR, PROMETHEUS, TOOLS, build_images, push_images
from lab.interrupts import INTERRUPTED, take_sigterm_as_interrupt
from lab.progress import console, say, step
from lab.setup.kube import kube_binaries

EVIDENCE = paths.ROOT / "build" / "demo"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="lab.demo", description=__doc__)
    parser.add_argument("--context", default=os.environ.get("CONTEXT", ""), help="an existing cluster's context")
    parser.add_argument(
        "--registry", default=os.environ.get("REGISTRY", ""), help="where that cluster finds the images"
    )
    parser.add_argument("--keep", action="store_true", help="leave the cluster and the fleet running")
    return parser.parse_args()


@contextmanager
def local_stage(*, keep: bool) -> Iterator[Stage]:
    """Our own cluster, made here and unmade afterwards."""
    cluster = Cluster()
    found_running = cluster.running()
    try:
        with step("cluster"):
            cluster.up()
        volume = cluster.directory / VOLUME_PATH
        shutil.rmtree(volume, ignore_errors=True)
        volume.mkdir(parents=True)
        volume.chmod(0o777)  # the trainer is not root, and a hostPath knows no fsGroup
        yield Stage(
            kubectl=cluster.kubectl,
            helm=helm_of(cluster.kubectl),
            images=Images(OPERATOR.reference, TOOLS.reference, PROMETHEUS.reference, "Never"),
            audit_log=cluster.control_plane.audit_log,
            volume_path=volume,
            evidence=EVIDENCE,
        )
    finally:
        if keep or found_running:
            say(f"the cluster stays; KUBECONFIG={cluster.kubeconfig}")
        else:
            with step("remove the cluster"):
                cluster.down()


@contextmanager
def existing_stage(context: str, registry: str) -> Iterator[Stage]:
    """The user's cluster: we take only what we brought away again."""
    if not registry:
        raise LabError(
            "REGISTRY=, where the cluster finds the images",
            "nothing",
            "push both images there and name it: make demo CONTEXT=… REGISTRY=…",
        )
    require_machine()  # images are built on this one, whichever cluster they are for
    kubeconfig = Path(os.environ.get("KUBECONFIG", "~/.kube/config")).expanduser()
    kubectl = Kubectl(kube_binaries() / "kubectl", kubeconfig, context)
    names = push_images(build_images([OPERATOR, TOOLS, PROMETHEUS]), registry)
    images = Images(names[OPERATOR.reference], names[TOOLS.reference], names[PROMETHEUS.reference], "IfNotPresent")
    yield Stage(kubectl, helm_of(kubectl), images, audit_log=None, volume_path=None, evidence=EVIDENCE)


def _clean(stage: Stage) -> None:
    """Take away what an earlier run, or this one, installed."""
    stage.kubectl("delete", "precisionpolicies", "--all", "-n", NAMESPACE, "--ignore-not-found", check=False)
    stage.helm("uninstall", RELEASE, "--namespace", SYSTEM, "--ignore-not-found", "--wait")
    for namespace in (NAMESPACE, SYSTEM):
        stage.kubectl("delete", "namespace", namespace, "--ignore-not-found", "--timeout=120s", timeout=150)
    if stage.audit_log is not None:  # our own cluster: tests may have applied these without Helm
        for path in ("manifests/admission", "crds", "manifests/base/operator.yaml"):
            stage.kubectl("delete", "-f", paths.ROOT / path, "--ignore-not-found")
    advertise(stage.kubectl, ACCELERATOR, None)
    stage.kubectl("delete", "pv", "trainer-literal", "--ignore-not-found", "--timeout=60s")


def play(stage: Stage, *, keep: bool) -> Json:
    """The whole demo on a stage; returns the report."""
    with ExitStack() as stack:
        with step("what an earlier run left"):
            _clean(stage)
        if not keep:
            stack.callback(_clean, stage)
        with step("Prometheus in the cluster"):
            address = apply_prometheus(
                stage.kubectl, image=stage.images.prometheus, pull_policy=stage.images.pull_policy
            )
        proxy = stack.enter_context(ApiProxy(stage.kubectl))
        reachable = address if stage.audit_log is not None else proxy.url + SERVICE
        metrics = Metrics(api_server=proxy.url, prometheus=reachable, record=stage.evidence / "prometheus.jsonl")
        stage.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        logs = stack.enter_context(LogFollower(stage))
        story = Story(stage, metrics, Timeline(), api_server=proxy.url)
        facts = story.play()
        version = stage.kubectl.json("version")["serverVersion"]["gitVersion"]
        if stage.audit_log is not None:
            shutil.copy(stage.audit_log, stage.evidence / "audit.log")
        report = build(stage, facts, logs.folder, version=version)
    (stage.evidence / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


def main() -> int:
    """Run the demo; 0 only where every check held."""
    arguments = _arguments()
    take_sigterm_as_interrupt()
    shutil.rmtree(EVIDENCE, ignore_errors=True)
    EVIDENCE.mkdir(parents=True)
    console.record = True
    try:
        return _shown(arguments)
    finally:
        (EVIDENCE / "demo.svg").write_text(picture(console))


def _shown(arguments: argparse.Namespace) -> int:
    try:
        chosen = (
            existing_stage(arguments.context, arguments.registry)
            if arguments.context
            else local_stage(keep=arguments.keep)
        )
        with chosen as stage:
            report = play(stage, keep=arguments.keep)
    except KeyboardInterrupt:
        say("interrupted: everything that was started has been stopped")
        return INTERRUPTED
    except LabError as error:
        console.print(f"[red]{error}[/red]")
        return 1
    for check, held in report["checks"].items():
        console.print(f"  [{'green' if held else 'red'}]{'✔' if held else '✘'}[/] {check}")
    say(f"report: {EVIDENCE / 'report.json'}")
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
