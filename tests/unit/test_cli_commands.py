"""The verbs that write: what each writes, and what it refuses."""

from __future__ import annotations

import pytest

from precision_operator.api.drill import Drill
from precision_operator.api.state import Phase
from precision_operator.errors import Forbidden
from tests.support.cli import (
    BY_CANARY,
    HELD,
    INCIDENT,
    NO_DIFFERENCE,
    NOW,
    PARTLY,
    PREFIX,
    WAITING,
    Cli,
    Json,
    Stands,
    stands,
)

MOVED = stands(Phase.HEALTHY, members=("apps/Deployment/vit",))
DRILLED = stands(Phase.HEALTHY, MOVED, last_drill=Drill(id="fleet-drill-4", began_at=NOW, deadline_at=NOW + 300))
HALTED = stands(Phase.HEALTHY, MOVED, reason="Halted")


@pytest.mark.parametrize(
    ("before", "words", "annotations"),
    [
        (WAITING, ["promote"], {"promote": "4"}),
        (stands(Phase.HEALTHY), ["rollback"], {"rollback": "4"}),
        (stands(Phase.PROGRESSING), ["rollback", "--emergency"], {"abort": "4"}),
        (PARTLY, ["rollback", "--emergency"], {"abort": "4"}),
        (HELD, ["retry", "-m", "rebuilt"], {"retry": "4: rebuilt"}),
        (MOVED, ["drill"], {"drill": "4: fleet"}),
        (MOVED, ["drill", "--allow-restarts", "-m", "a  quarter"], {"drill": "4: fleet allow-restarts: a quarter"}),
        (MOVED, ["drill", "fleet", "--workload", "vit"], {"drill": "4: apps/Deployment/vit"}),
        (MOVED, ["drill", "--workload", "apps/Deployment/vit"], {"drill": "4: apps/Deployment/vit"}),
        (stands(Phase.ROLLING_BACK, incident=INCIDENT), ["rollback", "--emergency"], {"abort": "4"}),
        (PARTLY, ["retry"], {"retry": "4"}),
        (BY_CANARY, ["promote", "-m", "it helps"], {"promote": "4: it helps"}),
        (BY_CANARY, ["rollback"], {"rollback": "4"}),
        (BY_CANARY, ["rollback", "--emergency"], {"abort": "4"}),
        (NO_DIFFERENCE, ["promote"], {"promote": "4"}),
        (NO_DIFFERENCE, ["retry"], {"retry": "4"}),
        (NO_DIFFERENCE, ["ack", "fleet", "fix"], {"ack-fix": "4"}),
        (HELD, ["ack", "fleet", "root-cause", "FIX"], {"ack-rootCause": "4", "ack-fix": "4"}),
        (PARTLY, ["ack", "fleet", "fix"], {"ack-fix": "4"}),
        (HELD, ["ack", "fleet", "fix", "-m", "scale\n pinned"], {"ack-fix": "4: scale pinned"}),
    ],
)
def test_a_command_answers_the_transition_that_stands_and_is_signed(
    cli: Cli, before: Stands, words: list[str], annotations: Json
) -> None:
    cli.policy(before)
    cli(*words)
    signatures = {f"{name}-by": "ada" for name in annotations}
    assert cli.stored()[0] == {**annotations, **signatures}


def test_pause_and_resume_are_the_specs_suspend(cli: Cli) -> None:
    cli.policy(stands(Phase.HEALTHY))
    assert "paused" in cli("pause")
    assert cli.stored()[1]["suspend"] is True
    assert cli.stored()[0] == {"suspend-by": "ada"}
    assert "is paused already" in cli("pause", "fleet")
    assert "resumed" in cli("resume")
    assert cli.stored()[1]["suspend"] is False
    assert "is not paused" in cli("resume")


def test_a_rollback_ends_the_pause_that_would_stand_in_its_way(cli: Cli) -> None:
    cli.policy(stands(Phase.HEALTHY), suspend=True)
    assert "its pause ended" in cli("rollback", "--emergency")
    annotations, spec = cli.stored()
    assert (annotations, spec["suspend"]) == ({"abort": "4", "abort-by": "ada", "suspend-by": "ada"}, False)
    assert len(cli.fake.writes) == 1


