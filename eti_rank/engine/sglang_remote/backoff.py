"""How long to wait before each attempt of a step."""

import random
from collections.abc import Callable, Iterator


def pauses(
    attempts: int, first_s: float, longest_s: float, chance: Callable[[], float] = random.random
) -> Iterator[float]:
    """Seconds before each attempt: none, then doubling up to `longest_s`, less up to half by chance.

    The chance keeps steps that failed together from coming back together.

    Args:
        attempts: how many; at least 1.
        first_s: full wait before the second attempt.
        longest_s: no wait is longer.
        chance: a number in [0, 1).
    """
    yield 0.0
    for retry in range(attempts - 1):
        yield min(longest_s, first_s * 2**retry) * (1 - chance() / 2)
