"""Which URIs of a server may be named (issue text "Resources"; RFC 3986 section 6.2, RFC 6570)."""

from __future__ import annotations

import posixpath
from dataclasses import replace
from typing import Any
from unicodedata import category, normalize
from urllib.parse import quote, unquote, urljoin, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.contract.judgement import check_reach
from gateway.contract.listing import candidates_of, check_contents, out_of_reach
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.resources import Reach, check_prefix, is_normal
from tests.contract.asking import SERVER, ask, message

REACH = Reach(("file:///srv/data/", "bank://accounts", "https://docs.example.com/"))

INSIDE = [
    "file:///srv/data/",
    "file:///srv/data/x",
    "file:///srv/data/a/b.txt",
    "file:///srv/data/dir/",
    "file:///srv/data/..x/...y",
    "file:///srv/data/%20%C3%A9.txt",
    "file:///srv/data/a%3Fb%23c",
    "bank://accounts",
    "https://docs.example.com/?q=a/b",
    "https://docs.example.com/a;v=1#part",
]
OUTSIDE = [
    "", "x", "file:", "file:///", "file:///srv/data", "file:///srv/database", "file:///srv/data.txt", "file:///etc/passwd",
    "bank://accounts/", "bank://accounts?x", "bank://accountsx", "https://docs.example.com", "https://docs.example.com.evil/",
    "https://docs.example.com:8443/", "https://docs.example.com./", "file://localhost/srv/data/x",
]  # fmt: skip
TRICKS = [
    "file:///srv/data/../secret", "file:///srv/data/./x", "file:///srv/data/..", "file:///srv/data/a/../b",
    "file:///srv/data/%2e%2e/x", "file:///srv/data/%2E%2E/x", "file:///srv/data/.%2E/x", "file:///srv/data/%252e%252e/x",
    "file:///srv/data/%25252e/x", "file:///srv/data/..%2Fx", "file:///srv/data/..%2fx", "file:///srv/data/..%5Cx",
    "file:///srv/data/..\\x", "file:///srv/data/a%00", "file:///srv/data/a%0A", "file:///srv/data/a%7F", "file:///srv/data/a\x00",
    "file:///srv/data/%C2%85", "file:///srv/data//x", "file:///srv/data/x//", "file:////srv/data/x", "file:///srv//data/x",
    "FILE:///srv/data/x", "File:///srv/data/x", "file://user@/srv/data/x",
    "https://DOCS.example.com/x", "https://docs.example.com:443/x", "https://docs.example.com:/x",
    "https://docs.example.com@evil.example/", "https://evil@docs.example.com/", "https://docs.example.com\\@evil/",
    "https://docs%2Eexample.com/", "https:/docs.example.com/", "https:docs.example.com/", "https://../x",
    "file:///srv/data/%ff", "file:///srv/data/%C0%AE%C0%AE/x", "file:///srv/data/%ED%A0%80", "file:///srv/data/%c3%a9",
    "file:///srv/data/%", "file:///srv/data/%4", "file:///srv/data/%zz", "file:///srv/data/%41", "file:///srv/data/%7e",
    "file:///srv/data/é", "file:///srv/data/a b", "file:///srv/data/..%20/x", "file:///srv/data/. ./x", "file:///srv/data/..;/x",
    "file:///srv/data/%EF%BC%8E%EF%BC%8E/x", "file:///srv/data/%E2%80%A5/x", "file:///srv/data/a%EF%BC%8Fb",
    "file:///srv/data/a%EF%BC%BC..", "file:///srv/data/?../../x", "file:///srv/data/#/../x", " file:///srv/data/x",
    "file:///srv/data/..%E2%80%8B/x", "file:///srv/data/%C2%AD../x", "file:///srv/data/.%E2%80%AE.", "file:///srv/data/x/%EF%BB%BF/y",
    "file:///srv/data/x\n", "file:///srv/data/{x}", "file:///srv/data/" + "x" * 8192,
]  # fmt: skip


@pytest.mark.parametrize("uri", INSIDE)
def test_what_lies_below_a_prefix_is_inside(uri: str) -> None:
    """A prefix that ends with `/` admits itself and what is below, any other exactly itself."""
    assert REACH.admits(uri)


@pytest.mark.parametrize("uri", OUTSIDE)
def test_a_prefix_is_compared_by_segments(uri: str) -> None:
    """What only begins with the same characters is outside."""
    assert not REACH.admits(uri)


@pytest.mark.parametrize("uri", TRICKS)
def test_what_has_another_reading_is_outside(uri: str) -> None:
    """Not in normal form: refused rather than repaired, also where its repaired form would be inside."""
    assert not REACH.admits(uri)
    assert not Reach(("file://", "file:///", "https://", "file:///srv/")).admits(uri)


