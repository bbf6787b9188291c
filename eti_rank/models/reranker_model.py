"""A model that is ready to be asked: its profile, its files, its prompts and its scores."""

import logging
import math
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np

from eti_rank.errors import ModelUnavailable, ProfileError
from eti_rank.models import embedded
from eti_rank.models.profile import EmbeddedSource, Profile, load_profile
from eti_rank.models.prompt import Prompt, PromptRenderer
from eti_rank.settings import ModelSettings
from eti_rank.types import ScoreType

logger = logging.getLogger(__name__)


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

    def check_golden(self, scores: Sequence[float]) -> None:
        """Compare scores of `golden_pairs` with the profile's.

        Raises:
            ProfileError: there are none, or one differs by more than the tolerance.
        """
        golden = self.profile.golden
        if not golden.scores:
            raise ProfileError(
                f"profile {self.profile.name} has no golden scores, so nothing shows that model and template "
                "fit; fill them as docs/models.md shows, or set model.check_golden = false"
            )
        for expected, got in zip(golden.scores, scores, strict=True):
            if not abs(expected.raw_score - got) <= golden.tolerance_nats:
                raise ProfileError(
                    f"profile {self.profile.name} does not fit this model: query {expected.query!r} must "
                    f"score {expected.raw_score:.4f} nats and scores {got:.4f}"
                )


def prepare_model(settings: ModelSettings) -> RerankModel:
    """Load the profile and have its model's files at hand; converts the embedded one if needed.

    Raises:
        ProfileError: the profile is wrong or does not fit the model.
        ModelUnavailable: the files cannot be obtained.
    """
    profile = load_profile(settings.profile)
    if settings.path is None and isinstance(profile.source, EmbeddedSource):
        folder = embedded.obtain(profile.source.model)
        return RerankModel(profile, str(folder), folder / "tokenizer.json")
    checkpoint = settings.path or profile.source.path  # type: ignore[union-attr]
    return RerankModel(profile, checkpoint, _tokenizer_file(checkpoint))


def _tokenizer_file(checkpoint: str) -> Path:
    if Path(checkpoint).is_dir():
        file = Path(checkpoint) / "tokenizer.json"
        if not file.is_file():
            raise ModelUnavailable(f"model folder {checkpoint} has no tokenizer.json")
        return file
    from huggingface_hub import hf_hub_download  # noqa: PLC0415 - a second of import
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError  # noqa: PLC0415

    try:
        return Path(hf_hub_download(checkpoint, "tokenizer.json"))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelUnavailable(
            f"model {checkpoint} is neither a folder nor to be had from the hub: {error}"
        ) from None


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
