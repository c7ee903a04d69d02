"""The sockets that the gateway listens on: bound before anything else is done, closed so that nobody is cut off.

Closing a listening socket resets whatever the system had accepted on it and nobody had taken yet; a proxy that sent
a POST into such a connection can't repeat it. So newcomers are kept out first, in a way that makes them come again
(`keep_out`), what is in is taken, and then the socket is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import socket
import struct
import sys
from typing import Final

BACKLOG = 2048
SETTLE_S = 0.3
"""Between `keep_out` and the socket's end: for connections that the system has accepted, and nobody yet."""
_SO_ATTACH_FILTER: Final = 26
_NO_SYN: Final = ((0x30, 0, 0, 13), (0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))
"""Classic BPF over the TCP header: the byte of flags; SYN without ACK (RFC 9293, 3.1) is dropped, all else passes."""


class CannotServe(Exception):  # noqa: N818 - what it is
    """The gateway can't serve at all; the text names the setting."""


def bind(host: str, port: int, setting: str) -> socket.socket:
    """A listening TCP socket on a name, an IPv4 or an IPv6 literal. Raises `CannotServe` naming the setting."""
    bare = host.removeprefix("[").removesuffix("]")
    try:
        found = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # A name can have both kinds of addresses; "localhost" means 127.0.0.1 to whoever writes it into a probe.
        family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CannotServe(f"{setting}: {host}:{port}: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        mend = f" -> set {setting}.port, or end who listens there" if error.errno == errno.EADDRINUSE else ""
        raise CannotServe(f"{setting}: {host}:{port}: {error.strerror}{mend}") from error
    return listener


def keep_out(listener: socket.socket) -> None:
    """Drop the first packet of every further connection (Linux; elsewhere, nothing). Those on their way stay.

    Their systems send it again a second later; the socket is closed by then, and they are refused before they have
    sent anything: a proxy takes the next server.
    """
    if sys.platform == "linux":
        program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in _NO_SYN))
        with contextlib.suppress(OSError):  # a system without socket filters: a small chance of a reset remains
            listener.setsockopt(
                socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", len(_NO_SYN), ctypes.addressof(program))
            )
