"""A person's commands from the page: what the verbs of the command line would write, tried first and then written."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from precision_operator.api.commands import Prerequisite
from precision_operator.api.text import bounded
from precision_operator.api.wire import mapping, sequence, text
from precision_operator.cli.ack import MEANINGS, acknowledging
from precision_operator.cli.session import CommandRefused, Session, Target
from precision_operator.cli.steer import VERBS, waits_for_retry
from precision_operator.cli.write import Already, Asked, Planned, send
from precision_operator.errors import ConfigurationError

ACK = "ack"
EMERGENCY = "emergency"
BUTTONS: Mapping[str, str] = {
    "promote": "Promote",
    "pause": "Pause",
    "resume": "Resume",
    "rollback": "Roll back",
    "drill": "Drill",
    EMERGENCY: "Emergency rollback",
    ACK: "Acknowledge",
    "retry": "Retry",
}
"""Commands, in the order in which the page has them."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A command that somebody pressed."""

    namespace: str
    policy: str
    verb: str
    message: str = ""
    items: tuple[Prerequisite, ...] = ()
    """What is acknowledged."""
    transition_id: int | None = None
    """The transition that the preview showed; None: it is the preview."""

    @classmethod
    def read(cls, raw: object) -> "Wish":
        """From the page's JSON.

        Raises:
            ConfigurationError: it is none.
        """
        given = mapping(raw)
        verb, wanted = text(given.get("verb")), [text(item) for item in sequence(given.get("items"))]
        unknown = [item for item in wanted if item not in set(Prerequisite)]
        number = given.get("transitionId")
        if verb not in BUTTONS or unknown:
            found = bounded(unknown[0] if unknown else verb, 40)
            raise ConfigurationError(f"expected one of {', '.join(BUTTONS)}, found {found!r}; reload the page")
        return cls(
            text(given.get("namespace")),
            text(given.get("policy")),
            verb,
            bounded(text(given.get("message"))),
            tuple(Prerequisite(item) for item in wanted),
            number if isinstance(number, int) else None,
        )

    def words(self) -> tuple[str, ...]:
        """The command line that does the same."""
        verb = ("rollback", self.policy, "--emergency") if self.verb == EMERGENCY else (self.verb, self.policy)
        return (*verb, *self.items, *(("-m", self.message) if self.message else ()))


def planned(session: Session, target: Target, wish: Wish) -> Planned | Already:
    """What the verb of the command line would write.

    Raises:
        CommandRefused: it would not; the message says why, and what to do instead.
    """
    asked = Asked(wish.message, emergency=wish.verb == EMERGENCY)
    if wish.verb == ACK:
        return acknowledging(target, wish.items, asked)
    return VERBS["rollback" if wish.verb == EMERGENCY else wish.verb].plan(session, target, asked)


def buttons(session: Session, target: Target) -> list[dict[str, object]]:
    """Each command, and why it has nothing to do here, by the rules of the command line."""
    found: list[dict[str, object]] = []
    for verb, label in BUTTONS.items():
        wish = Wish(session.namespace, target.policy.name, verb)
        try:
            plan = planned(session, target, wish)
            why = f"{target.where} {plan.why}" if isinstance(plan, Already) else ""
        except CommandRefused as error:
            why = str(error)
        found.append({"verb": verb, "label": label, "refused": why})
    return found


def prerequisites(target: Target) -> list[dict[str, object]]:
    """What a retry waits for, where something does."""
    asked = target.policy.spec.reenable.prerequisites if waits_for_retry(target) else ()
    return [{"item": item, "meaning": MEANINGS[item]} for item in asked]


async def preview(session: Session, wish: Wish) -> dict[str, object]:
    """What the command would do: tried by the API server with the user's own rights, and not written."""
    session, target, plan = await _plan(session, wish)
    if isinstance(plan, Already):
        return {"already": f"{target.where} {plan.why}"}
    await send(session, target, plan.write, dry_run=True)
    return {
        "done": plan.done,
        "note": plan.note,
        "transitionId": target.status.transition_id,
        "patch": plan.write.patch(),
        "precision": session.plugin(*wish.words()),
        "kubectl": plan.write.kubectl(session, wish.policy),
    }


async def apply(session: Session, wish: Wish) -> dict[str, object]:
    """Write it, where the fleet still stands where the preview showed it."""
    session, target, plan = await _plan(session, wish)
    if isinstance(plan, Already):
        return {"already": f"{target.where} {plan.why}"}
    if wish.transition_id != target.status.transition_id:
        raise CommandRefused(
            f"{target.where} went on to transition {target.status.transition_id}, the preview showed "
            f"{wish.transition_id}: nothing was written; look at it again, and preview anew"
        )
    await send(session, target, plan.write)
    return {"done": plan.done, "note": plan.note}


async def _plan(session: Session, wish: Wish) -> tuple[Session, Target, Planned | Already]:
    if wish.verb == ACK and not wish.items:
        raise CommandRefused(
            f"expected one of {', '.join(Prerequisite)} to acknowledge, found none; choose at least one"
        )
    there = replace(session, namespace=wish.namespace)
    target = await there.policy(wish.policy)
    return there, target, planned(there, target, wish)
