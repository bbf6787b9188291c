"""How much of a request may be submitted under its budget of tokens."""

from collections.abc import Sequence

from eti_rank.types import Budget


class Allowance:
    """What one request has spent, has reserved for open steps, and may still submit.

    `Budget.max_tokens` is never exceeded: a step is admitted only if its whole prompt would fit,
    since nobody knows before it runs how much of it is cached. `Budget.fraction` is measured in
    planned tokens instead (each prompt less the prefix that the first one leaves in the cache), so
    that the same request stops at the same place whatever the load, and 1.0 stops nowhere.

    Args:
        budget: the limits; `max_s` is not looked at.
        lengths_tokens: prompt tokens of the steps, in the order in which they ask.
        shared_prefix_tokens: prefix common to all prompts; 0 without a prefix cache.
    """

    def __init__(self, budget: Budget, lengths_tokens: Sequence[int], shared_prefix_tokens: int) -> None:
        self._max_tokens = budget.max_tokens
        self._uncached_tokens = 0
        self._reserved_tokens = 0
        planned = [length - shared_prefix_tokens for length in lengths_tokens]
        planned[:1] = lengths_tokens[:1]
        self._steps_in_fraction = _steps_within(planned, budget.fraction)
        self._submitted = 0

    @property
    def used_up(self) -> bool:
        """Whether no further step may be submitted, whatever the open ones turn out to cost."""
        return self._submitted >= self._steps_in_fraction

    def fits(self, prompt_tokens: int) -> bool:
        """Whether the next step may be submitted now."""
        if self._max_tokens is None:
            return not self.used_up
        worst_case = self._uncached_tokens + self._reserved_tokens + prompt_tokens
        return not self.used_up and worst_case <= self._max_tokens

    def reserve(self, prompt_tokens: int) -> None:
        """Count a submitted step at its worst case."""
        self._submitted += 1
        self._reserved_tokens += prompt_tokens

    def settle(self, prompt_tokens: int, uncached_tokens: int) -> None:
        """Replace a step's worst case by what it cost."""
        self._reserved_tokens -= prompt_tokens
        self._uncached_tokens += uncached_tokens


def _steps_within(planned_tokens: Sequence[int], fraction: float | None) -> int:
    """How many steps, in order, fit into a share of the whole plan."""
    if fraction is None:
        return len(planned_tokens)
    allowed = fraction * sum(planned_tokens)
    total = 0
    for count, tokens in enumerate(planned_tokens):
        total += tokens
        if total > allowed:
            return count
    return len(planned_tokens)
