"""A model that is ready to be asked: its profile, its files, its prompts and its scores."""

import json
import math
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np

from eti_rank.errors import ModelUnavailable, ProfileError
from eti_rank.models import embedded
from eti_rank.models.profile import CheckpointSource, EmbeddedSource, Profile, load_profile
from eti_rank.models.prompt import Prompt, PromptRenderer
from eti_rank.settings import ModelSettings
from eti_rank.types import ScoreType


class RerankModel:
    """One profile on one checkpoint.

    Args:
        profile: what is known of the model.
        checkpoint: folder or hub name, as the engine takes it.
        tokenizer_file: the checkpoint's ``tokenizer.json``.

    Raises:
        ProfileError: template or labels do not fit the tokenizer.
    """

    def __init__(self, profile: Profile, checkpoint: str, tokenizer_file: Path) -> None:
        self.profile = profile
        self.checkpoint = checkpoint
        self.renderer = PromptRenderer(profile.template, profile.limits, tokenizer_file)
        labels = profile.labels
        self._positive = [self.renderer.label_token(label) for label in labels.positive] if labels else []
        self._negative = [self.renderer.label_token(label) for label in labels.negative] if labels else []
        if len({*self._positive, *self._negative}) < len(self.label_token_ids):
            raise ProfileError(f"profile {profile.name}: two of its labels are the same token")

    @property
    def label_token_ids(self) -> tuple[int, ...]:
        """Positive labels, then negative ones; empty for a likelihood scorer."""
        return (*self._positive, *self._negative)

    @property
    def template_id(self) -> str:
        """Name and hash of the template."""
        return self.profile.template_id

    @property
    def score_type(self) -> ScoreType:
        """What `raw_score` is."""
        return self.profile.scorer

    @property
    def calibrated(self) -> bool:
        """Whether `relevance` is a fitted probability."""
        return self.profile.calibration is not None

    @property
    def noise_floor_nats(self) -> float:
        """What the profile knows of it."""
        return self.profile.noise_floor_nats

    @property
    def max_prompt_tokens(self) -> int:
        """Longest prompt that is rendered."""
        return self.profile.limits.max_prompt_tokens

    @property
    def golden_pairs(self) -> list[tuple[str, str]]:
        """Query and document of each golden score."""
        return [(golden.query, golden.document) for golden in self.profile.golden.scores]

    def shared_prefix_tokens(self, prompts: Sequence[Prompt]) -> int:
        """Length of the prefix that all these prompts have in common."""
        if len(prompts) < 2:
            return 0
        columns = zip(*(prompt.token_ids for prompt in prompts), strict=False)
        return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))

    def raw_score(self, logprobs: Sequence[float]) -> float:
        """From what the engine read out to a score in nats, higher for better.

        label: log-odds, ln sum P(positive) - ln sum P(negative). likelihood: mean log-probability of
        the query's tokens (Ponte and Croft 1998; as a reranker: Sachan et al., arXiv 2204.07496).
        """
        if self.score_type is ScoreType.LIKELIHOOD:
            return math.fsum(logprobs) / len(logprobs)
        count = len(self._positive)
        return float(np.logaddexp.reduce(logprobs[:count]) - np.logaddexp.reduce(logprobs[count:]))

    def relevance(self, raw: float) -> float:
        """In [0, 1] and increasing in `raw`: calibrated if the profile says how, else as plain as can be.

        label: the probability of the positive labels among the labels. likelihood: the geometric mean
        of the query's token probabilities.
        """
        if platt := self.profile.calibration:
            return _sigmoid(platt.slope * raw + platt.intercept)
        return _sigmoid(raw) if self.score_type is ScoreType.LABEL else math.exp(min(raw, 0.0))

    def check_golden(self, scores: Sequence[float], *, dtype: str = "float32") -> None:
        """Compare scores of `golden_pairs` with the profile's.

        Args:
            scores: raw scores, in the order of `golden_pairs`.
            dtype: the type that they were computed in.

        Raises:
            ProfileError: there are none, or one differs by more than the tolerance.
        """
        name, golden = self.profile.name, self.profile.golden
        if not golden.scores:
            raise ProfileError(
                f"profile {name} has no golden scores, so nothing shows that model and template fit; print "
                f"some with `python -m eval.golden --profile {name}` and put them into the profile, or set "
                "model.check_golden = false"
            )
        tolerance_nats = golden.tolerance_nats.of(dtype)
        for expected, got in zip(golden.scores, scores, strict=True):
            difference_nats = abs(expected.raw_score - got)
            if not difference_nats <= tolerance_nats:  # so that NaN is refused too
                raise ProfileError(
                    f"profile {name} does not fit this model: query {expected.query!r} with document "
                    f"{expected.document!r} must score {expected.raw_score:.4f} nats and scores {got:.4f}, "
                    f"off by {difference_nats:.4f}; {dtype} allows {tolerance_nats:g}"
                )


def prepare_model(settings: ModelSettings) -> RerankModel:
    """Load the profile and have its model's files at hand; converts the embedded one if needed.

    Raises:
        ProfileError: the profile is wrong or does not fit the model.
        ModelUnavailable: the files cannot be obtained.
    """
    profile = load_profile(settings.profile)
    match profile.source:
        case EmbeddedSource(model=name) if settings.path is None:
            checkpoint = str(embedded.obtain(name))
        case CheckpointSource(path=path) if settings.path is None:
            checkpoint = path
        case _:
            checkpoint = str(settings.path)
    _check_architecture(profile, checkpoint)
    return RerankModel(profile, checkpoint, _checkpoint_file(checkpoint, "tokenizer.json"))


def _check_architecture(profile: Profile, checkpoint: str) -> None:
    try:
        config = json.loads(_checkpoint_file(checkpoint, "config.json").read_text(encoding="utf-8"))
        found = list(config["architectures"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelUnavailable(f"config.json of model {checkpoint} cannot be read: {error!r}") from None
    if profile.architecture not in found:
        raise ProfileError(
            f"profile {profile.name} is made for {profile.architecture}; model {checkpoint} is {found}"
        )


def _checkpoint_file(checkpoint: str, name: str) -> Path:
    if Path(checkpoint).is_dir():
        file = Path(checkpoint) / name
        if not file.is_file():
            raise ModelUnavailable(f"model folder {checkpoint} has no {name}")
        return file
    from huggingface_hub import hf_hub_download  # noqa: PLC0415 - a second of import
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError  # noqa: PLC0415

    try:
        return Path(hf_hub_download(checkpoint, name))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelUnavailable(
            f"model {checkpoint} is neither a folder nor to be had from the hub: {error}"
        ) from None


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
