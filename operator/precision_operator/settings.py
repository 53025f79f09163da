"""The admin's settings: the models of the config file, frozen. ``config_file.py`` reads them.

Policies hold no address, header or credential; they name what stands here. The chart's value ``config``, its schema and
its reference are made from these models (``make generate``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from precision_operator.api.fields import Field


@dataclass(frozen=True, slots=True)
class PrometheusEndpoint:
    """A metric source that policies may name in ``prometheusRef``."""

    url: Annotated[
        str,
        Field(
            "Base URL, e.g. `http://prometheus.monitoring:9090`; `$(NAME)` takes an environment variable's value.",
            required=True,
            pattern=r"^(https?://|\$\()",
        ),
    ]
    timeout_seconds: Annotated[float, Field("Deadline of one query, connecting included.", above=0, most=60)] = 5.0
    bearer_token_file: Annotated[
        str,
        Field(
            "File whose content is sent as bearer token; read again for every query, so that it may be rotated. Over "
            "https only, but for the loopback address.",
        ),
    ] = ""
    ca_file: Annotated[str, Field("CA bundle that the server's certificate must chain to; empty: the system's.")] = ""
    max_response_bytes: Annotated[int, Field("A longer answer is refused unread.", least=1024)] = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Leader election. A shorter lease takes over sooner and writes more often."""

    name: Annotated[
        str,
        Field(
            "Name of the Lease in the operator's namespace.", longest=253, pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
        ),
    ] = "precision-operator"
    duration_seconds: Annotated[
        float, Field("Seconds after which a lease not renewed may be taken.", least=1, most=300)
    ] = 6.0
    renew_seconds: Annotated[
        float,
        Field("Seconds after which the leader stops leading when it could not renew.", above=0, most=300),
    ] = 4.0
    retry_seconds: Annotated[float, Field("Seconds between two attempts to take or renew it.", above=0, most=60)] = 1.0


@dataclass(frozen=True, slots=True)
class IncidentSettings:
    """What is kept of rollbacks (PrecisionIncident), and when they are verified."""

    keep: Annotated[int, Field("Closed incidents kept for each policy; the oldest go first.", least=0, most=1000)] = 20
    max_age_seconds: Annotated[float, Field("Seconds after which a closed incident goes (90 days).", above=0)] = (
        90 * 86400.0
    )
    recordings: Annotated[
        int,
        Field(
            "Decisions kept with their inputs in one incident; beyond that, the middle is dropped.", least=1, most=1000
        ),
    ] = 64
    recording_bytes: Annotated[int, Field("Limit of those in bytes, compressed.", least=1024, most=768 * 1024)] = (
        256 * 1024
    )
    immediate_seconds: Annotated[
        float,
        Field(
            "Seconds after all trainers are in the fallback until which the immediate checks are looked at.", above=0
        ),
    ] = 300.0
    short_seconds: Annotated[
        float,
        Field("The same for the short-term checks; then the all-clear is given, where none has failed.", above=0),
    ] = 1800.0
    long_seconds: Annotated[
        float, Field("The same for the long-term checks; then the incident is closed.", above=0)
    ] = 7200.0
    postmortem_after_seconds: Annotated[
        float, Field("Seconds after the decision for which the messages propose the post-mortem.", least=0)
    ] = 86400.0
    dashboard_url: Annotated[
        str,
        Field(
            "Base URL of a dashboard, for the messages' links; var-namespace and var-policy are appended.",
            pattern="^(https?://.*)?$",
        ),
    ] = ""
    runbook_url: Annotated[
        str,
        Field("Where your people read docs/runbooks.md: each message ends with a link to its section.", longest=1024),
    ] = "docs/runbooks.md"


ROLES = ("on-call", "ml-lead", "executive")


