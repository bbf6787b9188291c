"""Every error that eti-rank raises on purpose, as one tree.

    EtiRankError
    ├── InvalidInput            the caller's request is wrong; `param` names the part
    │   ├── MalformedInput      not readable at all (invalid JSON, wrong encoding)
    │   ├── InputTooLarge       readable, but above a stated limit
    │   └── InvalidField        one field has a wrong type or value
    ├── DomainError             an argument of a law lies outside its domain (also a ValueError)
    ├── ConfigurationError      settings, profile or installation are wrong; nothing was started
    │   ├── ProfileError        a model profile is wrong or does not fit its model
    │   └── ModelUnavailable    the model's files are missing, damaged or cannot be obtained
    ├── EngineError             the runtime below could not do the work
    │   ├── EngineUnavailable   not started, starting, restarting, crashed or closed
    │   ├── UnsupportedRequest  this engine cannot do what was asked
    │   └── HookError           our hooks inside SGLang are missing, moved or silent
    └── ServiceError            the service, not the request, is the limit
        └── Overloaded          the queue is full; `retry_after_s` says when to try again

Each boundary maps the whole tree: `service.problems` to HTTP statuses, `cli` to exit codes.
"""


class EtiRankError(Exception):
    """Root of the tree; its text is safe to show to a caller."""


class InvalidInput(EtiRankError):
    """The caller's request is wrong.

    Args:
        message: what is wrong and what would be right.
        param: dotted path of the field at fault, such as ``documents.3.text``.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class MalformedInput(InvalidInput):
    """The input cannot be read at all."""


class InputTooLarge(InvalidInput):
    """The input is above a stated limit."""


class InvalidField(InvalidInput):
    """A field has the wrong type or value."""


class DomainError(EtiRankError, ValueError):
    """An argument of a law lies outside the law's domain."""


class ConfigurationError(EtiRankError):
    """Settings, profile or installation are wrong."""


class ProfileError(ConfigurationError):
    """A model profile is wrong or does not fit its model."""


class ModelUnavailable(ConfigurationError):
    """The model's files are missing, damaged or cannot be obtained."""


class EngineError(EtiRankError):
    """The runtime below could not do the work."""


class EngineUnavailable(EngineError):
    """The engine is not started, starting, restarting, crashed or closed."""


class UnsupportedRequest(EngineError):
    """This engine cannot do what was asked."""


class HookError(EngineError):
    """Our hooks inside SGLang are missing, moved or silent."""


class ServiceError(EtiRankError):
    """The service, not the request, is the limit."""


class Overloaded(ServiceError):
    """The queue is full.

    Args:
        message: what is full.
        retry_after_s: seconds after which a retry is likely to be admitted.
    """

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
