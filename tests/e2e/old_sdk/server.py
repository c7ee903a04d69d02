"""An MCP server on the official Python SDK's 1.x line: `server.py PORT FILE [stateless]`; FILE gets a line a run."""

import sys
from pathlib import Path
from weakref import WeakKeyDictionary

from mcp.server.fastmcp import Context, FastMCP
from pydantic import BaseModel

PORT, RUNS = int(sys.argv[1]), Path(sys.argv[2])
server = FastMCP("old", port=PORT, stateless_http="stateless" in sys.argv)
notes: WeakKeyDictionary = WeakKeyDictionary()


class Answer(BaseModel):
    """What a person would be asked for."""

    yes: bool


@server.tool()
def run(mark: str) -> str:
    """Leave a mark."""
    with RUNS.open("a") as file:
        file.write(f"{mark}\n")
    return f"ran {mark}"


@server.tool()
async def steps(ctx: Context, count: int) -> str:
    """Tell how far it is."""
    for number in range(count):
        await ctx.report_progress(number + 1, count)
    return "done"


@server.tool()
async def remember(ctx: Context, text: str) -> str:
    """Keep a text in the session -> what was kept there before."""
    before = notes.get(ctx.session, "")
    notes[ctx.session] = text
    return str(before)


@server.tool()
async def ask(ctx: Context) -> str:
    """Ask the client's user, whatever the client can do."""
    return str(await ctx.elicit("Well?", schema=Answer))


@server.resource("note://one")
def one() -> str:
    """A resource."""
    return "the first"


server.run("streamable-http")
