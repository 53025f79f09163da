"""The admin's settings: one YAML file, frozen after reading.

Policies hold no address, header or credential; they name what stands here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TypeVar, cast
from urllib.parse import urlsplit

import yaml

from precision_operator.addresses import refusal_of
from precision_operator.api.wire import camel
from precision_operator.errors import ConfigurationError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PrometheusEndpoint:
    """A metric source that policies may name in ``prometheusRef``."""

    url: str
    """Base URL, e.g. ``http://prometheus.monitoring:9090``; ``$(NAME)`` takes an environment variable's value."""
    timeout_seconds: float = 5.0
    """Deadline of one query, connecting included."""
    bearer_token_file: str = ""
    """File whose content is sent as bearer token; read again for every query, so that it may be rotated. Over https only,
    but for the loopback address."""
    ca_file: str = ""
    """CA bundle that the server's certificate must chain to; empty: the system's."""
    max_response_bytes: int = 32 * 1024 * 1024
    """A longer answer is refused unread."""


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Leader election. A shorter lease takes over sooner and writes more often."""

    name: str = "precision-operator"
    """Name of the Lease in the operator's own namespace."""
    duration_seconds: float = 6.0
    """A lease not renewed for this long may be taken."""
    renew_seconds: float = 4.0
    """The leader stops leading when it could not renew for this long."""
    retry_seconds: float = 1.0
    """Time between two attempts to acquire or renew."""


@dataclass(frozen=True, slots=True)
class IncidentSettings:
    """What is kept of rollbacks (PrecisionIncident), and when they are verified."""

    keep: int = 20
    """Closed incidents kept for each policy; the oldest go first."""
    max_age_seconds: float = 90 * 86400.0
    """Closed incidents older than this go."""
    recordings: int = 64
    """Decisions kept with their inputs in one incident; of more, the middle is left out."""
    recording_bytes: int = 256 * 1024
    """Limit of those, compressed."""
    immediate_seconds: float = 300.0
    """Until when, after all trainers were down, the immediate checks are looked at."""
    short_seconds: float = 1800.0
    """Until when the short-term checks are; then the all-clear is given, where none has failed."""
    long_seconds: float = 7200.0
    """Until when the long-term checks are; then the incident is closed."""
    postmortem_after_seconds: float = 86400.0
    """When the messages propose the post-mortem, after the decision."""
    dashboard_url: str = ""
    """Base URL of a dashboard, for the messages' links; ``var-namespace`` and ``var-policy`` are appended."""


@dataclass(frozen=True, slots=True)
class NotificationChannel:
    """Somewhere messages about rollbacks go. Policies cannot name one."""

    url: str = ""
    """Address as Apprise writes it, over TLS: ``slack://…``, ``jsons://host/path``, ``mailtos://…``; ``$(NAME)`` takes an
    environment variable's value."""
    url_file: str = ""
    """File with the address instead, for a Secret; read again for every delivery, so that it may be rotated."""
    role: str = "on-call"
    """``on-call``: every message; ``ml-lead``: from 15 minutes without all trainers down; ``executive``: from 30 minutes."""
    ca_file: str = ""
    """CA bundle that the server's certificate must chain to; empty: the system's."""
    timeout_seconds: float = 5.0
    """How long connecting, and each answer, may take."""


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """How new pods get their mode."""

    mode: str = "Auto"
    """``Policy`` (in the API server), ``Webhook`` (in this process), or ``Auto``: Policy where the API server serves it."""
    inject: bool = True
    """Webhook: write the contract into new pods whose label ``inject`` names a container."""
    port: int = 10250
    """Webhook: the port of its HTTPS server; 0 picks a free one."""
    service: str = "precision-operator-webhook"
    """Webhook: name of its Service, in the operator's own namespace."""
    secret: str = "precision-operator-webhook"  # noqa: S105, RUF100  a name
    """Webhook: name of the Secret with its certificates, there too."""
    cert_manager: bool = False
    """Webhook: cert-manager writes that Secret; the operator only reads it."""
    refresh_seconds: float = 10.0
    """Webhook: how often the Secret is read."""
    authority_seconds: float = 10 * 365 * 86400.0
    """Webhook: how long its own certificate authority is valid; renewed after two thirds."""
    leaf_seconds: float = 90 * 86400.0
    """Webhook: how long its server's certificate is valid; renewed after two thirds."""


