"""Messages on real receivers over TLS: what arrives, what is refused, and that no address or token leaks into an error."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest
from aiohttp import web
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from lab.cluster.pki import Authority, Certificate
from precision_operator.addresses import PLAIN, refusal_of
from precision_operator.config_file import parse_settings
from precision_operator.errors import ConfigurationError
from precision_operator.incidents import channels
from precision_operator.incidents.channels import NotDelivered, Outgoing, send
from precision_operator.incidents.delivery import inert
from precision_operator.incidents.report import Message
from precision_operator.settings import NotificationChannel

pytestmark = pytest.mark.slow

MESSAGE = Message("Notice", "2026-01-01T00:00:00.000Z", "[P0] team/fleet: rolled back", "IMPACT: <!channel> & more")
OUTGOING = Outgoing(MESSAGE, {"policy": "fleet", "namespace": "team"})


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that delivers is niced: on a machine that is full it may take long to begin."""
    monkeypatch.setattr(channels, "START_SECONDS", 240.0)


@dataclass(frozen=True)
class Trust:
    """An authority of the tests, and a certificate of it for this machine."""

    ca: Path
    pair: Certificate


@pytest.fixture(scope="module")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    authority = Authority(tmp_path_factory.mktemp("pki"))
    authority.ensure()
    return Trust(authority.certificate, authority.issue("server", "localhost", addresses=["127.0.0.1", "localhost"]))


