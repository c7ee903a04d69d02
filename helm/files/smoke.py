"""`helm test`: does the gateway that was just installed answer as its clients and its operators will need it?

Arguments: its Service's URL, its administrators' URL, the host of `public_url`, and the paths of the servers.
Exits 1 and says what was expected. No certificate is looked at: nothing secret is sent.
"""

import http.client
import json
import ssl
import sys
from urllib.parse import urlsplit

LOOKS = 20


def ask(url, path, host, method="GET"):
    """One request, under the name `host` -> (status, headers, body)."""
    at = urlsplit(url)
    if at.scheme == "https":
        context = ssl._create_unverified_context()  # noqa: S323 - asked by another name than the certificate's
        connection = http.client.HTTPSConnection(at.hostname, at.port, timeout=10, context=context)
    else:
        connection = http.client.HTTPConnection(at.hostname, at.port, timeout=10)
    try:
        headers = {"Host": host, "Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        connection.request(method, path, body=b"{}" if method == "POST" else None, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def main(gateway, admin, host, *paths):
    """Every question -> exit code."""
    wrong = []

    def expect(what, seen, wanted):
        print(f"{'ok  ' if seen == wanted else 'FAIL'} {what}: {seen}")
        if seen != wanted:
            wrong.append(f"{what}: {wanted} was expected")

    status, _, body = ask(admin, "/readyz", urlsplit(admin).netloc)
    expect("ready", status, 200)
    degraded = json.loads(body).get("degraded", []) if status == 200 else []
    expect("degraded", degraded, [])
    seen = set()
    for _ in range(LOOKS):  # each is a connection of its own: the Service chooses a replica
        _, _, body = ask(admin, "/readyz", urlsplit(admin).netloc)
        seen.add(json.loads(body)["loaded"]["digest"])
    expect("all serve by the same", len(seen) == 1 and "mixed" not in seen, True)
    status, _, body = ask(admin, "/metrics", urlsplit(admin).netloc)
    expect("metrics", status == 200 and b"ostiary_ready 1.0" in body, True)
    for path in paths:
        status, _, body = ask(gateway, "/.well-known/oauth-protected-resource" + path, host)
        expect(f"metadata of {path}", status, 200)
        status, headers, _ = ask(gateway, path, host, "POST")
        expect(f"{path} without a token", status, 401)
        expect(f"the challenge of {path}", headers.get("WWW-Authenticate", "").startswith("Bearer "), True)
        status, _, _ = ask(gateway, path, "somebody-else.invalid", "POST")
        expect(f"{path} under another host's name is refused", 400 <= status < 500 and status != 401, True)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
