"""The event stream format as its specification has it: what every other parser of it is held to."""

from __future__ import annotations

Triple = tuple[str, str, str]


def _lines(text: str) -> list[str]:
    lines = []
    line = ""
    for index, character in enumerate(text):
        if character == "\n" and text[index - 1 : index] == "\r":
            continue
        if character in "\r\n":
            lines.append(line)
            line = ""
        else:
            line += character
    return lines


def whatwg(stream: bytes) -> list[Triple]:
    """The specification's algorithm, written down as it stands there: (type, data, last event id) of each event."""
    events: list[Triple] = []
    data = kind = last_id = ""
    for line in _lines(stream.decode("utf-8", "replace").removeprefix("\ufeff")):
        if line == "":
            if data != "":
                events.append((kind or "message", data.removesuffix("\n"), last_id))
            data = kind = ""
        elif not line.startswith(":"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                kind = value
            elif field == "data":
                data += value + "\n"
            elif field == "id" and "\0" not in value:
                last_id = value
    return events
