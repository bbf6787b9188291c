"""How far leaving out blocks moves the next-token distribution; transformers, without SGLang.

A context is prefilled densely and continued greedily. Then the same tokens are decoded again while the
attention of each sees some blocks of the prompt only, as the runtime does it: one list for all layers and
heads, chosen from the attention of the prompt's last window; generated tokens are always seen. All
steps of one continuation are one forward pass under a mask.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eti_rank.control import pruning

WINDOW, CHUNK = 32, 512
FIRST_TOKENS, LAST_TOKENS = 16, 64
NO_LIMIT = 0.999


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A context after its dense prefill and greedy continuation."""

    context: tuple[int, ...]
    cache: Any
    """Of the context alone."""
    attention: np.ndarray
    """[layers, heads, tokens]: of the last window, averaged over its positions."""
    log_probabilities: np.ndarray
    """[tokens], of each token of the context; 0 for the first."""
    answer: tuple[int, ...]
    log_p: Tensor
    """[steps, V], float64: of the tokens that follow answer[0], answer[:2], ..."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Dense against pruned, over the steps of one continuation."""

    operations: float
    """Of attention at the middle step, as a share of the dense ones: tokens seen."""
    dropped_mass: float
    kl_nats: float
    """Mean over the steps."""
    kl_median_nats: float
    kl_p95_nats: float
    agreement: float
    """Share of steps with the same most probable token."""
    first_entropy_nats: float


