"""Who controls an object, as its own body says."""

from collections.abc import Mapping
from typing import NamedTuple

from precision_operator.api.text import bounded
from precision_operator.api.wire import mapping, sequence, text

NAME_CHARACTERS = 80


class Owner(NamedTuple):
    """The object that controls another."""

    group: str
    kind_name: str
    name: str
    uid: str

    @property
    def kind(self) -> str:
        """As a key begins: ``apps/Deployment``."""
        return f"{self.group}/{self.kind_name}"

    def __str__(self) -> str:
        """For a person: ``JobSet/train``."""
        return bounded(f"{self.kind_name}/{self.name}", NAME_CHARACTERS)


def controller_of(body: Mapping[str, object]) -> Owner | None:
    """What controls this object; None where nothing does."""
    for owner in map(mapping, sequence(mapping(body.get("metadata")).get("ownerReferences"))):
        if owner.get("controller") is True:
            group, slash, _ = text(owner.get("apiVersion")).partition("/")
            return Owner(
                group if slash else "", text(owner.get("kind")), text(owner.get("name")), text(owner.get("uid"))
            )
    return None
