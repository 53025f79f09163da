"""Listening for connections."""

import socket


def listening_socket(host: str | None, port: int) -> socket.socket:
    """One socket for IPv4 and IPv6 where there is no ``host``: with one for each, port 0 would be two ports.

    Raises:
        OSError: the port is taken.
    """
    if host is None and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server((host or "", port))
