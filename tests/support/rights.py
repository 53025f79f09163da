"""Rights that are granted, and rights that were used: the same two sets are compared in every installation mode."""

from __future__ import annotations

from collections.abc import Iterable

from lab.cluster.audit import Right, Rights
from lab.cluster.manifests import OPERATOR
from tests.support.bodies import Json

_, _, _NAMESPACE, _NAME = OPERATOR.split(":")


def granted(objects: Iterable[Json]) -> frozenset[Right]:
    """Every single right that these manifests give to the operator's account."""
    bodies = list(objects)
    subject = {"kind": "ServiceAccount", "name": _NAME, "namespace": _NAMESPACE}
    bound = {
        (o["roleRef"]["kind"], o["metadata"].get("namespace", ""), o["roleRef"]["name"])
        for o in bodies
        if o["kind"] in ("RoleBinding", "ClusterRoleBinding") and subject in o["subjects"]
    }
    roles = [o for o in bodies if (o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"]) in bound]
    assert len(roles) == len(bound), "a binding names a role that is not there"
    return frozenset(
        Right(group, resource, verb, name)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    )


def unused(rules: frozenset[Right], found: Rights) -> list[Right]:
    """Rights that were given and that no request needed."""
    return sorted(rule for rule in rules if not any(rule.covers(needed) for needed in found.used))


def beyond(rules: frozenset[Right], found: Rights) -> list[Right]:
    """What requests needed and these rules do not give: something else allowed it, or it was refused."""
    needed = found.used | found.refused
    return sorted(one for one in needed if not any(rule.covers(one) for rule in rules))
