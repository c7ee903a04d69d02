"""What README and docs promise: links lead somewhere, commands exist, examples load, targets can be made."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from gateway.cli import main
from gateway.config_file import load_settings

ROOT = Path(__file__).parents[2]
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")})
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
NO_COMMANDS = {"audit key id"}
"""What looks like one and is none: the label of a derived key."""

LATER: frozenset[str] = frozenset()
"""Commands of the public face (design.md) that later versions bring; a page that shows one has to be about that."""


def test_a_demo_without_its_extra_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the words of docs/demo.md, which work where the reader is; and it is exit 2, not a traceback."""
    monkeypatch.setitem(sys.modules, "gateway.demo.tour", None)
    told = CliRunner().invoke(main, ["demo", "--tour"])
    assert told.exit_code == 2
    how = "pip install '.[demo]'"
    assert how in told.stderr
    assert how in (ROOT / "docs/demo.md").read_text()


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings make, as GitHub makes them."""
    text = FENCE.sub("", page.read_text())
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every link within the project names a file that exists, and a heading of it."""
    broken = []
    for target, anchor in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


def commands(page: Path) -> list[list[str]]:
    """Every `ostiary …` of a page, in code blocks and in the text, as words up to the first pipe or comment."""
    text = page.read_text()
    found = [
        line for kind, block in FENCE.findall(text) for line in block.splitlines() if kind in ("console", "sh", "")
    ]
    found += INLINE.findall(FENCE.sub("", text))
    calls = []
    for line in found:
        match = re.match(r"(?:\$ )?(?:[A-Z_]+=\S+ )*ostiary( .*)?$", line.strip())
        if match:
            words = re.split(r"\s+[#|>&]", match[1] or "")[0].replace("…", "").replace("\\", "")
            calls.append(shlex.split(words))
    return calls


SHOWN = sorted({(page.name, " ".join(words)) for page in PAGES for words in commands(page) if words})
SHOWN = [(page, text) for page, text in SHOWN if text not in NO_COMMANDS]


def resolve(words: list[str]) -> tuple[click.Command, str]:
    """The command that words lead to, through groups, and its name. Raises `LookupError` naming what is not there."""
    command: click.Command = main
    name = []
    for word in words:
        if not isinstance(command, click.Group) or not re.fullmatch(r"[a-z]+", word):
            break
        found = command.get_command(click.Context(command), word)
        name.append(word)
        if found is None:
            raise LookupError(" ".join(name))
        command = found
    return command, " ".join(name)


def test_commands_are_looked_for_where_they_are_shown() -> None:
    """The net catches what the README shows."""
    shown = [text for page, text in SHOWN if page == "README.md"]
    assert any(text.startswith("serve --config") for text in shown)
    assert any(text.startswith("check --config") for text in shown)


@pytest.mark.parametrize(("page", "text"), SHOWN)
def test_a_shown_command_exists_with_its_options(page: str, text: str) -> None:
    """A command that a page shows is one that this version has, and each of its options too."""
    words = [word.split("|")[0] for word in text.split()]
    if any(" ".join(words[:length]) in LATER for length in (1, 2)):
        return
    command, name = resolve(words)
    meant = command.commands.values() if isinstance(command, click.Group) else (command,)
    known = {
        option
        for one in (command, *meant)
        for parameter in one.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    known |= {"--help", "-h", "--version"}
    options = re.findall(r"(?<![\w-])(--?[a-z][a-z-]*)", text)
    assert set(options) <= known, f"{page}: ostiary {name}: {sorted(set(options) - known)}"


def test_later_commands_are_not_there_yet() -> None:
    """What is listed as coming later is taken off that list when it comes."""
    for words in LATER:
        with pytest.raises(LookupError):
            resolve(words.split())


@pytest.mark.parametrize(
    "command",
    ["serve", "check", "init", "demo", "approvals", "audit", "evidence", "pins", "policy", "registry"],
)
def test_help_works(command: str) -> None:
    """`--help` of each command prints its purpose and its options."""
    from click.testing import CliRunner

    done = CliRunner().invoke(main, [command, "--help"])
    assert done.exit_code == 0, done.output
    assert "Usage:" in done.output
    assert "--help" in done.output


def groups(command: click.Group, name: str = "ostiary") -> Iterator[tuple[str, click.Group]]:
    """A group of commands and those in it, with the words that lead there."""
    yield name, command
    for word in command.list_commands(click.Context(command)):
        inner = command.get_command(click.Context(command), word)
        if isinstance(inner, click.Group):
            yield from groups(inner, f"{name} {word}")


@pytest.mark.parametrize(("name", "group"), list(groups(main)))
def test_a_list_of_commands_says_what_each_is_for(name: str, group: click.Group) -> None:
    """On a terminal of 80 columns each has its line, whole: one that ends in dots tells nobody what it does."""
    told = CliRunner().invoke(group, ["--help"], prog_name=name, terminal_width=80).output
    _, _, listed = told.partition("Commands:\n")
    lines = listed.splitlines()
    assert [line.split()[0] for line in lines] == [
        word
        for word in group.list_commands(click.Context(group))
        if not (found := group.get_command(click.Context(group), word)) or not found.hidden
    ]
    assert [line for line in lines if line.endswith("...") or len(line.split()) < 2] == []


def test_the_readmes_configuration_loads(tmp_path: Path) -> None:
    """The YAML example of the README is accepted as it stands."""
    examples = [block for kind, block in FENCE.findall((ROOT / "README.md").read_text()) if kind == "yaml"]
    assert len(examples) == 1
    file = tmp_path / "ostiary.yaml"
    file.write_text(examples[0])
    settings = load_settings(file)
    assert set(yaml.safe_load(examples[0])["servers"]) == set(settings.servers)


def test_the_targets_that_pages_name_can_be_made() -> None:
    """`make X` of README and docs is a target of the Makefile."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = set()
    for page in PAGES:
        text = page.read_text()
        code = [block for _, block in FENCE.findall(text)] + INLINE.findall(FENCE.sub("", text))
        shown |= {name for piece in code for name in re.findall(r"(?:^|\$ )make ([a-z]+)", piece, re.MULTILINE)}
    assert {"demo", "test"} <= shown
    assert shown <= targets