@dataclass(frozen=True, slots=True)
class NotificationChannel:
    """Somewhere messages go. Policies cannot name one."""

    url: Annotated[
        str,
        Field(
            "Address as Apprise writes it, over TLS: `slack://…`, `jsons://host/path`, `mailtos://…`; `$(NAME)` takes an "
            "environment variable's value.",
            pattern=r"^([a-z0-9]+://.|\$\()",
        ),
    ] = ""
    url_file: Annotated[
        str,
        Field(
            "File with the address instead, for a Secret; read again for every delivery, so that it may be rotated.",
            pattern="^/",
        ),
    ] = ""
    role: Annotated[
        str,
        Field(
            "`on-call`: every message; `ml-lead`: from 15 minutes without all trainers in the fallback; `executive`: from "
            "30 minutes.",
            only=ROLES,
        ),
    ] = "on-call"
    ca_file: Annotated[
        str, Field("CA bundle that the server's certificate must chain to; empty: the system's.", pattern="^/")
    ] = ""
    timeout_seconds: Annotated[float, Field("How long connecting, and each answer, may take.", above=0, most=60)] = 5.0


@dataclass(frozen=True, slots=True)
class MessageTemplate:
    """The admin's own words of one kind of message. ``$name`` takes the value of a field (docs/notifications.md)."""

    subject: Annotated[str, Field("Subject; empty: the built-in one.", longest=512)] = ""
    body: Annotated[
        str,
        Field("Body; empty: the built-in one. The links and the command are appended in any case.", longest=8192),
    ] = ""


MODES = ("Auto", "Policy", "Webhook")


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """How new pods get their mode. The chart works these out from its value ``admission``."""

    mode: Annotated[
        str,
        Field(
            "`Policy` (in the API server), `Webhook` (in this process), or `Auto`: Policy where the API server serves it.",
            only=MODES,
        ),
    ] = "Auto"
    inject: Annotated[
        bool, Field("Webhook: write the contract into new pods whose label `inject` names a container.")
    ] = True
    port: Annotated[int, Field("Webhook: the port of its HTTPS server; 0 picks a free one.")] = 10250
    service: Annotated[str, Field("Webhook: name of its Service, in the operator's own namespace.")] = (
        "precision-operator-webhook"
    )
    secret: Annotated[str, Field("Webhook: name of the Secret with its certificates, there too.")] = (
        "precision-operator-webhook"  # noqa: S105, RUF100  a name
    )
    cert_manager: Annotated[bool, Field("Webhook: cert-manager writes that Secret; the operator only reads it.")] = (
        False
    )
    refresh_seconds: Annotated[float, Field("Webhook: how often the Secret is read.")] = 10.0
    authority_seconds: Annotated[
        float,
        Field("Webhook: how long its own certificate authority is valid; renewed after two thirds."),
    ] = 10 * 365 * 86400.0
    leaf_seconds: Annotated[
        float, Field("Webhook: how long its server's certificate is valid; renewed after two thirds.")
    ] = 90 * 86400.0