@given(st.text("ab./%2eE5CcFf\\;?#@:\uff0e\uff0f", max_size=12))
def test_no_reading_of_what_is_admitted_leads_out(rest: str) -> None:
    """Decoded once or twice, split like a URL or a path: what is admitted stays below its prefix."""
    uri = "file:///srv/data/" + rest
    if not REACH.admits(uri):
        return
    path = urlsplit(uri).path
    for text in (path, unquote(path), unquote(unquote(path)), uri, unquote(uri)):
        parts = text.replace("\\", "/").replace(";", "/").split("/")
        assert not {".", ".."} & set(parts)
    assert unquote(path).startswith("/srv/data/")
    assert unquote(unquote(path)) == unquote(path)
    assert unquote(path).count("/") == path.count("/")


@pytest.mark.parametrize(
    "template",
    [
        "file:///srv/data/{name}",
        "file:///srv/data/{+path}",
        "file:///srv/data/{a,b:3}/c{/d*}{?e}",
        "file:///srv/data/plain",
        "https://docs.example.com/{x}#{y}",
    ],
)
def test_a_template_whose_literals_stay_inside_is_shown(template: str) -> None:
    """What it is expanded to is judged when it is read."""
    assert REACH.admits_template(template)
    assert not Reach(("file:///other/",)).admits_template(template)


@pytest.mark.parametrize(
    "template",
    [
        "{+uri}", "file://{host}/srv/data/", "file:///srv/{x}", "file:///srv/data{x}", "file:///srv/data{/x}",
        "bank://accounts{?q}", "file:///srv/data/{x}/../../{y}", "file:///srv/data/../{x}", "file:///srv/data/{/x}",
        "file:///srv/data/{x", "file:///srv/data/{}", "file:///srv/data/{!x}", "file:///srv/data/x}", "file:///srv/data/%2e%2e/{x}",
        "FILE:///srv/data/{x}", "file:///srv/data/.{.}{x}", "file:///srv/data/{x}" + "y" * 8192,
    ],
)  # fmt: skip
def test_a_template_that_could_begin_or_lead_elsewhere_is_not(template: str) -> None:
    """Nothing is shown whose literal part leads out, or is not that of a template."""
    assert REACH.admits_template("file:///srv/data/{x}")
    assert not REACH.admits_template(template)


@pytest.mark.parametrize("prefix", ["bank://", "file:///srv/", "urn:isbn:1", "https://h.example/a"])
def test_a_prefix_is_a_uri_in_normal_form(prefix: str) -> None:
    """One that no URI could begin with would silently admit nothing."""
    assert check_prefix(prefix) == prefix
    assert is_normal(prefix)
    for wrong in (prefix.upper(), prefix + "/../", "/" + prefix, prefix + "%2f", ""):
        with pytest.raises(ValueError, match="normal form"):
            check_prefix(wrong)


def refused(method: str, params: dict[str, Any]) -> bool:
    """Whether the request is out of reach; the twin without a limit always passes."""
    call = ask(message(method, params=params))
    check_reach(SERVER, call)
    try:
        check_reach(replace(SERVER, reach=REACH), call)
    except Refused as found:
        caught = found
    else:
        return False
    assert (caught.refusal, caught.data, caught.message) == (Refusal.POLICY_DENIED, {}, None)
    return True


GOOD, BAD = "file:///srv/data/x", "file:///srv/data/%2e%2e/x"


