"""Orders SGLang's waiting queue by expected gain per marginal cost, with ageing (`control.priority`).

Seams: `SchedulePolicy.calc_priority` runs before each prefill batch and may sort the queue in place;
`Scheduler.get_prefill_adder_class` names the class that admits requests to the batch, one after the
other, each with its true cached length; `ScheduleBatch._get_decode_retraction_order` says whose KV cache
goes first when memory runs out.

The gain of a scoring step comes with it. A request that decodes is worth the entropy that its next tokens
are expected to resolve: its own entropy of late, times the tokens that it may still generate (nats, which
is the unit of the wire's gain where the utility is entropy).

Costs are the scheduler's own: uncached tokens after SGLang's prefix match, KV tokens, tokens to decode.
A changed cached length is looked for at the head of the queue only, from where requests are admitted;
looking at thousands in each step would cost more than it orders.

Siblings: of several waiting requests with the same cold prefix one goes ahead, and the others wait for
the next batch, where they find it cached (SGLang's own fcfs would compute it for each of them).
"""

import functools
import operator
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sglang.srt.managers.schedule_policy import AddReqResult, PrefillAdder
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from eti_rank.control import priority
from eti_rank.engine import wire
from eti_rank.runtime import request_state

CALC_PRIORITY = "sglang.srt.managers.schedule_policy.SchedulePolicy.calc_priority"
RETRACTION_ORDER = "sglang.srt.managers.schedule_batch.ScheduleBatch._get_decode_retraction_order"
ADDER_CLASS = "sglang.srt.managers.scheduler.Scheduler.get_prefill_adder_class"
HEAD = 256
"""How many requests at the front of the queue have their cached length looked at again in each step."""
_PLACE, _KEY = "eti_rank_place", "eti_rank_key"
_key = operator.attrgetter(_KEY)
_FAR_S = 3.2e9
"""A century after the start, in seconds: later than every arrival."""


def install(config: wire.PluginConfig) -> None:
    """Register the hooks; SGLang applies them after all plugins are loaded."""
    queue = EntropicQueue(config.scheduling)
    HookRegistry.register(RETRACTION_ORDER, functools.partial(_order_retraction, queue), HookType.AROUND)
    HookRegistry.register(CALC_PRIORITY, functools.partial(_order_queue, queue), HookType.AROUND)
    HookRegistry.register(ADDER_CLASS, _warming, HookType.AFTER)


class Place:
    """What the policy knows of one waiting request; lives on SGLang's request object and dies with it."""

    __slots__ = ("arrived_s", "decode_tokens", "gain", "group", "matched", "prefix_tokens", "tokens")

    def __init__(self, req: Any, now_s: float) -> None:
        state = request_state.of(req)
        told, recent_nats = state.params, state.recent_entropy_nats
        self.arrived_s = min(now_s, told.arrived_s or now_s)
        self.tokens = len(req.origin_input_ids) + len(req.output_ids)
        self.decode_tokens = max((req.sampling_params.max_new_tokens or 0) - len(req.output_ids), 0)
        self.gain = told.expected_gain if recent_nats is None else recent_nats * self.decode_tokens
        self.prefix_tokens = min(told.shared_prefix_tokens, self.tokens)
        self.group = hash(tuple(req.origin_input_ids[: self.prefix_tokens])) if self.prefix_tokens else None
        self.matched = -1


