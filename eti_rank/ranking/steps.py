"""Runs the scoring steps of one request: how many at once, which first, and when to stop."""

import asyncio
import itertools
import time
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Final

from eti_rank.engine.protocol import Engine, Labels, Likelihood, ScoringStep
from eti_rank.errors import UnsupportedRequest
from eti_rank.models.prompt import Prompt
from eti_rank.ranking.budget import Allowance
from eti_rank.ranking.outcome import Outcome, failed, scored
from eti_rank.types import Budget, ScoreType, StoppedBy

if TYPE_CHECKING:
    from eti_rank.models.reranker_model import RerankModel

WARM_PREFIX_TOKENS: Final = 32
"""Shortest shared prefix for which a request's first step goes alone, so that the others find it cached."""


class StepRunner:
    """Runs steps of many requests on one engine through one window of open steps.

    Each request waits for one place of the window at a time, so places go around the requests
    however many documents each has.

    Args:
        engine: runs the steps.
        model: says what to read out and turns it into scores.
        max_in_flight: steps open in the engine at once, over all requests.
        prefix_cache: whether the engine caches prefixes.
    """

    def __init__(
        self, engine: Engine, model: "RerankModel", *, max_in_flight: int, prefix_cache: bool
    ) -> None:
        self._engine = engine
        self._model = model
        self._places = asyncio.Semaphore(max_in_flight)
        self._prefix_cache = prefix_cache
        self._serials = itertools.count()

    async def run(
        self,
        request_id: str,
        prompts: Mapping[int, Prompt],
        budget: Budget,
        outcomes: MutableMapping[int, Outcome],
    ) -> StoppedBy:
        """Run one step per prompt, in order, as far as the budget of tokens goes.

        Args:
            request_id: name for the steps; it need not be unique.
            prompts: by document index.
            budget: `max_tokens` and `fraction` count; the caller watches the time.
            outcomes: by document index; written as steps return, so it is valid at any moment.

        Raises:
            EngineUnavailable: the engine is or went down; the other steps are cancelled.
        """
        shared = self._model.shared_prefix_tokens(list(prompts.values())) if self._prefix_cache else 0
        allowance = Allowance(budget, [len(prompt.token_ids) for prompt in prompts.values()], shared)
        steps = self._steps(request_id, prompts, shared)
        open_tasks: set[asyncio.Task[None]] = set()
        try:
            async with asyncio.TaskGroup() as group:
                for position, (index, step) in enumerate(steps):
                    if not await _wait_until_it_fits(step, allowance, open_tasks):
                        return StoppedBy.BUDGET
                    await self._places.acquire()
                    allowance.reserve(len(step.token_ids))
                    task = group.create_task(self._run_one(step, index, prompts, allowance, outcomes))
                    open_tasks.add(task)
                    task.add_done_callback(open_tasks.discard)
                    task.add_done_callback(lambda _: self._places.release())
                    if position == 0 and shared >= WARM_PREFIX_TOKENS:
                        await asyncio.wait({task})
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return StoppedBy.COMPLETE

    def _steps(
        self, request_id: str, prompts: Mapping[int, Prompt], shared_tokens: int
    ) -> Iterator[tuple[int, ScoringStep]]:
        serial = next(self._serials)
        arrived_s = time.time()
        for index, prompt in prompts.items():
            yield (
                index,
                ScoringStep(
                    step_id=f"{request_id}:{serial}:{index}",
                    token_ids=prompt.token_ids,
                    readout=readout(self._model, prompt),
                    arrived_s=arrived_s,
                    # A prompt that begins with the document shares it with other queries.
                    shared_prefix_tokens=(
                        prompt.likelihood_start
                        if self._model.score_type is ScoreType.LIKELIHOOD
                        else shared_tokens
                    ),
                ),
            )

    async def _run_one(
        self,
        step: ScoringStep,
        index: int,
        prompts: Mapping[int, Prompt],
        allowance: Allowance,
        outcomes: MutableMapping[int, Outcome],
    ) -> None:
        try:
            evidence = await self._engine.score(step)
        except UnsupportedRequest as refusal:
            outcomes[index] = failed(str(refusal))
            allowance.settle(len(step.token_ids), uncached_tokens=0)
            return
        outcomes[index] = scored(self._model, prompts[index], evidence)
        allowance.settle(len(step.token_ids), evidence.prompt_tokens - evidence.cached_tokens)


def readout(model: "RerankModel", prompt: Prompt) -> Labels | Likelihood:
    """What the model's score is read from."""
    if model.score_type is ScoreType.LABEL:
        return Labels(model.label_token_ids)
    return Likelihood(prompt.likelihood_start)


async def _wait_until_it_fits(
    step: ScoringStep, allowance: Allowance, open_tasks: set[asyncio.Task[None]]
) -> bool:
    """Let open steps return what they reserved but did not use; False if even that is not enough."""
    while not allowance.fits(len(step.token_ids)):
        if allowance.used_up or not open_tasks:
            return False
        await asyncio.wait(open_tasks, return_when=asyncio.FIRST_COMPLETED)
    return True
