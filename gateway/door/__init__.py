"""Below the ASGI door: TLS, sockets and HTTP's framing, and whom they turn away before there is a request."""
