"""Which worker takes a step: the one likely to hold its prefix, unless that one is too busy.

Rendezvous hashing (Thaler and Ravishankar 1998) gives every prefix its own order of the workers, in
which a worker that goes or comes changes nothing about the others. Bounded loads (Mirrokni, Thorup and
Zadimoghaddam, arXiv 1608.01350): a worker takes no more than its share of all open steps times a bound.
"""

import hashlib
import math
from array import array
from collections.abc import Mapping
from typing import Final

from eti_rank.engine.protocol import GenerationStep, ScoringStep

UNSHARED_KEY_TOKENS: Final = 64
"""Leading tokens by which a step of which no prefix is expected to be shared goes among idle equals."""


def choose(step: ScoringStep | GenerationStep, open_steps: Mapping[str, int], load_bound: float) -> str:
    """The name of the worker for a step.

    A shared prefix goes to its first worker in rendezvous order whose open steps, with this one, stay
    within ``ceil(load_bound * average)``. A step without one goes where the fewest are open.

    Args:
        step: `shared_prefix_tokens` says how much of it other steps share.
        open_steps: how many steps each worker has open; not empty.
        load_bound: above 1.
    """
    order = rendezvous(step.token_ids[: step.shared_prefix_tokens or UNSHARED_KEY_TOKENS], list(open_steps))
    if not step.shared_prefix_tokens:
        return min(order, key=lambda name: open_steps[name])
    limit = math.ceil(load_bound * (sum(open_steps.values()) + 1) / len(open_steps))
    return next(name for name in order if open_steps[name] < limit)


def rendezvous(token_ids: tuple[int, ...], names: list[str]) -> list[str]:
    """The names in the order that belongs to these tokens, the same in every process."""
    key = hashlib.blake2b(array("q", token_ids).tobytes(), digest_size=16).digest()
    return sorted(names, key=lambda name: hashlib.blake2b(name.encode(), key=key, digest_size=8).digest())
