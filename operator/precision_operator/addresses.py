"""Addresses of channels, as Apprise writes them (``slack://…``, ``jsons://host/path``): which are refused, and why. Pure."""

from urllib.parse import parse_qsl

PLAIN = frozenset(
    [
        *(
            "alertmanager",
            "amqp",
            "apprise",
            "bark",
            "blink1",
            "dbus",
            "deltachat",
            "emby",
            "enigma2",
            "evolution",
            "flowtriq",
            "fluxer",
        ),
        *("form", "gio", "glib", "gnome", "goalert", "gorush", "gotify", "growl", "hassio", "http", "humhub", "irc"),
        *("jellyfin", "json", "kde", "kodi", "lametric", "macosx", "mailto", "mastodon", "matrix", "misskey", "mmost"),
        *("mqtt", "ncloud", "nctalk", "notica", "notifico", "ntfy", "onebot", "parsep", "pinglet", "pjet", "psafer"),
        *("pushdeer", "pushme", "qt", "rocket", "rsyslog", "session", "sfr", "signal", "smpp", "smseagle", "synology"),
        *("syslog", "toot", "trigv", "windows", "xbmc", "xml", "xmpp"),
    ]
)
"""Schemes that go over a connection without TLS. A test compares them with Apprise, which is not imported here: it takes
half a second and 50 MiB.
"""
PLAIN_SERVICES = frozenset({"aprs", "dapnet", "kavenegar"})
"""Schemes of services that Apprise calls secure, and reaches by http or a bare socket all the same."""

_NO = frozenset({"no", "false", "0", "off", "n", "f", "never", "disable", "disabled", "deny"})


def refusal_of(url: str) -> str:
    """Why a channel with this address is not used, with what to write; empty: it may be. Never quotes the address."""
    scheme, separator, rest = url.strip().partition("://")
    scheme = scheme.lower()
    if not separator or not rest:
        return "expected an address of Apprise such as slack://… or jsons://host/path, found none; see docs/notifications.md"
    if scheme in PLAIN:
        return (
            f"expected a scheme that goes over TLS, found {scheme}://, by which its token and the messages could be read; "
            f"write {scheme}s:// where the service has it (jsons://, mailtos://)"
        )
    if scheme in PLAIN_SERVICES:
        return f"expected a service that is reached over TLS, found {scheme}://, which is not; choose another channel"
    # Apprise parts options by ; too.
    query = rest.partition("?")[2].replace(";", "&")
    options = {key.lower(): value.strip().lower() for key, value in parse_qsl(query)}
    if options.get("verify") in _NO:
        return f"expected certificates to be verified, found verify={options['verify']}; take it away and set caFile"
    if options.get("mode") == "insecure":
        return "expected mode=starttls or mode=ssl, found mode=insecure, by which a password could be read"
    return ""
