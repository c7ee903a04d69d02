"""The example for nginx agrees with the settings that it stands beside; tests/e2e/test_rolling.py runs it."""

from __future__ import annotations

import re

from gateway.config import Limits
from gateway.door.framing import DoorLimits
from tests.support.nginx import EXAMPLE

LIMITS = Limits()


def directives() -> dict[str, str]:
    """Name -> the rest of the line; each of those that matter stands once."""
    lines = [line.strip() for line in EXAMPLE.read_text().splitlines()]
    found = re.findall(r"(?m)^(\w+) ([^;{]*);$", "\n".join(line for line in lines if not line.startswith("#")))
    once = [name for name, _ in found if name not in ("server", "proxy_set_header", "default", "subscriptions")]
    assert len(set(once)) == len(once)
    return dict(found)


def seconds(name: str) -> float:
    return float(directives()[name].removesuffix("s"))


def test_idle_connections_are_let_go_before_the_gateway_closes_them() -> None:
    """Below what a gateway that stops waits for, and below what one that serves keeps them."""
    assert seconds("keepalive_timeout") < LIMITS.drain_s - 1
    assert seconds("keepalive_timeout") < DoorLimits().idle_s


def test_no_request_that_may_have_been_sent_is_sent_again() -> None:
    """The next gateway only where no connection was made; a POST of which a byte left stays where it is."""
    assert directives()["proxy_next_upstream"] == "error timeout"
    assert seconds("proxy_connect_timeout") > 1, "who is kept out is refused a second later"


def test_bounds_are_the_gateways() -> None:
    """nginx refuses nothing that the gateway would take, and gives up nothing that it still answers."""
    assert directives()["client_max_body_size"] == f"{LIMITS.body_bytes >> 20}m"
    assert seconds("proxy_read_timeout") > max(LIMITS.answer_s, 3 * LIMITS.keep_alive_s)
    assert directives()["proxy_buffering"] == "off"


def test_no_subscription_is_what_a_gateway_is_tried_with() -> None:
    """It would be out until that ended: subscriptions have the same gateways apart, of which none is ever out."""
    text = EXAMPLE.read_text()
    pools = dict(re.findall(r"(?ms)^upstream (\w+) \{(.*?)^\}", text))
    servers = {name: re.findall(r"(?m)^ +server (\S+) (.*);$", pool) for name, pool in pools.items()}
    assert [address for address, _ in servers["ostiary"]] == [one for one, _ in servers["ostiary_subscriptions"]]
    assert {how for _, how in servers["ostiary_subscriptions"]} == {"max_fails=0"}
    (routes,) = re.findall(r"(?ms)^map \$http_mcp_method \$(\w+) \{(.*?)^\}", text)
    assert routes[1].split() == ["default", "ostiary;", "subscriptions/listen", "ostiary_subscriptions;"]
    assert directives()["proxy_pass"] == f"http://${routes[0]}"
