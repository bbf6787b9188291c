"""The client's side of a request: its body, within the limit, and whether it is still there."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from eti_rank.errors import InputTooLarge

T = TypeVar("T")


async def read_json_body(request: Request, max_bytes: int) -> bytes:
    """The body; no more than `max_bytes` of it are ever held, whatever its headers say.

    Raises:
        HTTPException: 415, the body is declared as something else than JSON.
        InputTooLarge: the body is above the limit.
        ClientDisconnect: the client went away while sending.
    """
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise HTTPException(415, "send the body as application/json")
    too_large = InputTooLarge(f"the body is above the limit of {max_bytes} bytes")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        if len(body) + len(chunk) > max_bytes:
            raise too_large
        body += chunk
    return bytes(body)


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client goes away; the body has been read.

    Raises:
        ClientDisconnect: the client went away first.
    """
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
