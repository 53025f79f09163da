"""The leader keeps the certificates; every replica serves them."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from precision_operator.errors import Forbidden
from precision_operator.kube.port import MUTATING_WEBHOOKS, SECRETS, JsonObject, JsonValue
from precision_operator.settings import AdmissionSettings
from precision_operator.webhook.keeper import CONFIGURATION, CertificateKeeper
from tests.support.fake_kube import FakeKube
from tests.support.manual_clock import ManualClock
from tests.support.tls import NAMESPACE

SETTINGS = AdmissionSettings()
MADE_AGAIN: dict[str, JsonValue] = {"uid": "made-again"}


def configuration() -> JsonObject:
    webhooks: list[JsonValue] = [
        {"name": name, "clientConfig": {"service": {"name": "w"}}} for name in ("assign", "echo")
    ]
    return {"metadata": {"name": CONFIGURATION, "namespace": ""}, "webhooks": webhooks}


def installed() -> FakeKube:
    kube = FakeKube()
    kube.put(MUTATING_WEBHOOKS, configuration())
    return kube


def replica(
    kube: FakeKube, *, leading: bool, clock: ManualClock | None = None, settings: AdmissionSettings = SETTINGS
) -> CertificateKeeper:
    return CertificateKeeper(
        kube, clock or ManualClock(), settings=settings, namespace=NAMESPACE, leading=lambda: leading
    )


def secret(kube: FakeKube) -> dict[str, str]:
    body: Any = kube.objects[SECRETS.plural, NAMESPACE, SETTINGS.secret]
    data: dict[str, str] = body["data"]
    return data


def bundles(kube: FakeKube) -> list[str]:
    body: Any = kube.objects[MUTATING_WEBHOOKS.plural, "", CONFIGURATION]
    return [webhook["clientConfig"].get("caBundle", "") for webhook in body["webhooks"]]


def self_signed(*, bits: int) -> dict[str, bytes]:
    key = rsa.generate_private_key(65537, bits)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "w")])
    begin = datetime(2026, 11, 22, tzinfo=UTC)
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = built.serial_number(1).not_valid_before(begin).not_valid_after(begin + timedelta(days=9))
    certificate = made.sign(key, hashes.SHA256())
    plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return {"crt": certificate.public_bytes(Encoding.PEM), "key": plain}


async def test_only_the_leader_writes_and_the_others_serve_what_it_wrote() -> None:
    kube = installed()
    follower, leader = replica(kube, leading=False), replica(kube, leading=True)
    await follower.look()
    assert (kube.writes, follower.loaded) == ([], False)
    await leader.look()
    assert leader.loaded
    assert bundles(kube) == [secret(kube)["ca.crt"]] * 2
    written = list(kube.writes)
    await follower.look()
    await leader.look()
    assert follower.loaded
    assert follower.trusted == leader.trusted == base64.b64decode(secret(kube)["ca.crt"])
    assert kube.writes == written, "what is as it should be is not written again"


def owners(kube: FakeKube) -> list[str]:
    body: Any = kube.objects[SECRETS.plural, NAMESPACE, SETTINGS.secret]
    return [owner["uid"] for owner in body["metadata"].get("ownerReferences", [])]


def uid_of_the_configuration(kube: FakeKube) -> str:
    body: Any = kube.objects[MUTATING_WEBHOOKS.plural, "", CONFIGURATION]
    uid: str = body["metadata"]["uid"]
    return uid


async def test_the_secret_goes_with_the_configuration_that_trusts_it() -> None:
    kube = installed()
    leader = replica(kube, leading=True)
    await leader.look()
    assert owners(kube) == [uid_of_the_configuration(kube)]
    before = secret(kube)
    again = configuration()
    kube.put(MUTATING_WEBHOOKS, {**again, "metadata": {**MADE_AGAIN, "name": CONFIGURATION, "namespace": ""}})
    await leader.look()
    assert owners(kube) == ["made-again"]
    assert secret(kube) == before


async def test_a_secret_of_an_earlier_version_gets_its_owner_without_new_certificates() -> None:
    kube = installed()
    leader = replica(kube, leading=True)
    await leader.look()
    before = secret(kube)
    body: Any = kube.objects[SECRETS.plural, NAMESPACE, SETTINGS.secret]
    del body["metadata"]["ownerReferences"]
    await leader.look()
    assert owners(kube) == [uid_of_the_configuration(kube)]
    assert secret(kube) == before


async def test_once_the_configuration_is_gone_no_secret_is_made_again() -> None:
    kube = installed()
    leader = replica(kube, leading=True)
    await leader.look()
    del kube.objects[MUTATING_WEBHOOKS.plural, "", CONFIGURATION]
    del kube.objects[SECRETS.plural, NAMESPACE, SETTINGS.secret]
    await leader.look()
    assert (SECRETS.plural, NAMESPACE, SETTINGS.secret) not in kube.objects


async def test_of_our_configuration_nothing_but_the_bundle_is_changed() -> None:
    kube = installed()
    await replica(kube, leading=True).look()
    body: Any = kube.objects[MUTATING_WEBHOOKS.plural, "", CONFIGURATION]
    for webhook in body["webhooks"]:
        del webhook["clientConfig"]["caBundle"]
    assert body["webhooks"] == configuration()["webhooks"]


async def test_a_new_leaf_of_a_new_authority_is_made_one_pass_after_it_is_trusted() -> None:
    kube, clock = installed(), ManualClock()
    leader = replica(kube, leading=True, clock=clock)
    await leader.look()
    before = secret(kube)
    clock.now += 0.67 * SETTINGS.authority_seconds
    kube.put(SECRETS, {**kube.objects[SECRETS.plural, NAMESPACE, SETTINGS.secret], "data": {**before}})
    await leader.look()
    assert secret(kube)["ca.crt"] != before["ca.crt"]
    assert bundles(kube) == [secret(kube)["ca.crt"]] * 2
    assert secret(kube)["tls.crt"] == before["tls.crt"]
    await leader.look()
    assert secret(kube)["tls.crt"] != before["tls.crt"]


async def test_a_new_leaf_is_loaded_into_the_context_that_serves() -> None:
    kube, clock = installed(), ManualClock()
    leader, follower = replica(kube, leading=True, clock=clock), replica(kube, leading=False)
    await leader.look()
    await follower.look()
    context, loaded = follower.context, follower._loaded
    clock.now += 0.7 * SETTINGS.leaf_seconds
    await leader.look()
    await follower.look()
    assert follower.context is context
    assert follower._loaded != loaded


async def test_a_broken_secret_leaves_the_last_good_leaf_in_use(caplog: pytest.LogCaptureFixture) -> None:
    kube = installed()
    follower = replica(kube, leading=False)
    await replica(kube, leading=True).look()
    await follower.look()
    loaded = follower._loaded
    broken = {**secret(kube), "tls.key": base64.b64encode(b"garbage").decode()}
    kube.put(SECRETS, {**kube.objects[SECRETS.plural, NAMESPACE, SETTINGS.secret], "data": {**broken}})
    await follower.look()
    assert follower._loaded == loaded
    assert "no certificate with its key" in caplog.text


async def test_a_certificate_that_cannot_be_served_leaves_the_last_good_one_in_use(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A short key is refused only when it is loaded, and must not end the process."""
    kube = installed()
    follower = replica(kube, leading=False)
    await replica(kube, leading=True).look()
    await follower.look()
    loaded = follower._loaded
    short = {f"tls.{name}": base64.b64encode(part).decode() for name, part in self_signed(bits=1024).items()}
    kube.put(SECRETS, {**kube.objects[SECRETS.plural, NAMESPACE, SETTINGS.secret], "data": {**secret(kube), **short}})
    await follower.look()
    assert (follower.loaded, follower._loaded) == (True, loaded)
    assert "cannot be served" in caplog.text


async def test_what_cert_manager_keeps_is_only_read() -> None:
    kube = installed()
    await replica(kube, leading=True).look()
    written = list(kube.writes)
    theirs = replica(kube, leading=True, settings=AdmissionSettings(cert_manager=True))
    kube.put(MUTATING_WEBHOOKS, configuration())
    await theirs.look()
    assert theirs.loaded
    assert kube.writes == written
    assert bundles(kube) == ["", ""]


async def test_a_refused_write_is_logged_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    kube, clock = installed(), ManualClock()

    def refuse(verb: str, key: object) -> None:
        raise Forbidden("secrets is forbidden", status=403)

    kube.before_write = refuse
    leader = replica(kube, leading=True, clock=clock)
    task = asyncio.create_task(leader.run())
    await clock.advance(5)
    assert caplog.text.count("certificates cannot be kept") == 1
    kube.before_write = lambda verb, key: None
    await clock.advance(2)
    assert leader.loaded
    task.cancel()
