"""Which pages are pasted, in which order, and what the lab does between their blocks.

Nothing is left out of a block. What a reader must fill in (an address, the number of an incident) is filled in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import yaml

from lab import paths
from lab.docs.commands import Block, all_blocks, blocks_of
from lab.process import run
from lab.surfaces.scene import POLICY, SYSTEM, TRAINING, Scene, trainer
from lab.surfaces.sentences import needs_held
from lab.waiting import wait_for
from precision_operator.api.drill import DrillResult

RESULT = paths.BUILD / "surfaces.json"
RUNBOOK_COMMANDS = "runbook_commands"
"""Its key with the commands of the runbooks that succeeded, as they stand there."""
MARK = "make surfaces"
"""What pages name above a block that is run here."""

SAMPLE, SAMPLE_APP = "trainers", "trainer"
"""The policy of the README's block, and the label ``app`` of its fleet."""

Hook = Callable[[Scene], None]
Fill = Callable[[Scene], Mapping[str, str]]


def _nothing(_: Scene) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class Walk:
    """One page, pasted from its top to its end."""

    page: str
    begin: Hook | None = None
    """What must be so before the first block."""
    before: Mapping[str, Hook] = field(default_factory=dict)
    """What must be so before a block that begins like this."""
    fill: Fill = _nothing
    """What stands in a block for the reader to replace, and what they put there."""
    cluster: bool = True
    sentences: bool = False
    """Its commands within sentences are rehearsed after its blocks."""

    def prepare(self, block: Block, scene: Scene) -> None:
        """Make it so."""
        if self.begin is not None and block == self.blocks()[0]:
            self.begin(scene)
        for beginning, hook in self.before.items():
            if block.text.startswith(beginning):
                hook(scene)

    def blocks(self) -> list[Block]:
        """Its blocks that name this run."""
        return [block for block in all_blocks() if block.page == self.page and block.test == MARK]


def _namespace(name: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _fleet_file(scene: Scene) -> None:
    """The policy that the page shows, in the file that it names; and the trainers of the reader's team."""
    page = "docs/quick-start.md"
    shown = [block for block in blocks_of(page, (paths.ROOT / page).read_text()) if block.language == "yaml"]
    (scene.folder / "fleet.yaml").write_text(shown[0].text)
    scene.kubectl.apply(trainer("Deployment", contract=False), trainer("StatefulSet", contract=True))
    for kind in ("deployment", "statefulset"):
        scene.kubectl("rollout", "status", f"{kind}/vit", "-n", TRAINING, "--timeout=180s", timeout=200)


def begin_own_fleet(scene: Scene) -> None:
    """What a reader of the README has: a namespace, and in it a trainer with the label that the sample names."""
    scene.kubectl.apply(
        _namespace(TRAINING), trainer("Deployment", contract=False, name="own", fleet={"app": SAMPLE_APP})
    )
    scene.kubectl("rollout", "status", "deployment/own", "-n", TRAINING, "--timeout=180s", timeout=200)


def end_own_fleet(scene: Scene) -> None:
    """Before another page begins: what the README's block made, and its fleet."""
    for what in ("deployment/own", f"precisionpolicy/{SAMPLE}"):
        scene.kubectl("delete", what, "-n", TRAINING, "--timeout=180s", timeout=200)


def _hurry(scene: Scene) -> None:
    scene.hurry()


def _healthy(scene: Scene) -> None:
    scene.healthy()


def _held(scene: Scene) -> None:
    if scene.policy()["status"].get("phase") != "Held":
        scene.healthy()
        plugin = scene.folder / "venv" / "bin" / "kubectl-precision"
        run([plugin, "rollback", POLICY, "-n", TRAINING, "--emergency", "-m", "a rehearsal"], env=scene.environment)
        scene.wait_for_phase("Held")


def before_sentence(command: str, scene: Scene) -> None:
    """What must be so before a command of a sentence."""
    if needs_held(command):
        _held(scene)
    else:
        _healthy(scene)
    if "precision-halt" in command:
        _halted(scene)


def _plotting(scene: Scene) -> None:
    """What the page asks for, to have plots: in the venv of the quick start."""
    _held(scene)
    run([scene.folder / "venv" / "bin" / "pip", "install", ".[figures]"], cwd=scene.folder, env=scene.environment)


def _halted(scene: Scene) -> None:
    metadata = {"name": "precision-halt", "namespace": SYSTEM}
    reason = {"reason": "a rehearsal"}
    scene.kubectl.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": reason})


def _goes_on(scene: Scene) -> None:
    scene.kubectl("delete", "configmap", "precision-halt", "-n", SYSTEM)


def _monitors(scene: Scene) -> None:
    """The kinds of the Prometheus operator, without the operator: the chart asks for no more."""
    for kind, plural in (
        ("ServiceMonitor", "servicemonitors"),
        ("PodMonitor", "podmonitors"),
        ("PrometheusRule", "prometheusrules"),
    ):
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        group = "monitoring.coreos.com"
        scene.kubectl.apply(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": f"{plural}.{group}"},
                "spec": {
                    "group": group,
                    "scope": "Namespaced",
                    "names": {"kind": kind, "plural": plural},
                    "versions": [version],
                },
            }
        )
        scene.kubectl("wait", "--for=condition=Established", f"crd/{plural}.{group}", "--timeout=30s")