@dataclass(frozen=True, slots=True)
class ReceiverSettings:
    """The server that Alertmanager posts alerts to. The chart works these out from its value ``receiver``."""

    token_file: Annotated[
        str,
        Field(
            "File with the bearer tokens that may post alerts, one a line, at most two; read every 2 s. Empty: no receiver."
        ),
    ] = ""
    port: Annotated[int, Field("Its port; 0 picks a free one.")] = 9095
    certificate_file: Annotated[
        str, Field("PEM file with its certificate, read again every 2 s; empty: plain HTTP.")
    ] = ""
    key_file: Annotated[str, Field("PEM file with that certificate's key.")] = ""
    wakes_per_second: Annotated[
        float,
        Field(
            "How many policies a second alerts may have evaluated out of turn, in the whole cluster. Others wait for their "
            "turn."
        ),
    ] = 10.0


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of the operator process."""

    prometheus: Annotated[
        Mapping[str, PrometheusEndpoint],
        Field(
            "Metric sources by the name that policies use in prometheusRef. `$(NAME)` in a value takes an environment "
            "variable's value (see `extraEnv`). Policies can name no address of their own."
        ),
    ] = field(default_factory=dict)
    queries: Annotated[
        Mapping[str, str],
        Field(
            "PromQL by the name that policies use in criteria.*.query. `$namespace`, `$window` and `$minSteps` are filled "
            "in; the result must be a vector with a `pod` label.",
            items=Field(shortest=1, longest=8192),
        ),
    ] = field(default_factory=dict)
    allow_raw_queries: Annotated[
        bool,
        Field(
            "Whether policies may bring PromQL of their own in criteria.*.promql. Each selector of it is confined to the "
            "policy's namespace; what it costs Prometheus is their authors' choice, within the bounds of docs/signals.md."
        ),
    ] = False
    watch_namespaces: Annotated[tuple[str, ...], Field("Namespaces to watch; empty: all.")] = ()
    lease: Annotated[LeaseSettings, Field("Leader election.")] = field(default_factory=LeaseSettings)
    incidents: Annotated[IncidentSettings, Field("What is kept of rollbacks.")] = field(
        default_factory=IncidentSettings
    )
    admission: Annotated[AdmissionSettings, Field("How new pods get their mode.")] = field(
        default_factory=AdmissionSettings
    )
    receiver: Annotated[ReceiverSettings, Field("Where alerts come in.")] = field(default_factory=ReceiverSettings)
    notifications: Annotated[
        Mapping[str, NotificationChannel],
        Field(
            "Who is notified of rollbacks and of what waits for a person, by a name of your choice: by `url` (an address of "
            "Apprise, over TLS; `$(NAME)` takes an environment variable's value, see `extraEnv`) or `urlFile` (a file with "
            "it, from a Secret). `role` is on-call, ml-lead (after 15 minutes without all trainers in fallback) or "
            "executive (after 30). See docs/notifications.md.",
            items=Field(either=("url", "urlFile")),
        ),
    ] = field(default_factory=dict)
    message_templates: Annotated[
        Mapping[str, MessageTemplate],
        Field(
            "Your own words by the kind of message, e.g. `Notice: {subject: …, body: …}`, with `$name` for its fields. One "
            "that cannot be used is logged and counted (TemplateInvalid), and the built-in one is sent. See "
            "docs/notifications.md.",
        ),
    ] = field(default_factory=dict)
    restart_budget: Annotated[
        int,
        Field(
            "Gradual restarts at once, counted in workloads of the whole cluster. Emergencies do not wait for their turn.",
            least=1,
        ),
    ] = 5
    max_promoting_workloads: Annotated[
        int,
        Field(
            "Workloads promoted at once in the whole cluster, each until it acknowledges, for 10 minutes at most; 0: no "
            "limit. Under `unit: Pod` steps are taken a pod at a time.",
            least=0,
        ),
    ] = 0
    require_fence: Annotated[
        bool,
        Field(
            "Write nothing unless the API server denies what the operator must not do (manifests/admission/fence.yaml). "
            "False is for development, where it runs with a person's rights."
        ),
    ] = True
    writes_per_second: Annotated[
        float, Field("Ceiling of writes a second to the API server; emergencies go first.", above=0)
    ] = 200.0
    concurrent_writes: Annotated[int, Field("Writes in flight at once.", least=1)] = 32
    workers: Annotated[int, Field("Policies reconciled at once.", least=1)] = 4
    http_port: Annotated[int, Field("Port of /metrics, /livez and /readyz; 0 picks a free one.")] = 8080
    log_level: Annotated[str, Field("debug, info, warning or error.", only=("debug", "info", "warning", "error"))] = (
        "info"
    )
    namespace: Annotated[str, Field("The operator's own namespace (from POD_NAMESPACE).")] = "precision-system"
    identity: Annotated[str, Field("Who we are in the Lease (from POD_NAME).")] = "precision-operator"
