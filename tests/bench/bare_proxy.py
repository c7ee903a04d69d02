"""A hand-written FastAPI + httpx reverse proxy without any checks: what people build first."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI, Request, Response

UPSTREAM = os.environ.get("BARE_PROXY_UPSTREAM", "")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    limits = httpx.Limits(max_connections=256, max_keepalive_connections=256)
    async with httpx.AsyncClient(limits=limits, timeout=30, trust_env=False) as client:
        app.state.client = client
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/{path:path}")
async def proxy(request: Request) -> Response:
    headers = {
        name: value
        for name, value in request.headers.items()
        if name not in {"host", "authorization", "content-length", "connection"}
    }
    client: httpx.AsyncClient = request.app.state.client
    answer = await client.post(UPSTREAM, content=await request.body(), headers=headers)
    return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))
