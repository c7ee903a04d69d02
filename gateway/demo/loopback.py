"""The demo never leaves this machine: every listener of it passes through here first."""

from __future__ import annotations

import ipaddress
import random
import socket


class NotLoopback(ValueError):  # noqa: N818 - the value that was given is not one
    """An address that other machines could reach was given to a part of the demo."""


def require_loopback(host: str) -> str:
    """`host` unchanged when it is a loopback address, else `NotLoopback`. Of names only `localhost` will do."""
    try:
        safe = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        safe = False
    if not safe:
        raise NotLoopback(f"{host!r} is not a loopback address: this part of the demo is for this machine only")
    return host


def pick_port(preferred: int = 0) -> int:
    """`preferred` if it is free on loopback, else a free port below the range that outgoing connections use."""
    candidates = [preferred] if preferred else []
    candidates += random.sample(range(20_000, 32_000), 64)
    for port in candidates:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port was found on 127.0.0.1")
