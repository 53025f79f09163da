"""The objects of admission that an installation has: their kinds, and the copies in this package."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

import yaml

from precision_operator.api.wire import mapping, sequence, text

GROUP = "admissionregistration.k8s.io"
VERSIONS = ("v1", "v1beta1")
PLURALS = {
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
}
"""By kind, in the order in which they are removed."""

_NEEDED = ("precision-assign.", "precision-echo.", "precision-webhook.")
"""Names of what gives new pods their mode, and of what proves it."""
_FOLDER = resources.files(__package__) / "shipped"


@dataclass(frozen=True, slots=True)
class Shipped:
    """One object of ours."""

    kind: str
    name: str
    spec: Mapping[str, object]
    needed: bool = True
    """Nothing is promoted without it."""

    @property
    def mutates(self) -> bool:
        """It changes new pods, or binds what does."""
        return self.kind.startswith("Mutating")


def shipped(*, webhook: bool = False) -> tuple[Shipped, ...]:
    """Those of manifests/admission; with the ``webhook``, those of manifests/webhook in place of what mutates."""
    policies = tuple(_read(_FOLDER))
    if not webhook:
        return policies
    return (*_read(_FOLDER / "webhook"), *(ours for ours in policies if not ours.mutates))


def _read(folder: Traversable) -> Iterator[Shipped]:
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    for body in (body for file in files for body in yaml.safe_load_all(file.read_text()) if body):
        name = text(mapping(body.get("metadata")).get("name"))
        yield Shipped(text(body.get("kind")), name, spec_of(body), name.startswith(_NEEDED))


def spec_of(body: Mapping[str, object]) -> Mapping[str, object]:
    """What is compared. Where a webhook's server stands, and who signs for it, is the installation's."""
    if "webhooks" not in body:
        return mapping(body.get("spec"))
    webhooks = map(mapping, sequence(body.get("webhooks")))
    return {"webhooks": [{k: v for k, v in webhook.items() if k != "clientConfig"} for webhook in webhooks]}
