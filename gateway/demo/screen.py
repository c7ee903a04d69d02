"""How the tour looks: coloured in a terminal, plain text in a pipe, and never a broken line in what can be copied.

In a pipe nothing but the text is written: no ANSI sequence, whatever the environment asks for.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.console import Console
from rich.text import Text

from gateway.demo.exchange import Answer, Ask

TOKEN = re.compile(r"eyJ[\w-]+\.[\w-]+\.[\w-]+")
DULL_HEADERS = frozenset({"date", "server"})
INDENT = "    "
WIDEST = 110


def shorten(text: str) -> str:
    """The text with each token cut to its first and last characters."""
    return TOKEN.sub(lambda token: f"{token[0][:10]}…{token[0][-6:]}", text)


class Screen:
    """Writes the tour to one stream and counts what did not behave."""

    def __init__(self, stream: TextIO) -> None:
        terminal = stream.isatty()
        self._console = Console(
            file=stream,
            force_terminal=terminal,
            force_interactive=False,
            no_color=not terminal or "NO_COLOR" in os.environ,
            color_system="auto" if terminal else None,
            width=None if terminal else WIDEST,
            highlight=False,
            emoji=False,
            markup=False,
        )
        self.failures: list[str] = []

    def title(self, text: str, *lines: str) -> None:
        """The first words, or the last."""
        self._line()
        self._line(text, style="bold reverse" if self._console.is_terminal else "bold")
        for line in lines:
            self._prose(line)

    def stop(self, number: int, of: int, title: str, why: str) -> None:
        """A stop begins: what it shows, and why anybody should care."""
        self._line()
        self._line(f"{'─' * 4} {number}/{of}  {title} {'─' * max(4, 84 - len(title))}", style="bold cyan")
        self._prose(why)

    def say(self, text: str) -> None:
        """A sentence in between."""
        self._line()
        self._prose(text)

    def table(self, rows: Mapping[str, str]) -> None:
        """Names and what there is to say of each."""
        self._line()
        for name, text in rows.items():
            self._wire(f"{name:<9}{text}")

    def report(self, rows: Sequence[tuple[str, str]]) -> None:
        """What was done, and by whom, in order."""
        self._line()
        widest = max((len(what) for what, _ in rows), default=0)
        for what, whom in rows:
            self._wire(f"{what:<{widest}}  {whom}")

    def request(self, ask: Ask, remarks: Mapping[str, str] | None = None) -> None:
        """What is sent. `remarks` points at a header, or at the body, with a few words."""
        remarks = remarks or {}
        self._line()
        path = "/" + ask.url.split("/", 3)[3]
        self._wire(f"→ {ask.verb} {path}", style="bold blue")
        for name, value in ask.headers.items():
            self._wire(f"  {name}: {shorten(value)}", remark=remarks.get(name, ""))
        if ask.body is not None:
            self._wire(f"  {ask.text}", remark=remarks.get("body", ""))

    def answer(self, answer: Answer) -> None:
        """What came back."""
        self._line()
        style = "bold green" if answer.status < 400 else "bold red"
        self._wire(f"← {answer.status} {answer.phrase}", style=style)
        for name, value in answer.headers.items():
            if name not in DULL_HEADERS:
                self._wire(f"  {name}: {value}")
        if answer.text:
            self._wire(f"  {answer.text.strip()}")

    def command(self, line: str, output: str) -> None:
        """A command line and what it printed."""
        self._line()
        self._wire(f"$ {line}", style="bold blue")
        for printed in output.strip().splitlines():
            self._wire(f"  {printed}")

    def record(self, line: str) -> None:
        """A line of the audit file, or a part of it."""
        self._wire(f"  {line}", style="magenta")

    def check(self, rule: str, behaved: bool, found: object = "") -> None:
        """Say whether something behaved; what did not is remembered."""
        if behaved:
            self._wire(f"✔ {rule}", style="green")
            return
        self.failures.append(rule)
        self._wire(f"✘ {rule}" + (f" (found: {found})" if found != "" else ""), style="bold red")

    def copyable(self, text: str) -> None:
        """Text to copy: flush left, never wrapped, never shortened."""
        self._console.print(Text(text), soft_wrap=True)

    def _prose(self, text: str) -> None:
        for line in textwrap.wrap(text, min(self._console.width, WIDEST) - 2) or [""]:
            self._line(f"  {line}" if line else "")

    def _wire(self, text: str, *, style: str = "", remark: str = "") -> None:
        line = Text(INDENT + text, style=style)
        if remark:
            line.append(f"   ← {remark}", style="bold yellow")
        self._console.print(line, soft_wrap=True)

    def _line(self, text: str = "", *, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)
