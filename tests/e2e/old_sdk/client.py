"""The official Python client of the revisions before 2026-07-28 (SDK 1.x), unmodified; run by a Python that has it.

Plan on the first line of standard input, `{"url", "token", "steps": [...]}` as in `typescript/older.mjs`; one JSON
document per step on a line of its own. After `["wait"]` it goes on when a line comes in.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable
from typing import Any

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client


async def attempt(asking: Awaitable[Any]) -> dict[str, Any]:
    """A step's result, or the error that an application would see."""
    try:
        async with asyncio.timeout(20):
            result = await asking
    except Exception as error:  # noqa: BLE001 - whatever an application would see
        return {"error": {"code": getattr(getattr(error, "error", None), "code", None), "message": str(error)}}
    told = result.model_dump(mode="json", by_alias=True, exclude_none=True) if hasattr(result, "model_dump") else {}
    return {"result": told}


def say(document: dict[str, Any]) -> None:
    """A line for whoever started this."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


async def main() -> None:
    """Begin, do every step, end."""
    plan = json.loads(sys.stdin.readline())
    head = {"Authorization": f"Bearer {plan['token']}"}
    async with (
        streamablehttp_client(plan["url"], headers=head) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        steps: dict[str, Any] = {
            "ping": session.send_ping,
            "tools": session.list_tools,
            "call": session.call_tool,
            "read": session.read_resource,
            "prompt": session.get_prompt,
            "roots": session.send_roots_list_changed,
            "end": lambda: asyncio.sleep(0),
            "wait": lambda: asyncio.to_thread(sys.stdin.readline),
        }
        say(await attempt(session.initialize()))
        for name, *rest in plan["steps"]:
            say(await attempt(steps[name](*rest)))


asyncio.run(main())
