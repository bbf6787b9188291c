"""The workers as a group: who takes steps, who is looked at again, and when all are gone.

A worker is READY; it becomes SUSPECT when a step meets a fault of it, gets no new steps and is examined
at once; it is OUT when an examination fails, and is examined again until one passes. One that does not
even answer loses its open steps to the others; one that answers (it drains, say) may finish them.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from enum import StrEnum
from typing import Any, Final

from eti_rank.engine.protocol import GenerationStep, ScoringStep
from eti_rank.engine.sglang_remote.choice import choose
from eti_rank.engine.sglang_remote.client import WorkerClient
from eti_rank.engine.sglang_remote.faults import WorkerFault, WorkerLost
from eti_rank.errors import EtiRankError
from eti_rank.settings import RemoteSettings

logger = logging.getLogger(__name__)

RETURN_INTERVAL_S: Final = 0.5
"""A worker that is out is looked at no less often, so that a short break stays short."""


class MemberState(StrEnum):
    """Where a worker stands."""

    READY = "ready"
    SUSPECT = "suspect"
    OUT = "out"


class Member:
    """One worker and what is open on it."""

    def __init__(self, client: WorkerClient) -> None:
        self.client = client
        self.state = MemberState.OUT
        self.open: set[asyncio.Task[Any]] = set()
        self.answered_s = 0.0
        """When it last answered a step, by `time.monotonic`."""
        self.due = asyncio.Event()
        """Set when it is to be looked at before its time."""

    @property
    def url(self) -> str:
        """Its base URL, which is its name."""
        return self.client.url

    @contextlib.contextmanager
    def holding(self, task: "asyncio.Task[Any]") -> Iterator[None]:
        """Count a request as open on this worker."""
        self.open.add(task)
        try:
            yield
        finally:
            self.open.discard(task)


class Fleet:
    """The workers of one engine.

    Args:
        members: one per worker; all out.
        examine: raises unless a worker is fit to take steps.
        on_lost: called when all workers have been out for `down_after_s`.
        settings: intervals and bounds.
    """

    def __init__(
        self,
        members: list[Member],
        examine: Callable[[Member], Awaitable[None]],
        on_lost: Callable[[], None],
        settings: RemoteSettings,
    ) -> None:
        self.members = members
        self._examine = examine
        self._on_lost = on_lost
        self._settings = settings
        self._watches: list[asyncio.Task[None]] = []
        self._some_ready = asyncio.Event()
        self._loss: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Start looking after the workers, in the background."""
        for member in self.members:
            task = asyncio.create_task(self._watch(member), name=f"watch over worker {member.url}")
            task.add_done_callback(_report_failure)
            self._watches.append(task)

    async def close(self) -> None:
        """Stop looking after the workers, and close all connections."""
        if self._loss is not None:
            self._loss.cancel()
        for watch in self._watches:
            watch.cancel()
        if self._watches:
            await asyncio.wait(self._watches)
        for member in self.members:
            await member.client.close()

    async def pick(self, step: ScoringStep | GenerationStep, avoid: Member | None) -> Member:
        """The worker for a step; waits while none is ready.

        Args:
            step: says which of its tokens are shared.
            avoid: not this one, if there is another.
        """
        await self._some_ready.wait()
        ready = {member.url: member for member in self.members if member.state is MemberState.READY}
        if avoid is not None and len(ready) > 1:
            ready.pop(avoid.url, None)
        open_steps = {url: len(member.open) for url, member in ready.items()}
        return ready[choose(step, open_steps, self._settings.load_bound)]

    def suspect(self, member: Member, fault: WorkerFault) -> None:
        """A step met a fault of a worker: look at it before it gets another."""
        if member.state is MemberState.READY:
            logger.warning("worker %s is suspect: %s", member.url, fault)
            self._become(member, MemberState.SUSPECT)
            member.due.set()

    def welcome(self, member: Member) -> None:
        """A worker passed its examination."""
        if member.state is not MemberState.READY:
            logger.info("worker %s is ready", member.url)
            self._become(member, MemberState.READY)

    def drop(self, member: Member, fault: EtiRankError) -> None:
        """A worker failed its examination; if it does not answer at all, its open steps move on."""
        if member.state is not MemberState.OUT:
            logger.error("worker %s is out: %s", member.url, fault)
            self._become(member, MemberState.OUT)
        if isinstance(fault, WorkerLost):
            for task in list(member.open):
                task.cancel()

    async def _watch(self, member: Member) -> None:
        while True:
            await self._until_due(member)
            began_s = time.monotonic()
            try:
                if member.state is MemberState.READY and member.client.behind is None:
                    await member.client.check_health()
                else:  # of a router always: workers come and go behind it
                    await self._examine(member)
                    self.welcome(member)
            except WorkerLost as fault:
                # Silent to us, but at work: a long batch may keep it from answering in time.
                if member.answered_s < began_s:
                    self.drop(member, fault)
            except EtiRankError as fault:
                self.drop(member, fault)

    async def _until_due(self, member: Member) -> None:
        interval_s = self._settings.health_interval_s
        if member.state is MemberState.OUT:
            interval_s = min(interval_s, RETURN_INTERVAL_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(interval_s):
                await member.due.wait()
        member.due.clear()

    def _become(self, member: Member, state: MemberState) -> None:
        member.state = state
        states = {each.state for each in self.members}
        if MemberState.READY in states:
            self._some_ready.set()
        else:
            self._some_ready.clear()
        if states != {MemberState.OUT}:
            if self._loss is not None:
                self._loss.cancel()
                self._loss = None
        elif self._loss is None:
            self._loss = asyncio.get_running_loop().call_later(self._settings.down_after_s, self._on_lost)


def _report_failure(watch: "asyncio.Task[None]") -> None:
    """Keeps an error outside our tree from vanishing with its task."""
    if not watch.cancelled() and (unforeseen := watch.exception()):
        logger.error("%s failed", watch.get_name(), exc_info=unforeseen)