def _argocd(scene: Scene) -> None:
    configuration = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "argocd-cm", "namespace": "argocd"}}
    scene.kubectl.apply(_namespace("argocd"), configuration)


def _drilled(scene: Scene) -> None:
    """The drill has passed, and all are back in the target."""

    def found() -> tuple[object, bool]:
        status = scene.policy()["status"]
        return status.get("lastDrill", {}).get("result"), status["moved"] == status["total"]

    wait_for(
        lambda: found() == (DrillResult.PASSED, True), what="the drill to pass", seconds=300, found=lambda: str(found())
    )


def _node(scene: Scene) -> Mapping[str, str]:
    (node,) = scene.kubectl.json("get", "nodes")["items"]
    return {"worker-1 worker-2": node["metadata"]["name"]}


def _incident(scene: Scene) -> Mapping[str, str]:
    found = scene.kubectl.json("get", "precisionincidents", "-n", TRAINING)["items"]
    newest = max(found, key=lambda incident: str(incident["metadata"]["creationTimestamp"]))
    (scene.folder / "policy.yaml").write_text(yaml.safe_dump(_written(scene.policy())))
    return {"fleet-4": newest["metadata"]["name"], "http://…": scene.prometheus, "--since 30d": "--since 1h"}


def _written(policy: Mapping[str, object]) -> dict[str, object]:
    metadata = {"name": POLICY, "namespace": TRAINING}
    return {"apiVersion": policy["apiVersion"], "kind": policy["kind"], "metadata": metadata, "spec": policy["spec"]}


def _tokens(_: Scene) -> Mapping[str, str]:
    return {'"$OLD" "$NEW"': f'"{"0" * 64}" "{"1" * 64}"'}


def _checkpoints(scene: Scene) -> Mapping[str, str]:
    return {"/ckpt": str(scene.folder / "ckpt"), "step-000000000100": "step-*"}


def _kind(_: Scene) -> Mapping[str, str]:
    return {"--workload vit": "--workload deployment/vit"}


def _user(scene: Scene) -> Mapping[str, str]:
    who = scene.kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}").stdout
    return {"alice": who.strip()}


def _label(_: Scene) -> Mapping[str, str]:
    return {"<your fleet's label>": "fleet=vision"}


def _digest(_: Scene) -> Mapping[str, str]:
    """Of an image that was imported into the node there is none: no registry has it, and the tag stays."""
    return {"image.digest=sha256:…": "image.digest="}


def installed(scene: Scene) -> Mapping[str, str]:
    """What the README's block needs: images that are on the node already, and the name of the reader's Deployment."""
    del scene
    return {
        "--set image.registry=host/path": "--set image.registry=localhost --set image.tag=dev --set image.pullPolicy=Never",
        "kubectl patch deployment NAME": "kubectl patch deployment own",
    }


WALKS = (
    Walk(
        "docs/quick-start.md",
        before={"kubectl precision lint": _fleet_file, "kubectl patch precisionpolicy": _hurry},
    ),
    Walk("docs/onboarding.md", begin=_healthy),
    Walk("docs/gain.md", begin=_healthy),
    Walk("docs/troubleshooting.md"),
    Walk("docs/gitops.md", before={"kubectl patch configmap argocd-cm": _argocd}),
    Walk("docs/safety.md"),
    Walk("docs/promotion.md", fill=_node),
    Walk("docs/roles.md"),
    Walk("docs/several-teams.md"),
    Walk("docs/restarts.md"),
    Walk("docs/reference/kinds.md"),
    Walk("docs/reference/old-annotations.md", fill=_label),
    Walk("docs/alertmanager.md", fill=_tokens),
    Walk("docs/notifications.md"),
    Walk("docs/network-policy.md"),
    Walk("docs/reference/cli.md", begin=_healthy),
    Walk(
        "docs/runbooks.md",
        begin=_monitors,
        sentences=True,
        before={
            "kubectl get configmap precision-halt": _halted,
            "kubectl get pods -n monitoring": _goes_on,
            "kubectl precision drill": _healthy,
            "kubectl precision rollback": _healthy,
            "kubectl annotate pods": _healthy,
        },
    ),
    Walk("docs/incidents.md", begin=_plotting, fill=_incident),
    Walk("docs/retry.md", begin=_held),
    Walk(
        "docs/drill.md", begin=_healthy, before={"kubectl precision drill fleet -n training -m": _drilled}, fill=_kind
    ),
    Walk("docs/reference/admission.md", begin=_healthy, fill=_user),
    Walk("docs/models.md", cluster=False),
    Walk("docs/trainer.md", cluster=False, fill=_checkpoints),
    Walk("docs/analyzer.md", cluster=False),
    Walk("docs/install.md", begin=_monitors, fill=_digest),
)
"""In this order: the quick start makes the fleet that the others look at, and the last one uninstalls."""
