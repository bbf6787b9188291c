"""What our hooks keep of each request inside the scheduler process.

The one state lives on SGLang's own request object and is freed with it: when the request ends, however
it ends. A retracted request is the same object when it comes back, so its state survives retraction.

It carries entropy around the loop: the sampling hook writes the entropy of the last step, attention reads
it for its threshold, the scheduling hook for the worth of going on; what attention kept and what
temperature was used come back in the report of each token.
"""

from typing import TYPE_CHECKING, Any, Final

from eti_rank import __version__
from eti_rank.engine import wire
from eti_rank.errors import DomainError

if TYPE_CHECKING:
    from eti_rank.control import entropic_time, temperature

_ATTRIBUTE: Final = "eti_rank_state"


class RequestState:
    """Mutable; one per request, in one thread."""

    __slots__ = (
        "entropy_nats",
        "feedback",
        "heat",
        "params",
        "progress",
        "pruning",
        "ran",
        "recent_entropy_nats",
        "refusal",
        "reports",
        "sent_reports",
    )

    def __init__(self, params: wire.StepParams, refusal: str | None = None) -> None:
        self.params = params
        self.refusal = refusal
        self.ran: set[str] = set()
        """Hooks that ran for this request."""
        self.reports: list[wire.TokenReport] = []
        """One per token chosen so far."""
        self.sent_reports = 0
        self.entropy_nats: float | None = None
        """Of the model's own distribution at the last step."""
        self.recent_entropy_nats: float | None = None
        """Mean of the last steps, the latest of most weight."""
        self.progress: entropic_time.EntropicTime | None = None
        self.feedback: temperature.FeedbackState | None = None
        self.heat: float | None = None
        """Temperature of the last step under `solve`; where the search for the next one begins."""
        self.pruning: Any = None
        """Owned by the attention hook: the blocks of this request, and what it decided at the last step."""

    @property
    def control(self) -> wire.DecodingControl | None:
        """What is to be done for this request while it generates."""
        return self.params.decoding

    def stamp(self) -> wire.Stamp:
        """What we have to say about the request so far."""
        return wire.Stamp(plugin=__version__, hooks=tuple(sorted(self.ran)), refusal=self.refusal)


def of(req: Any) -> RequestState:
    """The state of one of SGLang's requests; made when it is first asked for.

    A request whose parameters make no sense gets none of our hooks and says why in its stamp. It must not
    raise: an error here would end the scheduler for all requests.
    """
    state: RequestState | None = getattr(req, _ATTRIBUTE, None)
    if state is None:
        try:
            told = wire.StepParams.decode(req.sampling_params.custom_params) or wire.StepParams()
            state = RequestState(told)
        except DomainError as error:
            state = RequestState(wire.StepParams(), str(error))
        setattr(req, _ATTRIBUTE, state)
    return state
