"""A thread with its own event loop, for SGLang's engine to live in.

SGLang binds its tokenizer manager to the loop of the first call and, in the main thread, takes over
SIGTERM and SIGQUIT. In a thread of its own it does neither to us.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines and functions in one other thread; stops with `stop`."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def call(self, function: Callable[[], T]) -> T:
        """Run a blocking function in the thread, outside any coroutine; the thread does nothing else."""
        done: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                done.set_result(function())
            except BaseException as error:  # noqa: BLE001  # handed over to the caller
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return await asyncio.wrap_future(done)

    async def await_(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread; cancelling the caller cancels it there."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    async def cancel_all(self) -> None:
        """Cancel what runs in the thread, and wait until it has ended."""
        await self.await_(_cancel_others())

    def stop(self) -> None:
        """End the thread; returns when it has ended."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=10)
            if not self._thread.is_alive():
                self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
