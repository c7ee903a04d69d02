"""Text that can't break a line, nor look like another one: for records, logs, pages and terminals."""

from __future__ import annotations

from gateway.contract.secret_shapes import conceal


def printable(text: str, limit: int) -> str:
    r"""`text` in printable characters only, at most `limit` of them.

    Controls, line and paragraph separators, bidi and other format characters, unassigned ones, lone surrogates become
    `\xNN`, `\uNNNN` or `\UNNNNNNNN`, a backslash `\\`: two texts never look the same (but where they were cut).
    """
    if len(text) <= limit and text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_escaped, text[:limit]))[:limit]


def _escaped(char: str) -> str:
    if char == "\\":
        return "\\\\"
    if char.isprintable():
        return char
    point = ord(char)
    if point <= 0xFF:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"


def remark(text: str, limit: int = 256) -> str:
    """A room's own sentence, or a caller's own name: printable, cut, without anything that looks like a secret."""
    return printable(conceal(text)[0], limit) if text else ""
