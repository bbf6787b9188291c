"""Many connections to one worker, as HTTP clients with a few each.

For every request that begins or ends, httpcore looks at every connection of its pool. With 64 steps open,
one pool costs this process 9 to 13 ms per step, pools of 8 cost 2 to 3 (two cores, tiny model). And a
request that is cancelled in the wrong moment leaves a connection behind that its pool counts for ever
(httpcore 1.0.9): so a client that saw a cancellation takes no more requests and is closed with its last.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import httpx

CONNECTIONS: Final = 8
"""Of one client."""


class _Lane:
    """One client and the number of its requests."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.requests = 0
        self.retired = False


class Lanes:
    """Clients of one worker; the first ones are preferred, so that their connections stay warm.

    Args:
        make: a new client with at most `CONNECTIONS` connections.
        max_connections: over all clients, rounded up to whole ones; further requests wait.
    """

    def __init__(self, make: Callable[[], httpx.AsyncClient], max_connections: int) -> None:
        self._make = make
        self._max_lanes = -(-max_connections // CONNECTIONS)
        self._lanes: list[_Lane] = []

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client for one request, which is to read its answer to the end."""
        lane = self._choose()
        lane.requests += 1
        try:
            yield lane.client
        except asyncio.CancelledError:
            if not lane.retired:
                lane.retired = True
                self._lanes.remove(lane)
            raise
        finally:
            lane.requests -= 1
            if lane.retired and not lane.requests:
                await lane.client.aclose()

    async def aclose(self) -> None:
        """Close all connections; requests should have ended."""
        for lane in self._lanes:
            await lane.client.aclose()

    def _choose(self) -> _Lane:
        for lane in self._lanes:
            if lane.requests < CONNECTIONS:
                return lane
        if len(self._lanes) < self._max_lanes:
            self._lanes.append(_Lane(self._make()))
            return self._lanes[-1]
        return min(self._lanes, key=lambda lane: lane.requests)
