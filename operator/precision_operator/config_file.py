"""Reads the admin's config file: strictly, for no API server has checked it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from precision_operator.addresses import refusal_of
from precision_operator.api.codec import decode
from precision_operator.api.strict import objections
from precision_operator.api.wire import mapping
from precision_operator.errors import ConfigurationError
from precision_operator.settings import (
    AdmissionSettings,
    IncidentSettings,
    LeaseSettings,
    NotificationChannel,
    PrometheusEndpoint,
    ReceiverSettings,
    Settings,
)

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


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


def parse_settings(raw: object, *, environment: Mapping[str, str]) -> Settings:
    """Settings from the parsed YAML of the config file and the pod's environment.

    Raises:
        ConfigurationError: naming the field, what was expected and what was found.
    """
    named = ("prometheus", "notifications")  # what policies name may hold secrets, so it may come from the environment
    filled = {key: _expand(value, environment) if key in named else value for key, value in mapping(raw).items()}
    for objection in objections(filled if isinstance(raw, dict) else raw, Settings, "config"):
        raise ConfigurationError(objection)
    settings = decode(filled, Settings())
    _check_lease(settings.lease)
    _check_incidents(settings.incidents)
    _check_admission(settings.admission)
    _check_receiver(settings.receiver)
    for name, endpoint in settings.prometheus.items():
        _check_endpoint(endpoint, where=f"config.prometheus.{name}")
    for name, channel in settings.notifications.items():
        _check_channel(channel, where=f"config.notifications.{name}")
    return replace(
        settings,
        namespace=environment.get("POD_NAMESPACE", settings.namespace),
        identity=environment.get("POD_NAME", settings.identity),
    )


def _check_endpoint(endpoint: PrometheusEndpoint, *, where: str) -> None:
    try:
        url = urlsplit(endpoint.url)
        usable = bool(url.hostname) and url.port != 0  # raises where it is no port
    except ValueError:
        usable = False
    if not usable:  # not quoted: it may hold a password
        raise ConfigurationError(
            f"{where}.url: expected a host, and a port of 1 to 65535 or none, found something else"
        )
    if endpoint.bearer_token_file and url.scheme != "https" and url.hostname not in _LOOPBACK:
        raise ConfigurationError(
            f"{where}.url: expected https:// beside bearerTokenFile, found {url.scheme}://, by which the token could be "
            "read; write https:// and set caFile, or take bearerTokenFile away"
        )


def _check_lease(lease: LeaseSettings) -> None:
    if not lease.retry_seconds < lease.renew_seconds < lease.duration_seconds:
        raise ConfigurationError(
            f"config.lease: expected retrySeconds < renewSeconds < durationSeconds, found {lease.retry_seconds}, "
            f"{lease.renew_seconds}, {lease.duration_seconds}"
        )


def _check_incidents(incidents: IncidentSettings) -> None:
    if not 0 < incidents.immediate_seconds < incidents.short_seconds < incidents.long_seconds:
        raise ConfigurationError(
            "config.incidents: expected 0 < immediateSeconds < shortSeconds < longSeconds, found "
            f"{incidents.immediate_seconds}, {incidents.short_seconds}, {incidents.long_seconds}"
        )


def _check_admission(admission: AdmissionSettings) -> None:
    if not 0 < 20 * admission.refresh_seconds <= admission.leaf_seconds <= admission.authority_seconds / 3:
        raise ConfigurationError(
            "config.admission: expected 0 < 20 * refreshSeconds <= leafSeconds <= authoritySeconds / 3, found "
            f"{admission.refresh_seconds}, {admission.leaf_seconds}, {admission.authority_seconds}"
        )


def _check_receiver(receiver: ReceiverSettings) -> None:
    if bool(receiver.certificate_file) is not bool(receiver.key_file):
        raise ConfigurationError("config.receiver: expected certificateFile and keyFile, or neither; found one of them")
    if not receiver.wakes_per_second > 0:
        raise ConfigurationError(
            f"config.receiver.wakesPerSecond: expected a number above 0, found {receiver.wakes_per_second}"
        )


def _check_channel(channel: NotificationChannel, *, where: str) -> None:
    why = refusal_of(channel.url) if channel.url else ""
    if why:
        raise ConfigurationError(f"{where}.url: {why}")
    if not 0 < channel.timeout_seconds <= 60:
        raise ConfigurationError(f"{where}.timeoutSeconds: expected 0 to 60, found {channel.timeout_seconds:g}")


def _expand(raw: object, environment: Mapping[str, str]) -> object:
    """``$(NAME)`` in a string becomes the environment variable's value, as in a pod's args."""
    if isinstance(raw, dict):
        return {key: _expand(value, environment) for key, value in raw.items()}
    if isinstance(raw, str):
        for name, value in environment.items():
            raw = raw.replace(f"$({name})", value)
    return raw
