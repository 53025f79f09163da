"""Keeps the webhook's certificates: the leader makes and rotates them, and every replica serves the newest that it reads."""

import base64
import logging
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import cast

from precision_operator.api.wire import mapping, sequence, text
from precision_operator.errors import KubeError, NotFound
from precision_operator.kube.port import MUTATING_WEBHOOKS, SECRETS, JsonObject, JsonValue, KubeApi, Operation
from precision_operator.reasons import Reason
from precision_operator.runtime.clock import Clock
from precision_operator.settings import AdmissionSettings
from precision_operator.webhook.certificates import belongs, read_certificates
from precision_operator.webhook.rotation import (
    AUTHORITIES,
    LEAF,
    LEAF_KEY,
    Content,
    Lifetimes,
    WriteBundle,
    WriteSecret,
    next_action,
)

_LOG = logging.getLogger(__name__)

CONFIGURATION = "precision-webhook.precision.genesis.ai"
"""Our MutatingWebhookConfiguration: manifests/webhook/webhook.yaml."""

FIRST_SECONDS = 1.0
"""How often is looked for a first certificate."""

STEPS = 8
"""Of one pass, at most: whatever stands in the Secret, a few lead to a good one."""


class CertificateKeeper:
    """Belongs to one event loop."""

    def __init__(
        self,
        api: KubeApi,
        clock: Clock,
        *,
        settings: AdmissionSettings,
        namespace: str,
        leading: Callable[[], bool],
    ) -> None:
        """``namespace``: the operator's own, in which the Secret and the Service stand."""
        self._api = api
        self._clock = clock
        self._settings = settings
        self._namespace = namespace
        self._leading = leading
        self._names = server_names(settings.service, namespace)
        self._lifetimes = Lifetimes(
            authority=settings.authority_seconds, leaf=settings.leaf_seconds, settle=3 * settings.refresh_seconds + 1
        )
        self._loaded: tuple[bytes, bytes] | None = None
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        """For the server. A new leaf is loaded into it: new handshakes use it, without a restart."""
        self.trusted = b""
        """The authorities of the Secret, as PEM: what the other replicas are asked with."""

    @property
    def loaded(self) -> bool:
        """Whether there is a leaf to serve with."""
        return self._loaded is not None

    async def run(self) -> None:
        """Look at the Secret again and again. A failure is logged, and tried again."""
        said = ""
        while True:
            try:
                await self.look()
                said = ""
            except KubeError as error:
                if error.reason != said:
                    _LOG.warning("certificates cannot be kept: %s", error, extra={"reason": error.reason})
                said = error.reason
            await self._clock.sleep(self._settings.refresh_seconds if self.loaded else FIRST_SECONDS)

    async def look(self) -> None:
        """Read the Secret; do what is due, where we lead; serve what stands there.

        Raises:
            KubeError: the API server refused, or cannot be reached.
        """
        body = await self._secret()
        if self._leading() and not self._settings.cert_manager:
            body = await self._rotate(body)
        self._serve(_content(body))

    async def _secret(self) -> JsonObject | None:
        try:
            return await self._api.get(SECRETS, self._namespace, self._settings.secret)
        except NotFound:
            return None

    async def _rotate(self, body: JsonObject | None) -> JsonObject | None:
        for _ in range(STEPS):
            configuration = await self._configuration()
            if not configuration and self.loaded:
                break  # the release is being uninstalled: a Secret that is made now would stay
            if body is not None and not _owned(body, configuration):
                body = await self._write(body, _content(body), configuration)
            bundles = [_bundle(webhook) for webhook in sequence(configuration.get("webhooks"))]
            action = next_action(
                _content(body), bundles, names=self._names, lifetimes=self._lifetimes, now=self._clock.time()
            )
            match action:
                case None:
                    break
                case WriteSecret(content):
                    body = await self._write(body, content, configuration)
                case WriteBundle(bundle):
                    await self._trust(configuration, bundle)
                    if _content(body).get(LEAF):
                        break  # the next pass goes on: every API server has read what it trusts by then
        return body

    async def _configuration(self) -> JsonObject:
        try:
            return await self._api.get(MUTATING_WEBHOOKS, "", CONFIGURATION)
        except NotFound:
            return {}

    async def _write(self, body: JsonObject | None, content: Content, configuration: JsonObject) -> JsonObject:
        data: dict[str, JsonValue] = {key: base64.b64encode(value).decode() for key, value in content.items()}
        _LOG.info("writing the webhook's certificates", extra={"reason": Reason.CERTIFICATES_ROTATED})
        owners = _owners(configuration)
        if body is not None:
            metadata = {**mapping(body.get("metadata")), **owners}
            changed = cast(JsonObject, {**body, "metadata": metadata, "data": data})
            return await self._api.replace(SECRETS, self._namespace, self._settings.secret, changed)
        metadata = {"name": self._settings.secret, "namespace": self._namespace, **owners}
        made = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
        return await self._api.create(SECRETS, self._namespace, cast(JsonObject, made))

    async def _trust(self, configuration: JsonObject, bundle: bytes) -> None:
        """Of this very configuration: another version may have its webhooks in another order."""
        version = cast(JsonValue, mapping(configuration.get("metadata")).get("resourceVersion"))
        value = base64.b64encode(bundle).decode()
        paths = [f"/webhooks/{i}/clientConfig/caBundle" for i, _ in enumerate(sequence(configuration.get("webhooks")))]
        operations = [
            Operation("test", "/metadata/resourceVersion", version),
            *(Operation("add", path, value) for path in paths),
        ]
        _LOG.info("writing which authorities API servers trust", extra={"reason": Reason.CERTIFICATES_ROTATED})
        await self._api.json_patch(MUTATING_WEBHOOKS, "", CONFIGURATION, operations)

    def _serve(self, content: Content) -> None:
        self.trusted = content.get(AUTHORITIES, b"")
        leaf = content.get(LEAF, b""), content.get(LEAF_KEY, b"")
        if leaf == self._loaded:
            return
        found = read_certificates(leaf[0])
        if not found or not belongs(leaf[1], found[0]):
            if any(leaf):
                _LOG.warning(
                    "the Secret holds no certificate with its key", extra={"reason": Reason.CERTIFICATE_INVALID}
                )
            return
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "leaf.pem"
            file.touch(mode=0o600)
            file.write_bytes(leaf[1] + leaf[0])
            try:
                self.context.load_cert_chain(file)
            except ssl.SSLError as error:  # a key that is too short, for one
                _LOG.warning(
                    "the certificate cannot be served: %s", error, extra={"reason": Reason.CERTIFICATE_INVALID}
                )
                return
        self._loaded = leaf


def server_names(service: str, namespace: str) -> tuple[str, ...]:
    """The DNS names of a Service, the one that API servers use first."""
    return f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local"


def _owners(configuration: JsonObject) -> dict[str, object]:
    """The Secret goes with the configuration that trusts it: after `helm uninstall`, nobody else would remove it."""
    uid = text(mapping(configuration.get("metadata")).get("uid"))
    if not uid:
        return {}
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    return {"ownerReferences": [{**kind, "name": CONFIGURATION, "uid": uid}]}


def _owned(body: JsonObject, configuration: JsonObject) -> bool:
    """Whether the Secret goes with this very configuration, where there is one."""
    uid = mapping(configuration.get("metadata")).get("uid")
    owners = sequence(mapping(body.get("metadata")).get("ownerReferences"))
    return not uid or any(mapping(owner).get("uid") == uid for owner in owners)


def _content(body: JsonObject | None) -> Content:
    data = mapping((body or {}).get("data"))
    return {key: _decoded(text(value)) for key, value in data.items()}


def _bundle(webhook: object) -> bytes:
    return _decoded(text(mapping(mapping(webhook).get("clientConfig")).get("caBundle")))


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value)
    except ValueError:
        return b""
