"""What is held, and the end of what a deleted policy left behind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from precision_operator.api.state import Phase
from precision_operator.cli import main
from precision_operator.cli.release import CRDS
from precision_operator.errors import Forbidden, NotFound, TooManyRequests, Unavailable
from precision_operator.kube.port import (
    DEPLOYMENTS,
    INCIDENTS,
    POLICIES,
    UNCONDITIONAL,
    Deletion,
    JsonObject,
    JsonValue,
    Resource,
)
from tests.support.cli import BY_CANARY, HELD, PARTLY, A, Cli, Stands, stands
from tests.support.fake_kube import FakeKube

LEFT = stands(Phase.HELD, PARTLY, reason="PolicyDeleted", message="left", fallback=None, deletable=True)
FINISHING = stands(Phase.ROLLING_BACK, PARTLY, reason="LossNotFinite", message="going on")


@pytest.mark.parametrize(
    ("found", "held", "end"),
    [
        (HELD, "the whole fleet (2 workloads)", "kubectl precision retry fleet -n default"),
        (PARTLY, A, "kubectl precision retry fleet -n default"),
        (BY_CANARY, A, "kubectl precision retry fleet -n default"),
    ],
)
def test_each_hold_of_a_policy_is_listed_with_what_ends_it(cli: Cli, found: Stands, held: str, end: str) -> None:
    cli.policy(found)
    text = cli("holds")
    assert held in text
    assert end in text


def test_what_a_deleted_policy_left_is_listed_with_its_workloads(cli: Cli) -> None:
    cli.assignment(LEFT)
    text = cli("holds", "-A")
    assert A in text
    assert "kubectl precision release fleet -n default" in text


def test_a_fleet_whose_policy_went_in_mid_rollback_is_held_whole_until_the_operator_has_finished(cli: Cli) -> None:
    cli.assignment(FINISHING)
    text = cli("holds", "-A")
    assert "the whole fleet" in text
    assert "the operator, once its rollback is finished" in text
    page = (Path(__file__).parents[2] / "docs" / "install.md").read_text()
    (awaited,) = re.findall(r"^while kubectl precision holds -A \| grep '(.+)'; do", page, re.MULTILINE)
    assert awaited in text, "what the page waits for"
    assert cli.json("holds")[0]["wholeFleet"] is True


def test_holds_are_listed_for_programs_too(cli: Cli) -> None:
    cli.assignment(LEFT)
    (found,) = cli.json("holds")
    assert (found["policy"], found["policyDeleted"], found["wholeFleet"]) == ("fleet", True, False)
    assert [held["workload"] for held in found["workloads"]] == [A]
    assert found["endsBy"] == "kubectl precision release fleet -n default"


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_script_can_ask_whether_anything_is_held(cli: Cli, output: str) -> None:
    cli("holds", "-A", "--exit-code", "-o", output, code=0)
    cli.assignment(LEFT)
    cli("holds", "-A", "--exit-code", "-o", output, code=1)


def test_a_healthy_fleet_holds_nothing(cli: Cli) -> None:
    cli.policy(stands(Phase.HEALTHY))
    assert cli("holds").strip() == "nothing is held in namespace default"
    assert cli("holds", "-A").strip() == "nothing is held in any namespace"
    assert cli.json("holds") == []


def test_release_deletes_what_a_deleted_policy_left(cli: Cli) -> None:
    cli.assignment(LEFT)
    assert "1 workload released" in cli("release", "fleet")
    assert cli("holds").startswith("nothing is held")


def test_who_may_not_release_is_told_why_and_how_to_look_it_up(cli: Cli) -> None:
    cli.assignment(LEFT)

    def refuse() -> None:
        raise Forbidden("DELETE …: 403 Forbidden: ValidatingAdmissionPolicy 'x' denied request: ada lacks release")

    cli.fake.before_write = lambda *_: refuse()
    said = cli("release", "fleet", code=1)
    line = "kubectl -n default auth can-i release precisionpolicies/fleet"
    assert said == f"kubectl precision release: default/fleet: ada lacks release; to see what you may do: `{line}`\n"


def test_a_dry_run_prints_the_kubectl_line_and_deletes_nothing(cli: Cli) -> None:
    cli.assignment(LEFT)
    assert cli("release", "fleet", "--dry-run").strip() == "kubectl -n default delete precisionassignment fleet"
    assert A in cli("holds")


@pytest.mark.parametrize(
    ("policy", "found", "words"),
    [
        (True, HELD, "`kubectl precision retry fleet -n default` starts its fleet again"),
        (False, FINISHING, "its rollback is being finished"),
    ],
)
def test_release_is_refused_while_the_policy_lives_or_its_rollback_goes_on(
    cli: Cli, policy: bool, found: Stands, words: str
) -> None:
    (cli.policy if policy else cli.assignment)(found)
    assert words in cli("release", "fleet", code=1)
    assert cli("holds") != ""


INSTALLED = {
    "mutatingadmissionpolicies": "precision-assign",
    "validatingadmissionpolicies": "precision-fence",
    "customresourcedefinitions": "precisionpolicies.precision.genesis.ai",
}


def installed(cli: Cli, *, running: bool = False) -> None:
    """What the chart installs, in part, beside somebody else's policy."""
    labels: JsonObject = {"app.kubernetes.io/part-of": "genesis-precision"}
    for plural, name in INSTALLED.items():
        cli.fake.put(Resource("", "v1", plural), {"metadata": {"name": name, "namespace": "", "labels": labels}})
    theirs: JsonObject = {"metadata": {"name": "theirs", "namespace": "", "labels": {}}}
    cli.fake.put(Resource("", "v1", "mutatingadmissionpolicies"), theirs)
    if running:
        cli.fake.put(DEPLOYMENTS, {"metadata": {"name": "operator", "namespace": "system", "labels": labels}})


