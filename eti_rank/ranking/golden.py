"""Proof that model, template and runtime fit together: known pairs get their known scores."""

from typing import TYPE_CHECKING

from eti_rank.engine.protocol import Engine, ScoringStep, score_all
from eti_rank.errors import ProfileError
from eti_rank.models.prompt import PromptFailure
from eti_rank.ranking.steps import readout

if TYPE_CHECKING:
    from eti_rank.models.reranker_model import RerankModel


async def check_golden_scores(engine: Engine, model: "RerankModel") -> None:
    """Score the profile's golden pairs and compare.

    Raises:
        ProfileError: a score differs, or a pair cannot be rendered.
        EngineError: the engine cannot score them.
    """
    steps = []
    for number, (query, document) in enumerate(model.golden_pairs):
        (prompt,) = model.renderer.render(query, [document])
        if isinstance(prompt, PromptFailure):
            raise ProfileError(f"golden pair {number} of {model.profile.name}: {prompt.message}")
        steps.append(
            ScoringStep(
                step_id=f"golden:{number}", token_ids=prompt.token_ids, readout=readout(model, prompt)
            )
        )
    evidence = await score_all(engine, steps)
    model.check_golden([model.raw_score(one.logprobs) for one in evidence], dtype=engine.description.dtype)