@pytest.mark.parametrize(
    ("before", "suspended", "words", "said"),
    [
        (stands(Phase.HEALTHY), False, ["promote"], "waits for no approval (Healthy, Promoted: as it should be)"),
        (WAITING, True, ["promote"], "first `kubectl precision resume fleet -n default`"),
        (HELD, True, ["retry"], "first `kubectl precision resume fleet -n default`"),
        (MOVED, False, ["drill", "--workload", "bert"], "no such workload as bert; expected one of deployment/vit"),
        (MOVED, True, ["drill"], "first `kubectl precision resume fleet -n default`"),
        (PARTLY, False, ["drill"], "is Degraded: a drill needs a fleet that is Healthy"),
        (DRILLED, False, ["drill"], "is in a drill already"),
        (HALTED, False, ["drill"], "is halted with the whole cluster"),
        (stands(Phase.HEALTHY), False, ["retry"], "nothing was rolled back that could be tried again"),
        (BY_CANARY, False, ["retry"], "still compares its canary"),
        (
            stands(Phase.ROLLING_BACK),
            False,
            ["pause"],
            "a pause would leave it half moved. Where that is meant: `kubectl -n",
        ),
        (WAITING, False, ["resume"], "waits for approval: `kubectl precision promote fleet -n default`"),
        (stands(Phase.HEALTHY), False, ["ack", "fleet", "fix"], "only what was rolled back waits for acknowledgements"),
    ],
)
def test_what_the_operator_would_not_act_on_is_refused_with_the_next_step(
    cli: Cli, before: Stands, suspended: bool, words: list[str], said: str
) -> None:
    cli.policy(before, suspend=suspended)
    assert said in cli(*words, code=1)
    assert cli.fake.writes == []


@pytest.mark.parametrize("words", [["promote"], ["rollback"], ["rollback", "--emergency"]])
def test_a_policy_that_only_observes_is_enforced_first(cli: Cli, words: list[str]) -> None:
    cli.policy(WAITING, enforcement="Observe")
    said = " ".join(cli(*words, code=1).split())
    assert "only observes (spec.enforcement), so the operator would not act: first `kubectl" in said
    assert """patch precisionpolicy fleet --type=merge -p '{"spec":{"enforcement":"Enforce"}}'`""" in said
    assert cli.fake.writes == []


def test_a_rollback_of_what_has_not_begun_is_asked_for_too(cli: Cli) -> None:
    """After an edit of the target the fleet is Pending, and trains in reduced precision all the same."""
    cli.policy(stands(Phase.PENDING))
    cli("rollback", "--emergency")
    assert cli.stored()[0] == {"abort": "4", "abort-by": "ada"}


@pytest.mark.parametrize("phase", [Phase.HELD, Phase.ROLLING_BACK])
def test_a_rollback_of_what_is_rolled_back_is_no_error(cli: Cli, phase: Phase) -> None:
    cli.policy(stands(phase, reason="LossDiverged"))
    assert f"is {phase} already: LossDiverged" in cli("rollback", "--emergency")
    assert cli.fake.writes == []


@pytest.mark.parametrize(
    ("before", "words", "line"),
    [
        (WAITING, ["promote"], f"annotate --overwrite precisionpolicy fleet {PREFIX}promote=4"),
        (
            HELD,
            ["ack", "fleet", "fix", "-m", "it's in"],
            f"annotate --overwrite precisionpolicy fleet '{PREFIX}ack-fix=4: it'\"'\"'s in'",
        ),
        (
            stands(Phase.HEALTHY),
            ["pause"],
            'patch precisionpolicy fleet --type=merge -p \'{"spec": {"suspend": true}}\'',
        ),
    ],
)
def test_a_dry_run_writes_nothing_and_prints_the_kubectl_line(
    cli: Cli, before: Stands, words: list[str], line: str
) -> None:
    cli.policy(before)
    assert cli("--context", "lab", *words, "--dry-run") == f"kubectl --context lab -n default {line}\n"
    assert cli.fake.writes == []


@pytest.mark.parametrize("before", [HELD, PARTLY, NO_DIFFERENCE])
def test_a_retry_without_acknowledgements_says_which_are_missing(cli: Cli, before: Stands) -> None:
    given = {f"{PREFIX}ack-rootCause": "4: scale", f"{PREFIX}ack-fix": "3"}
    cli.policy(before, annotations=given)
    said = cli("retry")
    assert "it starts once these are acknowledged: fix, stagingTested, monitoring, teamNotified, rollbackReady" in said
    assert cli.stored()[0]["retry"] == "4"


def test_acknowledgements_are_shown_with_who_gave_them(cli: Cli) -> None:
    given = {
        "ack-rootCause": "4: scale",
        "ack-rootCause-by": "bob",
        "ack-fix": "3",
        "ack-fix-by": "bob",
        "ack-monitoring": "4",
    }
    cli.policy(HELD, annotations={f"{PREFIX}{k}": v for k, v in given.items()})
    lines = {line.split()[0]: line for line in cli("ack").splitlines()}
    assert "by bob: scale" in lines["rootCause"]
    assert "answers an earlier rollback: does not count" in lines["fix"]
    assert "by unknown" in lines["monitoring"]
    assert "missing" in lines["stagingTested"]
    shown = cli.json("ack")
    assert shown["rootCause"] == {"needed": True, "given": True, "by": "bob", "message": "scale"}
    assert shown["fix"]["given"] is False


