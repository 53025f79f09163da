"""The operator as it is installed: its Deployment, its config, and the line that installs or upgrades it."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from precision_operator import __version__
from precision_operator.api.codec import decode
from precision_operator.api.wire import mapping, sequence, text
from precision_operator.cli.release import PART_OF
from precision_operator.cli.session import Session
from precision_operator.errors import Forbidden, NotFound
from precision_operator.kube.port import CONFIG_MAPS, DEPLOYMENTS, JsonObject
from precision_operator.settings import Settings

CHART = Path("helm/precision-operator")
"""In a checkout of the sources."""
CONFIG_FILE = "config.yaml"
"""Key of the operator's ConfigMap (helm/precision-operator/templates/configmap.yaml)."""
_HELM_FLAGS = {"--context": "--kube-context"}


_RELEASE = "precision-operator"


@dataclass(frozen=True, slots=True)
class Installed:
    """What the chart's labels find."""

    namespace: str = "precision-system"
    release: str = _RELEASE
    body: JsonObject | None = None
    """The Deployment; None: there is none."""

    @property
    def pod_spec(self) -> Mapping[str, object]:
        """Of its template."""
        return mapping(mapping(mapping(mapping(self.body or {}).get("spec")).get("template")).get("spec"))


def meta(body: JsonObject, field: str) -> str:
    """A text of an object's metadata."""
    return text(mapping(body.get("metadata")).get(field))


async def installed(session: Session) -> Installed:
    """The operator's Deployment, wherever it is."""
    found = await session.api.list(DEPLOYMENTS, "", label_selector=PART_OF)
    if not found:
        return Installed()
    labels = mapping(mapping(found[0].get("metadata")).get("labels"))
    release = text(labels.get("app.kubernetes.io/instance")) or _RELEASE
    return Installed(meta(found[0], "namespace"), release, found[0])


async def install_line(session: Session, *values: str) -> str:
    """The line that installs the chart, or upgrades the release that there is, as far as it can be known from here."""
    try:
        found = await installed(session)
        chart = _chart(found)
    except Forbidden:  # who may not see what is installed asks Helm
        found, chart = Installed(), []
    flags = [_HELM_FLAGS.get(word, word) for word in session.flags]
    if not chart:
        return shlex.join(["helm", "list", "--all-namespaces", "--filter", "precision", *flags])
    where = ["-n", found.namespace, "--reset-then-reuse-values" if found.body else "--create-namespace"]
    settings = [word for value in values for word in ("--set", value)]
    return shlex.join(["helm", "upgrade", "--install", found.release, *chart, *where, *settings, *flags])


def _chart(found: Installed) -> list[str]:
    """Of this checkout, else of the registry that the images came from, where a release was pushed; empty: not known."""
    if CHART.is_dir():
        return [str(CHART)]
    containers = [mapping(container) for container in sequence(found.pod_spec.get("containers"))]
    registry, slash, _ = text(containers[0].get("image")).rpartition("/") if containers else ("", "", "")
    return [f"oci://{registry}/charts/{CHART.name}", "--version", __version__] if slash else []


async def config_of(session: Session, found: Installed) -> Settings | None:
    """As the operator's config has it; None where that cannot be read: it is no right of everybody."""
    for volume in map(mapping, sequence(found.pod_spec.get("volumes"))):
        name = text(mapping(volume.get("configMap")).get("name"))
        try:
            body = await session.api.get(CONFIG_MAPS, found.namespace, name) if name else {}
            config = mapping(body.get("data")).get(CONFIG_FILE)
            if config is not None:
                return decode(mapping(yaml.safe_load(text(config))), Settings())
        except (Forbidden, NotFound, yaml.YAMLError):
            continue
    return None
