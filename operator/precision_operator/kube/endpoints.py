"""Who stands behind a Service, by its EndpointSlices."""

from collections.abc import Iterator, Mapping

from precision_operator.api.wire import integer, mapping, sequence, text


def ready_servers(body: Mapping[str, object], *, default_port: int | None = None) -> Iterator[str]:
    """Base URLs of the ready endpoints of a slice. ``default_port``: where it names none; None: then there is no server."""
    ports = [integer(mapping(port).get("port"), default_port or 0) for port in sequence(body.get("ports"))]
    ports = ports or ([default_port] if default_port is not None else [])
    for endpoint in map(mapping, sequence(body.get("endpoints"))):
        if not ports or mapping(endpoint.get("conditions")).get("ready") is False:
            continue
        for address in sequence(endpoint.get("addresses")):
            host = f"[{address}]" if ":" in text(address) else text(address)
            yield f"https://{host}:{ports[0]}"