@dataclass(frozen=True, slots=True)
class ReceiverSettings:
    """The server that Alertmanager posts alerts to."""

    token_file: str = ""
    """File with the bearer tokens that may post alerts, one a line, at most two; read every 2 s. Empty: no receiver."""
    port: int = 9095
    """Its port; 0 picks a free one."""
    certificate_file: str = ""
    """PEM file with its certificate, read again every 2 s; empty: plain HTTP."""
    key_file: str = ""
    """PEM file with that certificate's key."""
    wakes_per_second: float = 10.0
    """How many policies a second alerts may have evaluated out of turn, in the whole cluster. Others wait for their turn."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of the operator process."""

    prometheus: Mapping[str, PrometheusEndpoint] = field(default_factory=dict)
    """Metric sources by the name that policies use."""
    queries: Mapping[str, str] = field(default_factory=dict)
    """Admin-written PromQL by the name that policies use in ``criteria.*.query``; ``$namespace``, ``$window`` and
    ``$minSteps`` are filled in; the result must be a vector with a ``pod`` label."""
    allow_raw_queries: bool = False
    """Policies may bring PromQL of their own (``criteria.*.promql``). Each selector of it is confined to the policy's
    namespace; what it costs Prometheus is their authors' choice, within the bounds of docs/signals.md."""
    watch_namespaces: tuple[str, ...] = ()
    """Namespaces to watch; empty: all."""
    lease: LeaseSettings = field(default_factory=LeaseSettings)
    incidents: IncidentSettings = field(default_factory=IncidentSettings)
    """What is kept of rollbacks."""
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    """How new pods get their mode."""
    receiver: ReceiverSettings = field(default_factory=ReceiverSettings)
    """Where alerts come in."""
    notifications: Mapping[str, NotificationChannel] = field(default_factory=dict)
    """Who is notified of rollbacks, by a name of the admin's choice."""
    restart_budget: int = 5
    """How many workloads may be restarting at once, in the whole cluster. Emergencies do not wait for their turn."""
    max_promoting_workloads: int = 0
    """How many workloads may be promoted at once, in the whole cluster; 0: no limit. One that does not acknowledge counts
    for 10 minutes. Under ``unit: Pod`` steps are taken a pod at a time."""
    require_fence: bool = True
    """Write nothing unless the API server denies what the operator must not do (manifests/admission/fence.yaml). False is
    for development, where it runs with a person's rights."""
    writes_per_second: float = 200.0
    """Ceiling of our writes to the API server; emergencies go first."""
    concurrent_writes: int = 32
    """Writes in flight at once."""
    workers: int = 4
    """Policies reconciled at once."""
    http_port: int = 8080
    """Port of /metrics, /livez and /readyz; 0 picks a free one."""
    log_level: str = "info"
    """debug, info, warning or error."""
    namespace: str = "precision-system"
    """The operator's own namespace (from POD_NAMESPACE)."""
    identity: str = "precision-operator"
    """Who we are in the Lease (from POD_NAME)."""


def _build(cls: type[T], raw: object, *, where: str) -> T:
    """A frozen dataclass from a camelCase mapping; unknown keys and wrong types are refused by name."""
    if not isinstance(raw, dict):
        raise ConfigurationError(f"{where}: expected a mapping, found {type(raw).__name__}")
    known = {camel(f.name): f for f in fields(cls)}  # type: ignore[arg-type]
    values: dict[str, object] = {}
    for key, value in raw.items():
        if key not in known:
            raise ConfigurationError(f"{where}.{key}: no such setting; expected one of {', '.join(sorted(known))}")
        spec = known[key]
        if spec.type is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if spec.type in (str, int, float, bool) and (
            not isinstance(value, cast(type, spec.type)) or isinstance(value, bool) is not (spec.type is bool)
        ):
            raise ConfigurationError(
                f"{where}.{key}: expected {cast(type, spec.type).__name__}, found {type(value).__name__} {value!r}"
            )
        values[spec.name] = value
    try:
        return cls(**values)
    except TypeError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def parse_settings(raw: object, *, environment: Mapping[str, str]) -> Settings:
    """Settings from the parsed YAML of the config file and the pod's environment.

    Raises:
        ConfigurationError: naming the field, what was expected and what was found.
    """
    if not isinstance(raw, dict):
        raise ConfigurationError(f"config: expected a mapping, found {type(raw).__name__}")
    flat = dict(raw)
    endpoints = {
        name: _endpoint(_expand(value, environment), where=f"prometheus.{name}")
        for name, value in (flat.pop("prometheus", None) or {}).items()
    }
    lease = _build(LeaseSettings, flat.pop("lease", None) or {}, where="lease")
    if not lease.retry_seconds < lease.renew_seconds < lease.duration_seconds:
        raise ConfigurationError(
            f"lease: expected retrySeconds < renewSeconds < durationSeconds, found {lease.retry_seconds}, "
            f"{lease.renew_seconds}, {lease.duration_seconds}"
        )
    incidents = _build(IncidentSettings, flat.pop("incidents", None) or {}, where="incidents")
    if not 0 < incidents.immediate_seconds < incidents.short_seconds < incidents.long_seconds:
        raise ConfigurationError(
            f"incidents: expected 0 < immediateSeconds < shortSeconds < longSeconds, found {incidents.immediate_seconds}, "
            f"{incidents.short_seconds}, {incidents.long_seconds}"
        )
    admission = _admission(flat.pop("admission", None) or {})
    receiver = _receiver(flat.pop("receiver", None) or {})
    notifications = {
        name: _channel(_expand(value, environment), where=f"notifications.{name}")
        for name, value in (flat.pop("notifications", None) or {}).items()
    }
    queries = flat.pop("queries", None) or {}
    namespaces = tuple(flat.pop("watchNamespaces", None) or ())
    if not all(isinstance(q, str) for q in queries.values()):
        raise ConfigurationError("queries: expected a mapping of names to PromQL strings")
    plain = _build(Settings, flat, where="config")
    overrides: dict[str, object] = {
        "prometheus": endpoints,
        "queries": dict(queries),
        "watch_namespaces": namespaces,
        "lease": lease,
        "incidents": incidents,
        "admission": admission,
        "receiver": receiver,
        "notifications": notifications,
        "namespace": environment.get("POD_NAMESPACE", plain.namespace),
        "identity": environment.get("POD_NAME", plain.identity),
    }
    kept = {f.name: getattr(plain, f.name) for f in fields(Settings)}
    return Settings(**{**kept, **overrides})