@pytest.mark.parametrize(("uri", "out"), [(GOOD, False), (BAD, True), ("file:///etc/passwd", True)])
def test_every_request_that_names_a_resource_is_held_to_the_prefixes(uri: str, out: bool) -> None:
    """Read, subscribed to, completed: one rule."""
    assert refused("resources/read", {"uri": uri}) is out
    assert refused("subscriptions/listen", {"notifications": {"resourceSubscriptions": [GOOD, uri]}}) is out
    argument = {"name": "n", "value": "v"}
    assert refused("completion/complete", {"ref": {"type": "ref/resource", "uri": uri}, "argument": argument}) is out
    assert (
        refused("completion/complete", {"ref": {"type": "x", "name": "n", "uri": uri}, "argument": argument}) is out
    )
    assert not refused("completion/complete", {"ref": {"type": "ref/prompt", "name": "n"}, "argument": argument})
    assert not refused("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    assert not refused("tools/call", {"name": uri, "arguments": {"uri": uri}})


@pytest.mark.parametrize(
    ("value", "out"),
    [("", False), ("a/b", False), ("Jürgen B", False), ("a/", False), ("..", True), ("a/../b", True), ("/etc", True),
     ("a//b", True), ("a\\b", True), ("%2e", True), ("a\x00", True), ("\uff0e\uff0e/", True), ("x;../", True)],
)  # fmt: skip
def test_a_completions_values_lead_nowhere_else(value: str, out: bool) -> None:
    """The server may put them in the template to see what is there."""
    ref = {"type": "ref/resource", "uri": "file:///srv/data/{+path}"}
    plain = {"name": "path", "value": "a"}
    assert refused("completion/complete", {"ref": ref, "argument": {**plain, "value": value}}) is out
    context = {"context": {"arguments": {"other": value}}}
    assert refused("completion/complete", {"ref": ref, "argument": plain, **context}) is out
    assert refused("completion/complete", {"ref": ref, "argument": plain, "context": {"arguments": {"o": 5}}})


def test_what_is_out_of_reach_is_not_listed() -> None:
    """Resources and templates; every other list is left alone."""
    resources = [{"uri": GOOD, "mimeType": "Text/Plain; x=1"}, {"uri": BAD}, {"uri": "file:///etc/passwd"}]
    candidates = candidates_of("resources/list", {"resources": resources})
    assert out_of_reach(REACH, "resources/list", candidates) == {BAD, "file:///etc/passwd"}
    assert out_of_reach(None, "resources/list", candidates) == set()
    templates = [{"uriTemplate": "file:///srv/data/{x}"}, {"uriTemplate": "file:///{x}"}]
    candidates = candidates_of("resources/templates/list", {"resourceTemplates": templates})
    assert out_of_reach(REACH, "resources/templates/list", candidates) == {"file:///{x}"}
    assert out_of_reach(REACH, "tools/list", candidates_of("tools/list", {"tools": [{"name": BAD}]})) == set()


@pytest.mark.parametrize(
    "contents",
    [
        [{"uri": GOOD, "text": ""}, {"uri": "file:///etc/passwd", "text": "root"}], [{"uri": BAD}], [{"text": "x"}],
        [{"uri": 5}], ["x"], {}, None, [{"uri": GOOD, "URI": "file:///etc/passwd"}],
    ],
)  # fmt: skip
def test_a_server_that_answers_with_another_resource_is_not_delivered(contents: Any) -> None:
    """Each content says of which resource it is, and is held to the prefixes like the request."""
    good: dict[str, Any] = {"contents": [{"uri": GOOD, "text": "t"}, {"uri": GOOD + "/part", "blob": ""}]}
    check_contents(REACH, good)
    check_contents(None, {"contents": contents})
    with pytest.raises(Refused) as caught:
        check_contents(REACH, {"contents": contents})
    assert caught.value.refusal is Refusal.UPSTREAM_INVALID
    with pytest.raises(Refused):
        check_contents(REACH, {**good, "Contents": []})


@given(
    st.lists(
        st.sampled_from([*"ab./?#;:~ ", "..", "//", *map(quote, "\u2025\uff0e\uff0f\u200b\xad\u202e\ufe68 ?;")]),
        max_size=6,
    )
)
def test_no_lenient_server_is_led_out_by_what_is_admitted(parts: list[str]) -> None:
    """Decoded, brought to its compatibility form and rid of what nobody sees: it is still below the prefix."""
    uri = "file:///srv/data/" + "".join(parts)
    if not REACH.admits(uri):
        return
    for text in (uri.removeprefix("file://"), urlsplit(uri).path, urlsplit(urljoin("file:///srv/data/", uri)).path):
        seen = "".join(one for one in normalize("NFKC", unquote(text)) if category(one) not in {"Cf", "Cc"})
        assert (posixpath.normpath(seen) + "/").startswith("/srv/data/")


@pytest.mark.parametrize("more", ["&path=/etc", "x&path=/etc", "x?path=/etc", "x#y", "x;path=/etc", "x%26path=/etc"])
def test_below_a_prefix_in_a_query_is_no_other_parameter(more: str) -> None:
    """A server that takes the last of two would be led out of what it was held to by the first."""
    reach = Reach(("https://docs.example.com/get?path=/srv/data/",))
    assert reach.admits("https://docs.example.com/get?path=/srv/data/a/b.txt")
    assert not reach.admits("https://docs.example.com/get?path=/srv/data/" + more)
    assert not reach.admits_template("https://docs.example.com/get?path=/srv/data/{x}" + more)
    assert Reach(("https://docs.example.com/",)).admits("https://docs.example.com/get?path=x&y=z")


@pytest.mark.parametrize(
    "tail", ["..{x}", "{x}..", "{a}..{b}/x", "..{/x}", "{.a}{.b}", ".{.a}", "a/..{?q}", "{x}./y"]
)
def test_a_template_leads_nowhere_else_where_its_expressions_are_empty(tail: str) -> None:
    """RFC 6570, 3.2: an undefined or empty variable leaves the dots that stand around it."""
    assert REACH.admits_template("file:///srv/data/x..{x}")
    assert not REACH.admits_template("file:///srv/data/" + tail)
