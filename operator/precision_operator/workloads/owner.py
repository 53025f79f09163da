"""Who controls an object, as its own body says."""

from collections.abc import Mapping
from dataclasses import dataclass

from precision_operator.api.text import bounded
from precision_operator.api.wire import mapping, sequence, text

NAME_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class Owner:
    """The object that controls another."""

    kind: str
    """Without its version: ``apps/Deployment``, as a key begins."""
    name: str
    uid: str

    def __str__(self) -> str:
        """For a person: ``JobSet/train``."""
        return bounded(f"{self.kind.rpartition('/')[2]}/{self.name}", NAME_CHARACTERS)


def controller_of(body: Mapping[str, object]) -> Owner | None:
    """What controls this object; None where nothing does."""
    for owner in map(mapping, sequence(mapping(body.get("metadata")).get("ownerReferences"))):
        if owner.get("controller") is True:
            group, slash, _ = text(owner.get("apiVersion")).partition("/")
            kind = f"{group if slash else ''}/{text(owner.get('kind'))}"
            return Owner(kind, text(owner.get("name")), text(owner.get("uid")))
    return None
