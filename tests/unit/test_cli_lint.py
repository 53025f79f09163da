"""``kubectl precision lint``: refuses what the API server refuses, and warns of what it lets through."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from precision_operator.cli import main
from precision_operator.cli.lint import lint
from precision_operator.cli.schema import Fault, faults
from tests.support.policies import BAD, GOOD, policy, steps
from tests.support.rules import Rule, all_rules, named

ROOT = Path(__file__).parents[2]


def messages(text: str, level: str) -> list[str]:
    return [f"{f.path}: {f.message}" for f in lint("policy.yaml", text) if f.level == level]


def warnings(**spec: object) -> list[str]:
    return messages(json.dumps(policy(**spec)), "warning")


def broken(text: str) -> set[Rule]:
    return named((f.path, f.message) for f in lint("policy.yaml", text) if f.level == "error")


def test_every_rule_of_the_crd_is_broken_by_a_bad_policy() -> None:
    assert len(all_rules()) > 40
    assert all_rules() - {rule for spec, _ in BAD.values() for rule in broken(json.dumps(policy(**spec)))} == set()


@pytest.mark.parametrize("name", GOOD)
def test_what_the_api_server_takes_has_no_error(name: str) -> None:
    assert messages(json.dumps(policy(**GOOD[name])), "error") == []


@pytest.mark.parametrize("name", BAD)
def test_what_the_api_server_refuses_is_an_error(name: str) -> None:
    spec, expected = BAD[name]
    text = json.dumps(policy(**spec))
    found = messages(text, "error")
    assert found
    if broken(text):  # of the structure, the server speaks in words of its own
        assert expected in " ".join(found)


def test_an_error_names_the_field_what_was_expected_and_what_was_found() -> None:
    (found,) = messages(json.dumps(policy(**steps({"setWeight": 10}, {"setWeight": 300}))), "error")
    assert found == "spec.strategy.steps[1].setWeight: expected at most 100, found 300"


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        ({"rule": "self.a > 1"}, {}, Fault("spec", "as told")),
        ({"rule": "self.a == 1", "fieldPath": ".a"}, {"a": 2**70}, Fault("spec.a", "as told")),
        ({"rule": "self == ''"}, "text", Fault("spec", "as told (found text)")),
        ({"rule": "self == ''", "messageExpression": "'no ' + self"}, "text", Fault("spec", "no text")),
        ({"rule": "self == ''", "messageExpression": "'no ' + self.a"}, "text", Fault("spec", "as told (found text)")),
    ],
)
def test_a_rule_that_is_false_or_fails_is_reported_in_its_words(
    schema: dict[str, str], value: object, said: Fault
) -> None:
    assert faults({"x-kubernetes-validations": [{"message": "as told", **schema}]}, value, "spec") == (said,)


def test_a_rule_holds_for_the_values_of_a_map_too() -> None:
    schema = {"additionalProperties": {"x-kubernetes-validations": [{"rule": "self != 'b'", "message": "not b"}]}}
    assert faults(schema, {"x": "a", "y": "b"}, "spec") == (Fault("spec.y", "not b (found b)"),)


@pytest.mark.parametrize("library", ["jsonschema", "cel_expr_python.cel"])
def test_lint_without_its_libraries_names_the_extra(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.yaml").write_text(json.dumps(policy()))
    monkeypatch.setitem(sys.modules, library, None)
    assert main(["lint", str(tmp_path / "good.yaml")]) == 1
    assert "pip install '.[operator,lint]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"target": "bf16"}, "bf16 needs hardware for it on every node"),
        ({"fallback": "bf16"}, "spec.fallback: bf16 needs hardware"),
        ({"target": "fp32"}, "takes the fleet off reduced precision"),
        ({"delivery": "Hot"}, "restarts no pods"),
        ({"suspend": True}, "the policy is paused"),
        ({"enforcement": "Observe"}, "the policy only observes"),
        ({"schedule": {"timeZone": "Mars/Olympus", "windows": [{}]}}, "Mars/Olympus is not in the IANA database"),
        (steps({"setWeight": 100}), "begin with a canary"),
        (steps({"setWeight": 10}, {"pause": {"duration": "10m"}}, {"setWeight": 50}), "stops at 50 %"),
        (steps({"setWeight": 10}, {"setWeight": 100}), "after 10 % the evidence is watched for 30 s"),
        ({"criteria": {"nonFinite": {"enabled": False}}}, "poisoned weights or failing jobs are not noticed"),
        ({"criteria": {"overflow": {"query": "mine"}}}, "'mine' must stand in the operator's catalogue"),
        ({"criteria": {"overflow": {"promql": "mine"}}}, "the operator's admin must allow it"),
        ({"criteria": {"overflow": {"promql": "absent(mine)"}}}, "would be refused: function absent"),
        ({"criteria": {"overflow": {"enter": 0.9}}}, "90% of all steps may be thrown away"),
        ({"target": "bf16"}, "no loss scaler that could overflow"),
        (GOOD["every criterion off"], "nothing would ever roll this fleet back"),
        ({"rollback": {"strategies": {"P0": "Hold"}}}, "would roll nothing back"),
        ({"rollback": {"strategies": {"P1": "Canary"}}}, "the rest trains on in a P1 breach for 7200 s"),
        (
            {"rollback": {"strategies": {"P2": "Canary"}, "canary": {"window": "30m"}}},
            "holds 6 windows of 300 s; even the greatest difference needs 8",
        ),
        ({"reenable": {"prerequisites": []}}, "without any acknowledgement"),
        ({"evaluation": {"failureLimit": 100}}, "to be believed, which is the whole deadline of 300 s"),
        (
            {"rollback": {"mitigation": {"overflow": {"window": "10m"}}}},
            "end before every rung of the ladder has had its dwell, which takes 1440 s",
        ),
        ({"rollback": {"ackTimeout": "10m"}}, "past the P0 deadline of 300 s: shorten ackTimeout"),
        (
            {"evaluation": {"onNoData": "Rollback", "noDataLimit": "30s"}},
            "a restart of Prometheus would roll the fleet back",
        ),
    ],
)
def test_what_is_valid_and_probably_unintended_is_a_warning(spec: dict[str, Any], said: str) -> None:
    assert said in " ".join(warnings(**spec))
    assert messages(json.dumps(policy(**spec)), "error") == []


def test_the_defaults_are_sound() -> None:
    assert warnings() == []


def test_a_key_that_stands_twice_is_an_error() -> None:
    text = yaml.safe_dump(policy()) + "spec:\n  selector: {matchLabels: {a: b}}\n"
    (found,) = messages(text, "error")
    assert "spec stands twice" in found


def test_keys_are_texts_as_in_json() -> None:
    labels = (
        yaml.safe_dump(policy())
        .replace("app: trainer", "{1: one, on: x, 1.5: x}")
        .replace("matchLabels:\n", "matchLabels:")
    )
    assert messages(labels, "error") == []
    (found,) = messages(labels.replace("1.5", "true"), "error")
    assert "true stands twice" in found


def test_of_a_wrong_type_nothing_else_is_said() -> None:
    assert messages(json.dumps(policy(target=16)), "error") == ["spec.target: expected type string, found 16"]


def test_merged_keys_are_no_keys_that_stand_twice() -> None:
    text = "x: &x {target: fp16, fallback: fp32}\n" + yaml.safe_dump(policy()).replace("spec:", "spec:\n  <<: *x")
    assert messages(text, "error") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "expected YAML"),
        ("", "expected a PrecisionPolicy"),
        ("kind: Deployment", "found none: is it the right file?"),
        ("kind: PrecisionPolicy\nmetadata: {name: p}\nspec: {selector: {matchLabels: {a: b}}}", "apiVersion: expected"),
        (json.dumps({**policy(), "metadata": {}}), "metadata.name: is required"),
        (json.dumps({**policy(), "spec": None}), "spec: is required"),
        (json.dumps({**policy(), "spec": []}), "spec: expected type object"),
    ],
)
def test_a_file_that_holds_no_policy_is_an_error(text: str, said: str) -> None:
    assert said in " ".join(messages(text, "error"))


def test_several_policies_of_a_file_are_all_checked() -> None:
    bad = policy("second", target="fp8")
    for text in (yaml.safe_dump_all([policy(), bad]), json.dumps({"kind": "List", "items": [policy(), bad]})):
        assert [(f.policy, f.path) for f in lint("f", text)] == [("second", "spec.target")]


def test_the_exit_code_says_whether_the_server_would_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, odd, bad = (tmp_path / name for name in ("good.yaml", "odd.yaml", "bad.yaml"))
    good.write_text(json.dumps(policy()))
    odd.write_text(json.dumps(policy(suspend=True)))
    bad.write_text(json.dumps(policy(target="fp8")))
    assert main(["lint", str(good)]) == 0
    assert capsys.readouterr().out.strip() == f"{good}: sound"
    assert main(["lint", str(odd)]) == 0
    assert main(["lint", str(good), str(bad)]) == 1
    assert main(["lint", str(tmp_path / "none.yaml")]) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert main(["lint", str(bad), "-o", "json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["level"], found["path"]) == ("error", "spec.target")


@pytest.mark.parametrize("path", sorted((ROOT / "manifests" / "samples").glob("*.yaml")), ids=lambda p: p.name)
def test_our_samples_have_no_error(path: Path) -> None:
    assert messages(path.read_text(), "error") == []


@pytest.mark.parametrize("delivery", ["Restart", "NewOnly"])
def test_pods_as_units_that_only_a_restart_moves_are_warned_of(delivery: str) -> None:
    assert any(text.startswith("spec.unit: Pod moves pods hot") for text in warnings(unit="Pod", delivery=delivery))
    assert not any(text.startswith("spec.unit") for text in warnings(unit="Pod"))
