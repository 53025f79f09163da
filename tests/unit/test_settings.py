"""The admin's file: what is wrong is named."""

from pathlib import Path

import pytest

from precision_operator.config_file import load_settings, parse_settings
from precision_operator.errors import ConfigurationError
from precision_operator.settings import Settings


def test_empty_file_gives_all_defaults() -> None:
    assert parse_settings({}, environment={}) == Settings()


def test_reads_endpoints_queries_and_namespaces() -> None:
    settings = parse_settings(
        {
            "prometheus": {"default": {"url": "http://$(PROMETHEUS_SERVICE_HOST):9090", "timeoutSeconds": 2}},
            "queries": {"mine": "up"},
            "watchNamespaces": ["a"],
            "restartBudget": 3,
        },
        environment={"PROMETHEUS_SERVICE_HOST": "10.0.0.1", "POD_NAME": "me", "POD_NAMESPACE": "sys"},
    )
    assert settings.prometheus["default"].url == "http://10.0.0.1:9090"
    assert settings.prometheus["default"].timeout_seconds == 2.0
    assert (settings.restart_budget, settings.identity, settings.namespace) == (3, "me", "sys")
    assert settings.watch_namespaces == ("a",)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([], "expected a mapping, found list"),
        ({"restartBudgets": 1}, "restartBudgets: no such setting"),
        ({"restartBudget": "5"}, "restartBudget: expected int, found str '5'"),
        ({"restartBudget": True}, "expected int, found bool"),
        ({"allowRawQueries": "no"}, "expected bool, found str"),
        ({"allowRawQueries": 1}, "expected bool, found int"),
        ({"prometheus": {"default": {}}}, "url"),
        ({"prometheus": {"default": {"uri": "x"}}}, "prometheus.default.uri: no such setting"),
        ({"lease": {"durationSeconds": 1, "renewSeconds": 2}}, "retrySeconds < renewSeconds < durationSeconds"),
        ({"queries": {"mine": 3}}, "queries"),
        ({"admission": {"mode": "Both"}}, "admission.mode: expected one of Auto, Policy, Webhook, found 'Both'"),
        ({"admission": {"leafSeconds": 60}}, "20 [*] refreshSeconds <= leafSeconds <= authoritySeconds / 3"),
        ({"admission": {"leafSeconds": 1e9}}, "20 [*] refreshSeconds <= leafSeconds <= authoritySeconds / 3"),
        ({"admission": {"url": "x"}}, "admission.url: no such setting"),
        ({"logLevel": "loud"}, "logLevel: expected one of debug, info, warning, error, found 'loud'"),
        ({"watchNamespaces": "a"}, "watchNamespaces: expected a list, found str"),
        ({"watchNamespaces": [1]}, ": expected str, found int 1"),
        ({"prometheus": []}, "prometheus: expected a mapping, found list"),
        ({"prometheus": {"default": None}}, "prometheus.default: expected a mapping, found NoneType"),
    ],
)
def test_refuses_what_it_cannot_use_by_name(raw: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words.replace(".", r"\.")):
        parse_settings(raw, environment={})


def test_an_empty_section_is_an_absent_one() -> None:
    sections = ("prometheus", "queries", "watchNamespaces", "lease", "incidents", "admission", "receiver")
    assert parse_settings(dict.fromkeys(sections), environment={}) == Settings()


def test_missing_file_says_how_to_give_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--config"):
        load_settings(tmp_path / "absent.yaml", environment={})


def test_file_that_is_not_yaml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="not YAML"):
        load_settings(path, environment={})


@pytest.mark.parametrize("place", ["h:99999", "h:0", "h:port", "[::1", ":9090", ""])
def test_a_url_of_prometheus_without_a_host_or_with_what_is_no_port_is_refused_unquoted(place: str) -> None:
    raw = {"prometheus": {"east": {"url": f"http://user:hunter2@{place}/prometheus"}}}
    with pytest.raises(ConfigurationError, match=r"prometheus\.east\.url: expected a host, and a port") as caught:
        parse_settings(raw, environment={})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://prometheus:9090", "HTTP://prometheus", "http://127.0.0.1.example.org"])
def test_a_token_is_not_sent_to_prometheus_over_plain_http(url: str) -> None:
    endpoint = {"url": url, "bearerTokenFile": "/token"}
    with pytest.raises(ConfigurationError, match=r"prometheus\.east\.url: expected https://.*set caFile"):
        parse_settings({"prometheus": {"east": endpoint}}, environment={})


@pytest.mark.parametrize(
    ("url", "token"),
    [
        ("https://prometheus:9090", "/token"),
        ("http://prometheus:9090", ""),
        ("http://127.0.0.1:9090", "/token"),
        ("http://localhost:9090", "/token"),
        ("http://[::1]:9090", "/token"),
    ],
)
def test_a_token_goes_over_https_or_stays_on_the_machine(url: str, token: str) -> None:
    settings = parse_settings({"prometheus": {"east": {"url": url, "bearerTokenFile": token}}}, environment={})
    assert settings.prometheus["east"].url == url


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        ({"certificateFile": "tls.crt"}, "found one of them"),
        ({"keyFile": "tls.key"}, "found one of them"),
        ({"wakesPerSecond": 0}, "found 0.0"),
        ({"token": "x"}, "no such setting"),
    ],
)
def test_a_receiver_that_could_not_work_is_refused(raw: dict[str, object], found: str) -> None:
    with pytest.raises(ConfigurationError, match=found):
        parse_settings({"receiver": raw}, environment={})
