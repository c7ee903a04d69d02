"""`ostiary registry publish`: validated first, then sent once; by a token, or by the key of a domain."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import click

from gateway.contract.differences import lines, visible
from gateway.registry.asking import RegistryRefused, is_bearer
from gateway.registry.client import RegistryClient
from gateway.registry.flaws import usable
from gateway.registry.publishing import NoKey, Outcome, prove
from gateway.registry.publishing import publish as send
from gateway.registry.record import read_text
from gateway.registry.telling import (
    NO,
    NOT_ASKED,
    door_of,
    end,
    flaw_lines,
    flaws_of,
    json_option,
    private_option,
    publisher_option,
    read_file,
    run,
)

TOKEN = "OSTIARY_REGISTRY_TOKEN"  # noqa: S105 - a variable's name
_SAID = {
    "published": "published",
    "unchanged": "is published already, and the same: nothing was sent",
    "would_publish": "would be published: nothing was sent",
    "differs": "is published already with other contents: publish it as a new version",
    "deleted": "was published and deleted: publish it as a new version",
}


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--url", default="", help="The registry's URL. Default: registry.url of --config.")
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="The gateway's configuration.")
@publisher_option
@private_option
@click.option("--login", type=click.Choice(["http", "dns"]), help="Prove --domain by its key instead of a token.")
@click.option("--domain", default="", help="The domain that --login proves.")
@click.option("--key", type=click.Path(path_type=Path, dir_okay=False), help="Its private key, in PEM.")
@click.option("--dry-run", "dry", is_flag=True, help="Validate and compare; send nothing.")
@json_option
@click.pass_context
def publish(  # noqa: PLR0917 - one a parameter
    ctx: click.Context,
    file: Path,
    url: str,
    config: Path | None,
    publisher: str,
    private: bool,
    login: str | None,
    domain: str,
    key: Path | None,
    dry: bool,
    as_json: bool,
) -> None:
    """Publish a server.json FILE. The token is read from OSTIARY_REGISTRY_TOKEN, unless --login proves a domain."""
    if (login is None) != (key is None) or (login is None) != (not domain):
        raise click.UsageError("--login, --domain and --key go together")
    text = read_file(file, as_json)

    async def ask() -> Outcome:
        chosen, whose, near, reading = url, publisher, private, ""
        if config is not None:
            async with door_of(ctx).open(config, False) as room:
                if room.client is not None and not chosen:
                    async with room.client() as client:
                        chosen, reading = client.url, client.token
                whose, near = whose or room.shelf.publisher, near or room.shelf.private
        if not chosen:
            raise click.UsageError("--url, or --config with registry.url, says where the registry is")
        flaws = flaws_of(text, domain or whose, as_json, private=near, exact=login == "http")
        if not usable(flaws):
            if as_json:
                click.echo(json.dumps({"result": "invalid", "flaws": [one.document() for one in flaws]}, indent=2))
            else:
                click.echo("\n".join(flaw_lines(file, flaws)))
            sys.exit(NO)
        async with RegistryClient(chosen, reading) as client:
            if not dry:
                client.token = await _token(client, login, domain, key, as_json)
            return await send(client, read_text(text), dry=dry)

    outcome = run(lambda: _refusals(ask, as_json), as_json)
    if as_json:
        found = [{"path": one.path, "published": one.before, "yours": one.after} for one in outcome.found]
        click.echo(json.dumps({"result": outcome.result, "differences": found}, indent=2))
    else:
        document = read_text(text)
        click.echo(f"{visible(document['name'])}@{visible(document['version'])} {_SAID[outcome.result]}")
        for one in outcome.found:
            click.echo("\n".join(f"    {line}" for line in lines(one)))
    sys.exit(0 if outcome.done else NO)


async def _refusals(ask: Callable[[], Awaitable[Outcome]], as_json: bool) -> Outcome:
    """Ask; a registry that says no ends the program with 1."""
    try:
        return await ask()
    except RegistryRefused as refused:
        end("refused", f"the registry {refused}", NO, as_json)


async def _token(client: RegistryClient, login: str | None, domain: str, key: Path | None, as_json: bool) -> str:
    """The token of the environment, or the one that the registry gives for a proof. Ends the program without one."""
    if login is None or key is None:
        token = os.environ.get(TOKEN, "")
        if not is_bearer(token):
            end("token", f"{TOKEN} holds no bearer token, and there is no --login", NOT_ASKED, as_json)
        return token
    try:
        proof = prove(domain, await asyncio.to_thread(key.read_bytes))
    except OSError as error:
        end("key", f"{key}: {error.strerror}", NOT_ASKED, as_json)
    except NoKey as error:
        end("key", f"{key}: {error}", NOT_ASKED, as_json)
    return await client.exchange(login, proof)
