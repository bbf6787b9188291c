"""Many connections to one worker, in small pools.

For every request that begins or ends, httpcore looks at every connection of its pool. With 64 steps open,
one pool costs this process 9 to 13 ms per step, pools of 8 cost 3 (two cores, tiny model).
"""

import ssl
from typing import Final

import httpx
from typing_extensions import override

CONNECTIONS: Final = 8
"""Of one pool."""


class Lanes(httpx.AsyncBaseTransport):
    """A transport that adds a pool when all are busy, and prefers the first ones, which stay warm.

    Args:
        max_connections: over all pools, rounded up to whole ones; further requests wait.
        keepalive_s: how long an idle connection is kept.
        verify: for ``https``; one for many transports, because it takes long to make.
    """

    def __init__(self, max_connections: int, keepalive_s: float, verify: ssl.SSLContext) -> None:
        self._max_pools = -(-max_connections // CONNECTIONS)
        self._limits = httpx.Limits(
            max_connections=min(CONNECTIONS, max_connections), keepalive_expiry=keepalive_s
        )
        self._verify = verify
        self._pools: list[httpx.AsyncHTTPTransport] = []
        self._open: list[int] = []
        """Requests under way in each pool."""

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        number = self._choose()
        self._open[number] += 1
        try:
            return await self._pools[number].handle_async_request(request)
        finally:
            self._open[number] -= 1

    @override
    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.aclose()

    def _choose(self) -> int:
        for number, count in enumerate(self._open):
            if count < CONNECTIONS:
                return number
        if len(self._pools) < self._max_pools:
            self._pools.append(httpx.AsyncHTTPTransport(verify=self._verify, limits=self._limits))
            self._open.append(0)
            return len(self._pools) - 1
        return min(range(len(self._open)), key=self._open.__getitem__)
