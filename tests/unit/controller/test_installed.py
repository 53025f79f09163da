"""Whether the admission policies that are installed are the ones that are shipped."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from precision_operator.admission.objects import Shipped, shipped
from precision_operator.controller.installed import (
    AT_ONCE,
    FRESH_SECONDS,
    RETRY_SECONDS,
    InstalledPolicies,
    difference,
)
from precision_operator.core.model import Admission
from precision_operator.errors import Forbidden
from precision_operator.kube.port import MUTATING_WEBHOOKS, JsonObject, Resource
from precision_operator.kube.transport import READ_CONNECTIONS
from precision_operator.webhook.mode import AdmissionMode
from tests.support.fake_kube import FakeKube
from tests.support.manual_clock import ManualClock, finished
from tests.support.server import INSTALLED, SHIPPED, install, install_all

ASSIGN = next(ours for ours in shipped() if ours.kind == "MutatingAdmissionPolicy" and "assign" in ours.name)


def as_stored(spec: Mapping[str, object]) -> dict[str, Any]:
    """With what the API server (1.36) fills in."""
    stored: dict[str, Any] = copy.deepcopy(dict(spec))
    for field in ("matchConstraints", "matchResources"):
        for rule in stored.get(field, {}).get("resourceRules", ()):
            rule.setdefault("scope", "*")
        if field in stored:
            stored[field].setdefault("matchPolicy", "Equivalent")
            stored[field].setdefault("namespaceSelector", {})
            stored[field].setdefault("objectSelector", {})
    if "policyName" not in stored:
        stored.setdefault("failurePolicy", "Fail")
    return stored


def test_the_package_brings_the_manifests_along() -> None:
    kinds = {ours.kind for ours in shipped()}
    assert kinds == {
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
    assert all(ours.name and ours.spec for ours in shipped())


def test_in_webhook_mode_its_configuration_stands_in_place_of_what_mutates() -> None:
    webhook = shipped(webhook=True)
    assert [(ours.kind, ours.name) for ours in webhook if ours.needed] == [
        ("MutatingWebhookConfiguration", "precision-webhook.precision.genesis.ai")
    ]
    assert {ours.name for ours in webhook} >= {o.name for o in shipped() if o.kind == "ValidatingAdmissionPolicy"}
    assert not [ours for ours in webhook if ours.kind.startswith("MutatingAdmission")]


CONFIGURATION = next(o for o in shipped(webhook=True) if o.needed)


def stored_configuration() -> dict[str, Any]:
    """As an installation has it: its own Service, and the authority that API servers trust."""
    webhooks: Any = copy.deepcopy(CONFIGURATION.spec["webhooks"])
    for webhook in webhooks:
        webhook["clientConfig"] = {"service": {"namespace": "mine", "name": "w", "port": 443}, "caBundle": "QQ=="}
        webhook["objectSelector"] = {}
    return {"metadata": {"namespace": "", "name": CONFIGURATION.name}, "webhooks": webhooks}


async def test_who_serves_the_webhook_is_the_installations_choice_and_all_else_is_ours() -> None:
    async def found() -> Admission | None:
        return await InstalledPolicies(
            kube, ManualClock(), namespace="n", mode=AdmissionMode.WEBHOOK, ours=[CONFIGURATION]
        ).differs()

    kube = FakeKube()
    missing = await found()
    assert missing is not None
    assert (missing.reason, "upgrade the chart" in missing.message) == ("AdmissionNotInstalled", True)
    kube.put(MUTATING_WEBHOOKS, stored_configuration())
    assert await found() is None
    changed = stored_configuration()
    changed["webhooks"][0]["failurePolicy"] = "Fail"
    kube.put(MUTATING_WEBHOOKS, changed)
    differs = await found()
    assert differs is not None
    assert differs.reason == "AdmissionDiffers"
    assert "spec.webhooks[0].failurePolicy differs" in differs.message


OF_THE_CLOUD = {"key": "kubernetes.azure.com/managedby", "operator": "NotIn", "values": ["aks"]}
ONLY_SOME = {"key": "team", "operator": "In", "values": ["vision"]}


@pytest.mark.parametrize(
    ("added", "to", "reason"),
    [
        (OF_THE_CLOUD, (0, 1), None),
        ({"key": "control-plane", "operator": "DoesNotExist"}, (0, 1), None),
        (OF_THE_CLOUD, (0,), "AdmissionDiffers"),
        (ONLY_SOME, (0, 1), "AdmissionDiffers"),
    ],
    ids=["not-in", "does-not-exist", "not-of-the-echo", "narrowed"],
)
async def test_a_cloud_may_keep_all_of_the_webhook_away_from_its_own_namespaces(
    added: dict[str, Any], to: tuple[int, ...], reason: str | None
) -> None:
    """AKS does so to each webhook of others. Where only the echo still came, it would prove nothing."""
    kube, body = FakeKube(), stored_configuration()
    for index in to:
        selector = copy.deepcopy(body["webhooks"][index]["namespaceSelector"])
        selector["matchExpressions"].insert(0, added)
        body["webhooks"][index]["namespaceSelector"] = selector
    kube.put(MUTATING_WEBHOOKS, body)
    policies = InstalledPolicies(kube, ManualClock(), namespace="n", mode=AdmissionMode.WEBHOOK, ours=[CONFIGURATION])
    found = await policies.differs()
    assert (found.reason if found is not None else None) == reason


@pytest.mark.parametrize("ours", shipped(), ids=lambda ours: f"{ours.kind} {ours.name}")
async def test_what_the_api_server_fills_in_is_no_difference(ours: Shipped) -> None:
    assert difference(ours.spec, as_stored(ours.spec)) is None


def moved(spec: object, namespace: str, account: str) -> dict[str, Any]:
    """As another installation has it."""
    raw = json.dumps(spec).replace(
        "system:serviceaccount:precision-system:precision-operator", f"system:serviceaccount:{namespace}:{account}"
    )
    found: dict[str, Any] = json.loads(raw.replace('"precision-system"', json.dumps(namespace)))
    return found


async def test_an_installation_chooses_its_namespace_and_its_account() -> None:
    kube = FakeKube()
    for ours in shipped():
        plural = {
            "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
            "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
            "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
            "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
        }[ours.kind]
        spec = moved(as_stored(ours.spec), "ml-platform", "release.operator")
        resource = Resource("admissionregistration.k8s.io", "v1", plural)
        kube.put(resource, {"metadata": {"namespace": "", "name": ours.name}, "spec": spec})
    assert await InstalledPolicies(kube, ManualClock(), namespace="ml-platform").differs() is None
    elsewhere = await InstalledPolicies(kube, ManualClock(), namespace="another").differs()
    assert elsewhere is not None, "the operator's own namespace is not left out of the assigning policy"


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"failurePolicy": "Fail"}, "spec.failurePolicy"),
        ({"variables": [{"name": "b"}]}, "spec.variables[0].name"),
        ({"variables": []}, "spec.variables"),
        ({"matchConditions": [{"name": "never", "expression": "false"}]}, "spec.matchConditions"),
        ({"matchConstraints": {"namespaceSelector": {"matchLabels": {"a": "b"}}}}, "spec.matchConstraints"),
    ],
)
async def test_a_field_that_is_not_as_shipped_is_named(change: dict[str, Any], where: str) -> None:
    kube = FakeKube()
    install_all(kube)
    install(kube, SHIPPED[0].kind, SHIPPED[0].name, {**SHIPPED[0].spec, **change})
    found = await InstalledPolicies(kube, ManualClock(), namespace="n", ours=SHIPPED).differs()
    assert found is not None
    assert (found.enforced, found.reason) == (False, "AdmissionDiffers")
    assert f"{where} differs" in found.message


@pytest.mark.parametrize(
    "added",
    [
        {"matchConditions": [{"name": "never", "expression": "false"}]},
        {"matchConstraints": {**ASSIGN.spec["matchConstraints"], "matchPolicy": "Exact"}},  # type: ignore[dict-item]
        {"matchConstraints": {**ASSIGN.spec["matchConstraints"], "excludeResourceRules": [{"operations": ["*"]}]}},  # type: ignore[dict-item]
    ],
)
def test_what_somebody_added_to_the_assigning_policy_to_weaken_it_is_a_difference(added: dict[str, Any]) -> None:
    stored = as_stored(ASSIGN.spec)
    for field, value in added.items():
        stored[field] = value if field not in stored or isinstance(value, dict) else [*stored[field], *value]
    assert difference(ASSIGN.spec, stored) is not None


async def test_a_policy_that_is_missing_is_named() -> None:
    kube = FakeKube()
    install(kube, SHIPPED[0].kind, SHIPPED[0].name, SHIPPED[0].spec)
    found = await InstalledPolicies(kube, ManualClock(), namespace="n", ours=SHIPPED).differs()
    assert found is not None
    assert (found.enforced, found.reason) == (False, "AdmissionNotInstalled")
    assert SHIPPED[1].name in found.message


async def test_a_guard_of_people_that_an_admin_leaves_out_is_no_difference() -> None:
    kube = FakeKube()
    install_all(kube)
    guard = Shipped("ValidatingAdmissionPolicyBinding", "author", {"policyName": "author"}, needed=False)
    assert await InstalledPolicies(kube, ManualClock(), namespace="n", ours=(*SHIPPED, guard)).differs() is None
    install(kube, guard.kind, guard.name, {"policyName": "another"})
    found = await InstalledPolicies(kube, ManualClock(), namespace="n", ours=(*SHIPPED, guard)).differs()
    assert found is not None
    assert found.reason == "AdmissionDiffers"


def test_nothing_is_promoted_without_what_assigns_and_what_proves_it() -> None:
    needed = {ours.name.partition(".")[0] for ours in shipped() if ours.needed}
    assert needed == {"precision-assign", "precision-echo"}


async def test_a_guard_of_people_may_be_left_out_but_not_be_another_one() -> None:
    kube = FakeKube()
    install_all(kube)
    guard = replace(SHIPPED[1], name="guard", needed=False)
    ours = (*SHIPPED, guard)
    assert await InstalledPolicies(kube, ManualClock(), namespace="n", ours=ours).differs() is None
    install(kube, guard.kind, guard.name, {**guard.spec, "validationActions": ["Warn"]})
    assert await InstalledPolicies(kube, ManualClock(), namespace="n", ours=ours).differs() is not None
    needed = {ours.name.partition(".")[0] for ours in shipped() if ours.needed}
    assert needed == {"precision-assign", "precision-echo"}


async def test_a_policy_that_only_the_older_version_serves_is_found() -> None:
    kube = FakeKube()
    install_all(kube)

    class Older(FakeKube):
        async def get(self, resource: Resource, namespace: str, name: str) -> JsonObject:
            self.reads.append(("get", resource.version, name))
            wanted = "v1beta1" if resource.plural.startswith("mutating") else "v1"
            return await super().get(resource, namespace, name if resource.version == wanted else "")

    older = Older()
    older.objects = kube.objects
    assert await InstalledPolicies(older, ManualClock(), namespace="n", ours=SHIPPED).differs() is None
    assert ("get", "v1beta1", SHIPPED[0].name) in older.reads


async def test_what_may_not_be_read_is_not_known() -> None:
    class Closed(FakeKube):
        async def get(self, resource: Resource, namespace: str, name: str) -> JsonObject:
            raise Forbidden("may not get", status=403)

    found = await InstalledPolicies(Closed(), ManualClock(), namespace="n", ours=SHIPPED).differs()
    assert found is not None
    assert (found.enforced, found.reason) == (None, "Forbidden")


async def test_it_is_compared_once_a_minute_and_sooner_where_something_differs() -> None:
    kube, clock = FakeKube(), ManualClock()
    install_all(kube)
    installed = InstalledPolicies(kube, clock, namespace="n", ours=SHIPPED)
    for _ in range(5):
        assert await installed.differs() is None
    assert len(kube.reads) == len(SHIPPED)
    del kube.objects[INSTALLED[SHIPPED[0].kind].plural, "", SHIPPED[0].name]
    await clock.advance(FRESH_SECONDS)
    for _ in range(5):
        assert await installed.differs() is not None
    assert len(kube.reads) <= 2 * len(SHIPPED) + 1
    install_all(kube)
    await clock.advance(RETRY_SECONDS)
    assert await installed.differs() is None


class Slow(FakeKube):
    """A read takes a tenth of a second."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self.most = self.now = 0
        install_all(self)

    async def get(self, resource: Resource, namespace: str, name: str) -> JsonObject:
        self.now += 1
        self.most = max(self.most, self.now)
        await self._clock.sleep(0.1)
        self.now -= 1
        return await super().get(resource, namespace, name)