@dataclass
class Receiver:
    """An HTTPS server that keeps what it is sent."""

    url: str = ""
    status: int = 200
    hangs: bool = False
    bodies: list[dict[str, object]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    elsewhere: int = 0

    async def take(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.tokens.append(request.headers.get("Authorization", ""))
        if self.hangs:  # a byte at a time, so that no time-out of a socket ends it
            answer = web.StreamResponse()
            await answer.prepare(request)
            while True:
                await answer.write(b".")
                await asyncio.sleep(0.05)
        return web.Response(status=self.status, headers={"Location": "/elsewhere"} if self.status == 302 else {})

    async def redirected(self, request: web.Request) -> web.Response:
        self.elsewhere += 1
        return web.Response()


@pytest.fixture
async def receiver(trust: Trust) -> AsyncIterator[Receiver]:
    found = Receiver()
    app = web.Application()
    app.router.add_post("/hook-secret", found.take)
    app.router.add_route("*", "/elsewhere", found.redirected)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=trust.pair.serving()).start()
    found.url = f"jsons://127.0.0.1:{runner.addresses[0][1]}/hook-secret"
    yield found
    await runner.cleanup()


async def test_a_receiver_gets_the_message_with_its_facts_and_the_token(receiver: Receiver, trust: Trust) -> None:
    url = f"{receiver.url}?+Authorization={quote('Bearer abc')}"
    assert await send(NotificationChannel(url, ca_file=str(trust.ca)), [OUTGOING]) == 1
    (body,) = receiver.bodies
    assert (body["title"], body["message"], body["type"]) == (MESSAGE.subject, MESSAGE.body, "failure")
    assert (body["policy"], body["namespace"], body["kind"], body["at"]) == ("fleet", "team", "Notice", MESSAGE.at)
    assert receiver.tokens == ["Bearer abc"]


async def test_a_certificate_of_an_unknown_authority_is_refused(receiver: Receiver) -> None:
    with pytest.raises(NotDelivered, match=r"certificate verify failed|CERTIFICATE_VERIFY_FAILED"):
        await send(NotificationChannel(receiver.url), [OUTGOING])
    assert receiver.bodies == []


@pytest.mark.parametrize("status", [302, 404, 500])
async def test_an_answer_that_is_no_success_is_not_delivered(receiver: Receiver, trust: Trust, status: int) -> None:
    receiver.status = status
    with pytest.raises(NotDelivered, match=str(status)):
        await send(NotificationChannel(f"{receiver.url}?redirect=yes", ca_file=str(trust.ca)), [OUTGOING])
    assert receiver.elsewhere == 0, "a token follows no redirection"


async def test_a_channel_that_never_ends_its_answer_is_left_at_the_deadline(
    receiver: Receiver, trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.hangs = True
    # 5 s for all: far below what a socket may take, which would end it too.
    monkeypatch.setattr(channels, "START_SECONDS", -25.0)
    with pytest.raises(NotDelivered, match="no answer within 5 s"):
        await send(NotificationChannel(receiver.url, ca_file=str(trust.ca), timeout_seconds=30.0), [OUTGOING])


async def test_several_messages_go_in_order_until_one_is_not_taken(receiver: Receiver, trust: Trust) -> None:
    channel = NotificationChannel(receiver.url, ca_file=str(trust.ca))
    more = [Outgoing(Message("AllClear", "later", f"clear {number}", "body"), {}) for number in range(3)]
    assert await send(channel, [OUTGOING, *more]) == 4
    assert [body["title"] for body in receiver.bodies] == [MESSAGE.subject, "clear 0", "clear 1", "clear 2"]
    assert [body["type"] for body in receiver.bodies] == ["failure", *["success"] * 3]


async def test_the_address_may_lie_in_a_file_which_is_read_again(
    receiver: Receiver, trust: Trust, tmp_path: Path
) -> None:
    secret = tmp_path / "address"
    channel = NotificationChannel(url_file=str(secret), ca_file=str(trust.ca))
    with pytest.raises(NotDelivered, match="expected a file with an address, found FileNotFoundError; mount"):
        await send(channel, [OUTGOING])
    secret.write_text("json://127.0.0.1/x\n")
    with pytest.raises(NotDelivered, match="goes over TLS, found json://"):
        await send(channel, [OUTGOING])
    secret.write_text(f"{receiver.url}\n")
    assert await send(channel, [OUTGOING]) == 1


async def test_no_part_of_an_address_stands_in_an_error(trust: Trust) -> None:
    url = "jsons://userx1:passwordx2@127.0.0.1:9/hook-secret?+X-Token=tokenx3&-q=queryx4"
    with pytest.raises(NotDelivered) as caught:
        await send(NotificationChannel(url, ca_file=str(trust.ca)), [OUTGOING])
    assert not [
        part for part in ("userx1", "passwordx2", "hook-secret", "tokenx3", "queryx4") if part in str(caught.value)
    ]


async def test_an_address_that_no_service_has_is_named_as_such() -> None:
    with pytest.raises(NotDelivered, match="no service of Apprise has it"):
        await send(NotificationChannel("pigeons://somewhere"), [OUTGOING])


async def test_nothing_of_the_operators_environment_is_given_on(monkeypatch: pytest.MonkeyPatch, trust: Trust) -> None:
    seen: list[dict[str, str]] = []
    run = asyncio.create_subprocess_exec

    async def spy(
        *command: str, env: dict[str, str], stdin: int, stdout: int, stderr: int
    ) -> asyncio.subprocess.Process:
        seen.append(env)
        return await run(*command, env=env, stdin=stdin, stdout=stdout, stderr=stderr)

    monkeypatch.setenv("CHAT_HOOK", "secret")
    monkeypatch.setattr(asyncio, "create_subprocess_exec", spy)
    with pytest.raises(NotDelivered):
        await send(NotificationChannel("pigeons://somewhere", ca_file=str(trust.ca)), [OUTGOING])
    assert "CHAT_HOOK" not in seen[0]
    assert seen[0]["REQUESTS_CA_BUNDLE"] == seen[0]["SSL_CERT_FILE"] == str(trust.ca)


@dataclass
class Mails:
    """What a mail server has taken."""

    port: int = 0
    subjects: list[str] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802, RUF100
        content = envelope.content
        assert isinstance(content, bytes)
        assert session.ssl is not None
        self.subjects += [line for line in content.decode().splitlines() if line.startswith("Subject:")]
        self.recipients += envelope.rcpt_tos
        return "250 taken"

    def login(self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: object) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logins.append(f"{data.login.decode()}:{data.password.decode()}")
        return AuthResult(success=data.password == b"opensesame1", handled=False)


StartMails = Callable[..., Awaitable[Mails]]


@pytest.fixture
async def mails(trust: Trust) -> AsyncIterator[StartMails]:
    """Starts mail servers that demand STARTTLS before anything else."""
    found: list[asyncio.Server] = []

    async def start(*, tls: bool = True) -> Mails:
        taken = Mails()

        def serve() -> SMTP:
            return SMTP(
                taken,
                hostname="localhost",
                tls_context=trust.pair.serving() if tls else None,
                require_starttls=tls,
                authenticator=taken.login,
                auth_require_tls=True,
                loop=asyncio.get_running_loop(),
            )

        server = await asyncio.get_running_loop().create_server(serve, "127.0.0.1", 0)
        found.append(server)
        taken.port = server.sockets[0].getsockname()[1]
        return taken

    yield start
    for server in found:
        server.close()
        await server.wait_closed()


def mail(taken: Mails, password: str = "opensesame1") -> str:
    return f"mailtos://ops:{password}@localhost:{taken.port}?from=ops@example.org&to=a@example.org,b@example.org&mode=starttls"


async def test_mail_goes_by_starttls_to_a_server_of_a_known_authority(mails: StartMails, trust: Trust) -> None:
    taken = await mails()
    assert await send(NotificationChannel(mail(taken), ca_file=str(trust.ca)), [OUTGOING]) == 1
    assert taken.subjects[0] == f"Subject: {MESSAGE.subject}"
    assert sorted(taken.recipients) == ["a@example.org", "b@example.org"]
    assert taken.logins[0] == "ops:opensesame1"


async def test_a_mail_server_with_a_certificate_of_an_unknown_authority_gets_neither_mail_nor_password(
    mails: StartMails,
) -> None:
    taken = await mails()
    with pytest.raises(NotDelivered, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
        await send(NotificationChannel(mail(taken)), [OUTGOING])
    assert (taken.subjects, taken.logins) == ([], [])


async def test_a_mail_server_without_tls_gets_neither_mail_nor_password(mails: StartMails, trust: Trust) -> None:
    taken = await mails(tls=False)
    with pytest.raises(NotDelivered, match="STARTTLS"):
        await send(NotificationChannel(mail(taken), ca_file=str(trust.ca)), [OUTGOING])
    assert (taken.subjects, taken.logins) == ([], [])


async def test_a_wrong_password_is_said_and_not_shown(mails: StartMails, trust: Trust) -> None:
    taken = await mails()
    with pytest.raises(NotDelivered, match=r"[Aa]uthentication") as caught:
        await send(NotificationChannel(mail(taken, "wrongpassword7"), ca_file=str(trust.ca)), [OUTGOING])
    assert "wrongpassword7" not in str(caught.value)


@pytest.mark.parametrize(
    ("channel", "words"),
    [
        ({}, "expected either url or urlFile, found none"),
        ({"url": "slack://a/b/c", "urlFile": "/x"}, "expected either url or urlFile, found both"),
        ({"url": "https//x"}, "expected an address of Apprise"),
        ({"url": "$(HOOK)"}, "expected an address of Apprise"),
        ({"url": "json://token@x/y"}, r"found json://, by which its token .* write jsons://"),
        ({"url": "http://hooks.slack.com/services/T/B/C"}, "goes over TLS, found http://"),
        ({"url": "mailto://u:p@x"}, "write mailtos://"),
        ({"url": "JSON://x/y"}, "goes over TLS"),
        ({"url": "jsons://x/y?verify=no"}, "expected certificates to be verified.* caFile"),
        ({"url": "jsons://x/y?a=1&Verify=False"}, "expected certificates to be verified"),
        ({"url": "mailtos://u:p@x?mode=insecure"}, "mode=starttls or mode=ssl"),
        ({"url": "slack://a/b/c", "role": "boss"}, "role: expected one of"),
        ({"url": "slack://a/b/c", "timeoutSeconds": 0}, "timeoutSeconds: expected 0 to 60, found 0"),
        ({"url": "slack://a/b/c", "token": "y"}, "no such setting"),
    ],
)
def test_a_channel_that_cannot_work_is_refused_at_the_start(channel: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        parse_settings({"notifications": {"it": channel}}, environment={})
    assert "u:p@" not in str(caught.value)
    assert "token@" not in str(caught.value)


def test_a_channels_address_may_come_from_the_environment() -> None:
    raw = {"notifications": {"it": {"url": "$(HOOK)"}}}
    assert parse_settings(raw, environment={"HOOK": "slack://a/b/c"}).notifications["it"].url == "slack://a/b/c"


def test_in_a_chat_nobody_is_mentioned_and_no_link_is_made() -> None:
    shown = inert("<!channel> <!here|x> <@U1> @everyone [click](https://evil.example) a@b")
    assert not [active for active in ("<!", "@e", "@U", "](") if active in shown]


SLACK_PROBE = """
import json, requests
from precision_operator.incidents.delivery import deliver
sent = []
class Taken: status_code, content, text, headers = 200, b"ok", "ok", {}
requests.request = requests.post = lambda *a, **k: (sent.append(k["data"]), Taken())[1]
note = {"kind": "Notice", "subject": "<!channel>", "body": "<@U1> @here <https://evil.example|click>", "facts": {}}
for url in ("slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ", "mmosts://h/3ccdd113474722377935511fc85d3dd4"):
    assert deliver({"url": url, "timeout_seconds": 1, "notes": [note]})["delivered"] == 1
print(json.dumps([json.loads(body) for body in sent]))
"""


def test_so_it_is_in_what_slack_and_mattermost_are_sent() -> None:
    command = [sys.executable, "-W", "ignore", "-c", SLACK_PROBE]
    sent = subprocess.run(command, check=True, capture_output=True, text=True, env=dict(os.environ)).stdout
    slack, mattermost = (json.dumps(body, ensure_ascii=False) for body in json.loads(sent))
    assert "<" not in slack
    assert not [
        active for active in ("<!", "@U1", "@here", "githubusercontent", "icon_url") if active in slack + mattermost
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_scheme_of_apprise_without_tls_is_known() -> None:
    from apprise.manager_plugins import NotificationManager

    schemes: set[str] = set()
    for service in NotificationManager().plugins():
        schemes |= {service.protocol} if isinstance(service.protocol, str) else set(service.protocol or ())
    assert schemes == PLAIN - {"http", "alertmanager"}


@pytest.mark.parametrize(
    "url", ["slack://a/b/c", "https://hooks.slack.com/services/a/b/c", "mailtos://u:p@x", "ntfys://x/y?verify=yes"]
)
def test_addresses_over_tls_are_taken(url: str) -> None:
    assert refusal_of(url) == ""


def test_the_operator_itself_does_not_load_apprise() -> None:
    code = "import sys, precision_operator.app; sys.exit('apprise' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False, env=dict(os.environ)).returncode == 0
    )


@pytest.mark.parametrize(
    "url",
    [
        "kavenegar://key/1",
        "dapnet://user:pass@DF1ABC",
        "aprs://CALL:12345@DF1ABC",
        "mailtos://u:p@x?to=a@b.example;mode=insecure",
        "mailtos://u:p@x?to=a@b.example;verify=no",
    ],
)
def test_what_apprise_would_send_without_tls_all_the_same_is_refused(url: str) -> None:
    assert refusal_of(url).startswith("expected ")