class EntropicQueue:
    """The policy: `min(pi, P) - a * arrival`, highest first.

    The key of `priority.aged` less the term `a * now` that all requests share, so a place is worked out
    once and again only when its cached length changes. Ties keep SGLang's order, that of arrival.
    """

    def __init__(self, config: wire.SchedulingConfig) -> None:
        self._prices = priority.Prices(
            per_uncached_token=config.per_uncached_token,
            per_kv_token=config.per_kv_token,
            per_decode_token=config.per_decode_token,
        )
        self._ageing = priority.Ageing(ceiling=config.ceiling, per_second=config.ageing_per_second)
        self._epoch_s = time.time()

    def sort(self, waiting: list[Any], now_s: float) -> None:
        """Bring the queue into order, in place; what keeps its place costs next to nothing."""
        changed = [self._enter(req, now_s) for req in waiting if getattr(req, _KEY, None) is None]
        for req in waiting[:HEAD]:
            place: Place = getattr(req, _PLACE)
            if place.matched != req.num_matched_prefix_tokens:
                changed.append(req)
        if changed:
            self._rate(changed)
        # Stable: among equals, the order in which SGLang queued them stays.
        waiting.sort(key=_key)

    def _enter(self, req: Any, now_s: float) -> Any:
        self._place_anew(req, now_s)
        request_state.of(req).ran.add(wire.SCHEDULING)
        return req

    def retraction_order(self, running: list[Any], now_s: float) -> list[int]:
        """Indices of running requests, the one to keep longest first.

        Their prompts are computed, so going on costs decoding and the memory that they hold. A request that
        is retracted enters the queue anew, with what it has to compute again as its cost.
        """
        places = [self._place_anew(req, now_s) for req in running]
        for place in places:
            place.matched = place.tokens
        keys = self._keys(places, least_uncached=0)
        return sorted(range(len(running)), key=keys.__getitem__)

    def _place_anew(self, req: Any, now_s: float) -> Place:
        setattr(req, _KEY, None)
        before: Place | None = getattr(req, _PLACE, None)
        place = Place(req, now_s if before is None else before.arrived_s)
        setattr(req, _PLACE, place)
        return place

    def _rate(self, reqs: list[Any]) -> None:
        places: list[Place] = [getattr(req, _PLACE) for req in reqs]
        for req, place in zip(reqs, places, strict=True):
            place.matched = req.num_matched_prefix_tokens
        for req, key in zip(reqs, self._keys(places, least_uncached=1), strict=True):
            setattr(req, _KEY, key)

    def _keys(self, places: list[Place], *, least_uncached: int) -> list[float]:
        """Smaller is sooner."""
        tokens = np.array([place.tokens for place in places], dtype=np.float64)
        cached = np.array([min(place.matched, place.tokens - least_uncached) for place in places])
        decode = np.array([place.decode_tokens for place in places], dtype=np.float64)
        demand = priority.Demand(
            uncached_tokens=tokens - cached, kv_tokens=tokens + decode, decode_tokens=decode
        )
        pi = priority.priority([place.gain for place in places], priority.cost(demand, self._prices))
        arrivals = np.array([place.arrived_s - self._epoch_s for place in places])
        # One `now` for all at all times: only differences of keys matter, and keys grow alike.
        keys = priority.aged(pi, arrivals, self._ageing, now_s=_FAR_S)
        negated: list[float] = (-keys).tolist()
        return negated


def _order_retraction(
    queue: EntropicQueue, _original: Callable[..., list[int]], reqs: list[Any]
) -> list[int]:
    return queue.retraction_order(reqs, time.time())


def _order_queue(
    queue: EntropicQueue,
    original: Callable[..., None],
    policy: Any,
    waiting_queue: list[Any],
    *args: Any,
    **kwargs: Any,
) -> None:
    original(policy, waiting_queue, *args, **kwargs)
    queue.sort(waiting_queue, time.time())


def _warming(adder: type[PrefillAdder], *_args: object) -> type[PrefillAdder]:
    class WarmingAdder(adder):  # type: ignore[misc]
        def add_one_req(self, req: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_held(req, self.can_run_list):
                return AddReqResult.CONTINUE
            return super().add_one_req(req, *args, **kwargs)

    return WarmingAdder


def _is_held(req: Any, admitted: list[Any]) -> bool:
    """Whether a sibling that is already in the batch computes the prefix that `req` still lacks."""
    place: Place | None = getattr(req, _PLACE, None)
    if place is None or place.group is None or req.prefix_len >= place.prefix_tokens - 1:
        return False
    return any(
        other is not req and getattr(getattr(other, _PLACE, None), "group", None) == place.group
        for other in admitted
    )