def remaining(cli: Cli) -> set[str]:
    """Names of what is installed."""
    return {name for plural, _, name in cli.fake.objects if plural in INSTALLED}


@pytest.mark.parametrize("arguments", [[], ["--dry-run"], ["--dry-run", "--yes"]])
def test_uninstall_shows_what_is_held_and_removes_nothing_unless_confirmed(cli: Cli, arguments: list[str]) -> None:
    installed(cli)
    cli.assignment(LEFT)
    text = cli("uninstall", *arguments)
    assert ("kubectl delete crd precisionpolicies.precision.genesis.ai" in text) is bool(arguments)
    assert (A in text) is not bool(arguments)
    assert remaining(cli) == {*INSTALLED.values(), "theirs"}


def test_a_dry_run_of_uninstall_says_what_its_lines_would_remove(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    installed(cli)
    cli.fake.put(INCIDENTS, {"metadata": {"name": "fleet-5"}})
    cli.assignment(LEFT)
    assert main(["uninstall", "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert all(line.startswith("kubectl delete ") for line in printed.out.splitlines())
    assert "removes admission, the CRDs, policies (1), incidents (1); it ends what is held" in printed.err
    assert "`kubectl precision holds -A`" in printed.err
    assert cli.json("uninstall", "--dry-run")["dryRun"] is True


def test_uninstall_removes_what_is_ours_and_nothing_else(cli: Cli) -> None:
    installed(cli)
    cli.assignment(LEFT)
    assert A in cli("uninstall", "--yes")
    assert remaining(cli) == {"theirs"}
    deleted = [plural for verb, plural, _ in cli.fake.writes if verb == "delete"]
    assert deleted.index("customresourcedefinitions") > deleted.index("mutatingadmissionpolicies")


class KeptCrds(FakeKube):
    """CRDs are being removed for as long as a test says."""

    answers: Sequence[Exception | None] = ()
    """To looks, before the CRDs are gone; None: what is there."""
    forever = False

    async def get(self, resource: Resource, namespace: str, name: str) -> JsonObject:
        """See the port."""
        if resource == CRDS and not self.forever:
            if not self.answers:
                await super().delete(resource, namespace, name)
            else:
                answer, *self.answers = self.answers
                if answer is not None:
                    raise answer
        return await super().get(resource, namespace, name)

    async def delete(self, resource: Resource, namespace: str, name: str, deletion: Deletion = UNCONDITIONAL) -> None:
        """See the port."""
        if resource != CRDS:
            await super().delete(resource, namespace, name, deletion)


def going(cli: Cli, **found: JsonValue) -> KeptCrds:
    """An installation whose CRD of policies is deleted and stays, as it is ``found``."""
    cli.fake = kept = KeptCrds()
    installed(cli)
    crd = kept.objects[(CRDS.plural, "", POLICIES.qualified)]
    metadata = crd["metadata"]
    assert isinstance(metadata, dict)
    metadata["deletionTimestamp"] = "2026-11-29T12:00:00Z"
    crd.update(found)
    return kept


@pytest.mark.parametrize("output", ["text", "json"])
def test_uninstall_ends_when_the_crds_are_gone(cli: Cli, monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    monkeypatch.setattr("precision_operator.cli.release._PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("precision_operator.cli.release._TELL_SECONDS", 0.0)
    going(cli).answers = [None, Unavailable("503", status=503), TooManyRequests("429", retry_after_seconds=1), None]
    said = cli("uninstall", "--yes", "-o", output)
    assert said.count("waiting until Kubernetes has removed precisionpolicies.precision.genesis.ai") == 1
    assert ("\nremoved\n" if output == "text" else '"confirmed": true') in said
    assert remaining(cli) == {"theirs"}


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_crd_that_stays_fails_uninstall_with_what_kubernetes_says(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.setattr("precision_operator.cli.release.GONE_SECONDS", 0.0)
    going(cli, status={"conditions": [{"type": "Terminating", "message": "could not list instances"}]}).forever = True
    said = cli("uninstall", "--yes", "-o", output, code=1)
    assert "(could not list instances); install nothing before `kubectl get crd precisionpolicies" in said
    assert "\nremoved\n" not in said
    assert "confirmed" not in said


def test_a_crd_that_was_made_anew_is_not_waited_for(cli: Cli) -> None:
    kept = going(cli)
    kept.forever = True
    installed(cli)
    assert "made anew; what applies it, GitOps?; install nothing" in cli("uninstall", "--yes", code=1)


def test_who_may_not_look_at_crds_is_told_what_was_done(cli: Cli) -> None:
    going(cli).answers = [Forbidden("GET …: 403", status=403)]
    said = cli("uninstall", "--yes", code=1)
    assert "was deleted: expected Kubernetes to remove it, may not look (GET …: 403); install nothing" in said


def test_uninstall_is_refused_while_the_operator_is_installed(cli: Cli) -> None:
    installed(cli, running=True)
    assert "Deployment system/operator; `helm uninstall` its release first" in cli("uninstall", "--yes", code=1)
    assert remaining(cli) == {*INSTALLED.values(), "theirs"}


def test_uninstall_for_programs_says_what_is_held(cli: Cli) -> None:
    installed(cli)
    cli.assignment(LEFT)
    found = cli.json("uninstall")
    assert [entry["policy"] for entry in found["held"]] == ["fleet"]
    assert (found["policies"], found["confirmed"], len(found["kubectl"])) == (1, False, 2)


def test_uninstall_names_what_is_held_though_a_crd_is_gone_already(cli: Cli) -> None:
    installed(cli)
    cli.assignment(LEFT)

    listed = cli.fake.list

    async def without_policies(
        resource: Resource, namespace: str, *, label_selector: str = "", most_bytes: int | None = None
    ) -> Sequence[JsonObject]:
        if resource == POLICIES:
            raise NotFound("the server could not find the requested resource", status=404)
        return await listed(resource, namespace, label_selector=label_selector, most_bytes=most_bytes)

    cli.fake.list = without_policies  # type: ignore[method-assign]
    assert A in cli("uninstall", "--yes")
    assert remaining(cli) == {"theirs"}