def many(number: int) -> tuple[Shipped, ...]:
    return tuple(SHIPPED[1] for _ in range(number))


async def test_a_few_are_read_at_once_and_never_so_many_that_a_lease_would_wait_for_a_connection() -> None:
    clock = ManualClock()
    kube = Slow(clock)
    began = clock.now
    installed = InstalledPolicies(kube, clock, namespace="n", ours=many(5 * AT_ONCE))
    assert await finished(clock, installed.differs()) is None
    assert clock.now - began < 1.0, "one after another it is two seconds"
    assert 1 < kube.most <= AT_ONCE < READ_CONNECTIONS


async def test_whoever_asks_during_a_comparison_shares_its_result() -> None:
    clock = ManualClock()
    kube = Slow(clock)
    installed = InstalledPolicies(kube, clock, namespace="n", ours=SHIPPED)
    await finished(clock, asyncio.gather(*(installed.differs() for _ in range(5))))
    assert len(kube.reads) == len(SHIPPED)


async def test_the_first_difference_is_named_and_what_follows_is_left_unread() -> None:
    kube = FakeKube()
    install_all(kube)
    absent = [replace(SHIPPED[1], name=f"absent-{number}") for number in range(2)]
    ours = (SHIPPED[1], *absent, *many(5 * AT_ONCE))
    found = await InstalledPolicies(kube, ManualClock(), namespace="n", ours=ours).differs()
    assert found is not None
    assert "absent-0" in found.message
    assert len({name for _, _, name in kube.reads}) == 3
    assert len(kube.reads) <= 2 * AT_ONCE
