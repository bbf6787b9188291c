"""What can be wrong with a worker, as opposed to a step. None of it leaves the engine.

EngineUnavailable
└── WorkerFault         another worker may do the step, or this one later
    ├── WorkerLost      no answer: not reachable, cut off, or silent for too long
    └── WorkerBusy      it asks to come back later; nothing is wrong with it
"""

from eti_rank.errors import EngineUnavailable


class WorkerFault(EngineUnavailable):
    """A worker answered in a way that says nothing about the step."""


class WorkerLost(WorkerFault):
    """A worker did not answer."""


class WorkerBusy(WorkerFault):
    """A worker asks to come back later."""