def test_an_unknown_item_is_refused_with_those_that_there_are(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli("ack", "fleet", "root-couse")
    assert stopped.value.code == 2
    err = capsys.readouterr().err
    assert "expected one of rootCause, fix, stagingTested" in err
    assert "did you mean rootCause?" in err


def test_items_without_the_policys_name_are_refused_with_where_it_stands(cli: Cli) -> None:
    cli.policy(HELD)
    assert "there are fleet; the policy's name stands before the items" in cli("ack", "fix", "monitoring", code=1)
    assert cli.fake.writes == []


def test_a_retry_names_the_line_that_acknowledges_what_is_missing(cli: Cli) -> None:
    cli.policy(HELD, annotations={f"{PREFIX}ack-fix": "4"})
    items = "rootCause stagingTested monitoring teamNotified rollbackReady"
    assert f"`kubectl precision ack fleet {items} -n default`" in cli("retry")


def test_a_command_as_json_carries_the_line_and_the_patch(cli: Cli) -> None:
    cli.policy(WAITING)
    shown = cli.json("promote", "--dry-run")
    assert shown["patch"] == {"metadata": {"annotations": {f"{PREFIX}promote": "4"}}}
    assert shown["kubectl"].startswith("kubectl -n default annotate")
    assert (shown["dryRun"], shown["transitionId"], shown["message"]) == (True, 4, None)


def test_a_command_of_somebody_unknown_bears_nobodys_name(cli: Cli) -> None:
    cli.fake.user = ""
    cli.policy(WAITING, annotations={f"{PREFIX}promote": "2", f"{PREFIX}promote-by": "bob"})
    cli("promote")
    assert cli.stored()[0] == {"promote": "4"}


WORDS = (
    ["promote"],
    ["pause"],
    ["resume"],
    ["rollback"],
    ["rollback", "--emergency"],
    ["retry"],
    ["ack", "fleet", "fix"],
)


@pytest.mark.parametrize("words", WORDS)
def test_nobody_commands_a_policy_that_was_deleted(cli: Cli, words: list[str]) -> None:
    cli.assignment(stands(Phase.HELD, HELD, reason="PolicyDeleted", fallback=None, deletable=True))
    said = cli(*words, code=1)
    assert "default/fleet" in said
    if words[0] != "ack":
        assert "to end what it left behind: `kubectl precision release fleet -n default`" in said
    assert cli.fake.writes == []


def test_what_is_under_way_without_its_policy_is_not_to_be_ended_by_hand(cli: Cli) -> None:
    cli.assignment(stands(Phase.ROLLING_BACK, incident=INCIDENT))
    assert "its rollback is being finished" in cli("retry", code=1)


def test_a_policy_that_has_no_assignment_yet_can_be_paused(cli: Cli) -> None:
    cli.policy(stands(Phase.PENDING))
    cli.fake.objects = {key: body for key, body in cli.fake.objects.items() if key[0] == "precisionpolicies"}
    assert "paused" in cli("pause")
    assert cli.stored()[1]["suspend"] is True


DENIED = "PATCH …: 403 Forbidden: ValidatingAdmissionPolicy 'x' with binding 'x' denied request: "
ASKS = "kubectl -n default auth can-i {} precisionpolicies/fleet"


@pytest.mark.parametrize(
    ("answer", "before", "words", "said", "verbs"),
    [
        (f"{DENIED}ada lacks promote", WAITING, ["promote"], "ada lacks promote", ["patch", "promote"]),
        (f"{DENIED}ada lacks retry", HELD, ["ack", "fleet", "fix"], "ada lacks retry", ["patch", "retry"]),
        ('403: User "ada" cannot patch', HELD, ["retry"], '403: User "ada" cannot patch', ["patch", "retry"]),
        (f"{DENIED}may not delete pods", stands(Phase.HEALTHY), ["pause"], "may not delete pods", ["patch"]),
    ],
)
def test_who_may_not_is_told_why_and_how_to_look_it_up(
    cli: Cli, answer: str, before: Stands, words: list[str], said: str, verbs: list[str]
) -> None:
    cli.policy(before)

    def refuse() -> None:
        raise Forbidden(answer)

    cli.fake.before_write = lambda *_: refuse()
    lines = ", ".join(f"`{ASKS.format(verb)}`" for verb in verbs)
    assert f"default/fleet: {said}; to see what you may do: {lines}\n" in cli(*words, code=1)


def test_for_programs_a_command_answers_alike_whether_it_has_something_to_do(cli: Cli) -> None:
    cli.policy(stands(Phase.HEALTHY))
    paused, already = (cli.json("pause") for _ in range(2))
    assert paused.keys() == already.keys()
    assert (paused["patch"], already["patch"], already["kubectl"]) == ({"spec": {"suspend": True}}, {}, None)
    assert (paused["message"].partition(":")[0], already["message"]) == ("paused", "is paused already")
