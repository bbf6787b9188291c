"""Golden scores of a profile by a plain transformers forward pass in float32, as TOML to paste.

python -m eval.golden --profile qwen3-reranker-0.6b [--path FOLDER]
"""

import argparse
import json

from eti_rank.models.prompt import Prompt
from eti_rank.models.reranker_model import RerankModel, prepare_model
from eti_rank.settings import ModelSettings

TIDES = "What causes the tides of the ocean?"
PAIRS = (
    (
        TIDES,
        "The gravitational pull of the Moon, and to a lesser degree of the Sun, raises and lowers the level "
        "of the sea twice a day.",
    ),
    (
        TIDES,
        "A tide table lists the opening hours of the harbour's museum and the price of its boat trips.",
    ),
    (
        "capital of Australia",
        "Canberra was chosen as the seat of government in 1908 as a compromise between Sydney and Melbourne.",
    ),
)


def raw_scores(model: RerankModel, pairs: tuple[tuple[str, str], ...]) -> list[float]:
    """The raw score of each pair."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model.checkpoint, dtype=torch.float32)
    scores = []
    for query, document in pairs:
        (prompt,) = model.renderer.render(query, [document])
        assert isinstance(prompt, Prompt)
        with torch.inference_mode():
            logits = network(torch.tensor([prompt.token_ids])).logits[0].double()
        logprobs = logits.log_softmax(-1)  # [T, V]
        if model.label_token_ids:
            read = logprobs[-1, list(model.label_token_ids)].tolist()
        else:
            scored = range(prompt.likelihood_start, len(prompt.token_ids))
            read = [logprobs[n - 1, prompt.token_ids[n]].item() for n in scored]
        scores.append(model.raw_score(read))
    return scores


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", default=ModelSettings().profile)
    parser.add_argument("--path", help="checkpoint folder or hub name that replaces the profile's")
    given = parser.parse_args()
    model = prepare_model(ModelSettings(profile=given.profile, path=given.path))
    for (query, document), score in zip(PAIRS, raw_scores(model, PAIRS), strict=True):
        print(f"[[golden.scores]]\nquery = {json.dumps(query)}\ndocument = {json.dumps(document)}")
        print(f"raw_score = {score:.4f}\n")


if __name__ == "__main__":
    main()