MODES = ("Auto", "Policy", "Webhook")


def _admission(raw: object) -> AdmissionSettings:
    admission = _build(AdmissionSettings, raw, where="admission")
    if admission.mode not in MODES:
        raise ConfigurationError(f"admission.mode: expected one of {', '.join(MODES)}, found {admission.mode!r}")
    if not 0 < 20 * admission.refresh_seconds <= admission.leaf_seconds <= admission.authority_seconds / 3:
        raise ConfigurationError(
            "admission: expected 0 < 20 * refreshSeconds <= leafSeconds <= authoritySeconds / 3, found "
            f"{admission.refresh_seconds}, {admission.leaf_seconds}, {admission.authority_seconds}"
        )
    return admission


def _receiver(raw: object) -> ReceiverSettings:
    receiver = _build(ReceiverSettings, raw, where="receiver")
    if bool(receiver.certificate_file) is not bool(receiver.key_file):
        raise ConfigurationError("receiver: expected certificateFile and keyFile, or neither; found one of them")
    if not receiver.wakes_per_second > 0:
        raise ConfigurationError(
            f"receiver.wakesPerSecond: expected a number above 0, found {receiver.wakes_per_second}"
        )
    return receiver


_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def _endpoint(raw: object, *, where: str) -> PrometheusEndpoint:
    endpoint = _build(PrometheusEndpoint, raw, where=where)
    url = urlsplit(endpoint.url)
    if endpoint.bearer_token_file and url.scheme != "https" and url.hostname not in _LOOPBACK:
        raise ConfigurationError(
            f"{where}.url: expected https:// beside bearerTokenFile, found {url.scheme}://, by which the token could be "
            "read; write https:// and set caFile, or take bearerTokenFile away"
        )
    return endpoint


_ROLES = ("on-call", "ml-lead", "executive")


def _channel(raw: object, *, where: str) -> NotificationChannel:
    channel = _build(NotificationChannel, raw, where=where)
    if bool(channel.url) == bool(channel.url_file):
        raise ConfigurationError(f"{where}: expected either url or urlFile, found {'both' if channel.url else 'none'}")
    why = refusal_of(channel.url) if channel.url else ""
    if why:
        raise ConfigurationError(f"{where}.url: {why}")
    if channel.role not in _ROLES:
        raise ConfigurationError(f"{where}.role: expected one of {', '.join(_ROLES)}, found {channel.role!r}")
    if not 0 < channel.timeout_seconds <= 60:
        raise ConfigurationError(f"{where}.timeoutSeconds: expected 0 to 60, found {channel.timeout_seconds:g}")
    return channel


def _expand(raw: object, environment: Mapping[str, str]) -> object:
    """``$(NAME)`` in a string becomes the environment variable's value, as in a pod's args."""
    if isinstance(raw, dict):
        return {key: _expand(value, environment) for key, value in raw.items()}
    if isinstance(raw, str):
        for name, value in environment.items():
            raw = raw.replace(f"$({name})", value)
    return raw


def load_settings(path: Path, *, environment: Mapping[str, str]) -> Settings:
    """Read and check the config file.

    Raises:
        ConfigurationError: the file is missing, is not YAML, or holds a bad value.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{path}: no such file; pass --config, or mount the chart's ConfigMap there"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: not YAML: {error}") from error
    return parse_settings(raw or {}, environment=environment)