def load(checkpoint: str) -> Any:
    """The model in float32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


@torch.inference_mode()
def dense(model: Any, context: Sequence[int], steps: int) -> Dense:
    """Prefill and continue."""
    from transformers import DynamicCache

    ids, cache = torch.tensor([list(context)]), DynamicCache(config=model.config)
    surprise = [torch.zeros(1)]
    body, end = ids[:, :-WINDOW], ids.shape[1]
    last: Any = None
    model.set_attn_implementation("sdpa")
    for begin in range(0, body.shape[1], CHUNK):
        part = body[:, begin : begin + CHUNK]
        last = model(part, past_key_values=cache, use_cache=True)
        following = ids[0, begin + 1 : begin + part.shape[1] + 1]
        surprise.append(last.logits[0].log_softmax(-1).gather(1, following[:, None])[:, 0])
    model.set_attn_implementation("eager")
    last = model(ids[:, -WINDOW:], past_key_values=cache, use_cache=True, output_attentions=True)
    model.set_attn_implementation("sdpa")
    within = last.logits[0, :-1].log_softmax(-1).gather(1, ids[0, end - WINDOW + 1 :, None])[:, 0]
    attention = torch.stack([layer[0].mean(dim=1) for layer in last.attentions]).double()
    answer, rows = [int(last.logits[0, -1].argmax())], []
    for _ in range(steps):
        logits = model(torch.tensor([answer[-1:]]), past_key_values=cache, use_cache=True).logits[0, -1]
        rows.append(logits.double().log_softmax(-1))
        answer.append(int(logits.argmax()))
    cache.crop(end - cache.get_seq_length())
    return Dense(
        tuple(context),
        cache,
        attention.numpy(),
        torch.cat([*surprise, within]).double().numpy(),
        tuple(answer),
        torch.stack(rows),
    )


@torch.inference_mode()
def drift(model: Any, base: Dense, seen: np.ndarray, dropped_mass: float) -> Drift:
    """Decode the dense answer again while layer l sees the tokens seen[l] of the context."""
    steps, tokens = len(base.log_p), len(base.context)
    by_layer = [_mask(torch.from_numpy(row), steps) for row in seen]
    with _seeing(model, by_layer):
        ids = torch.tensor([base.answer[:steps]])
        logits = model(ids, past_key_values=base.cache, use_cache=True).logits[0]
    base.cache.crop(-steps)
    log_q = logits.double().log_softmax(-1)
    kl = (base.log_p.exp() * (base.log_p - log_q)).sum(-1)
    middle = steps / 2
    return Drift(
        operations=float((seen.sum(axis=1).mean() + middle) / (tokens + middle)),
        dropped_mass=dropped_mass,
        kl_nats=float(kl.mean()),
        kl_median_nats=float(kl.median()),
        kl_p95_nats=float(kl.quantile(0.95)),
        agreement=float((log_q.argmax(-1) == base.log_p.argmax(-1)).double().mean()),
        first_entropy_nats=float(-(log_q[0].exp() * log_q[0]).sum()),
    )


def _mask(seen: Tensor, steps: int) -> Tensor:
    """[1, 1, steps, tokens + steps], to be added to the scores: the prompt as given, then causal."""
    visible = torch.cat([seen.expand(steps, -1), torch.ones(steps, steps, dtype=torch.bool).tril()], dim=1)
    return torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))[None, None]


@contextmanager
def _seeing(model: Any, by_layer: list[Tensor]) -> Iterator[None]:
    def put(mask: Tensor) -> Callable[..., Any]:
        return lambda _module, args, kwargs: (args, {**kwargs, "attention_mask": mask})

    hooks = [
        layer.self_attn.register_forward_pre_hook(put(mask), with_kwargs=True)
        for layer, mask in zip(model.model.layers, by_layer, strict=True)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def surprisal(base: Dense, source: str) -> np.ndarray | None:
    """What attention is weighted by."""
    if source == "unigram":
        _, place, counts = np.unique(base.context, return_inverse=True, return_counts=True)
        return np.asarray(-np.log(counts[place] / len(base.context)))
    return np.maximum(-base.log_probabilities, 0.0) if source == "model" else None


def keep(
    attention: np.ndarray,
    weights: np.ndarray | None,
    block_tokens: int,
    min_share: float,
    max_dropped_mass: float = NO_LIMIT,
) -> tuple[np.ndarray, float]:
    """Tokens [tokens] that one list sees, and the mass that goes; attention is [tokens], total 1."""
    measured = pruning.block_contribution(
        attention[None], None if weights is None else weights[None], block_tokens=block_tokens
    )
    blocks = measured.mass.shape[1]
    guards = pruning.Guards(
        first_blocks=-(-FIRST_TOKENS // block_tokens),
        last_blocks=-(-LAST_TOKENS // block_tokens),
        min_blocks=round(min_share * blocks),
        max_dropped_mass=max_dropped_mass,
    )
    ends_inside = np.arange(blocks) == len(attention) // block_tokens
    kept = pruning.keep_blocks(measured, 1e9, guards, protected=ends_inside)
    return np.repeat(kept.mask[0], block_tokens)[: len(attention)], float(kept.dropped_mass[0])


def select(
    base: Dense, source: str, share: float, block_tokens: int, random: np.random.Generator
) -> tuple[np.ndarray, float]:
    """Tokens [layers, tokens] that are seen when a share of the blocks is kept, and the mass that goes.

    Sources: those of the wire (`none`, `unigram`, `model`); `per_layer`, a list for each layer from its own
    attention; `recent`, the end of the context; `random`.
    """
    layers, _, tokens = base.attention.shape
    mean = base.attention.mean(axis=(0, 1))
    if source == "per_layer":
        found = [keep(row, None, block_tokens, share) for row in base.attention.mean(axis=1)]
        return np.stack([seen for seen, _ in found]), float(np.mean([mass for _, mass in found]))
    if source in {"recent", "random"}:
        blocks = -(-tokens // block_tokens)
        score = np.arange(1.0, blocks + 1) if source == "recent" else random.random(blocks)
        stand_in = np.repeat(score / block_tokens, block_tokens)[:tokens]
        seen, _ = keep(stand_in / stand_in.sum(), None, block_tokens, share)
        mass = float(mean[~seen].sum())
    else:
        seen, mass = keep(mean, surprisal(base, source), block_tokens, share)
    return np.tile(seen, (layers, 1)), mass
