"""Whether a pod lives and serves, judged by progress. Owner of its state: the server's event loop.

It exists before the engine does, because a pod that loads its model for minutes must be seen to live.
"""

from __future__ import annotations

from headstart.edge.health import Probe
from headstart.engine.handle import EngineHandle

MAX_STEP_AGE_S = 60.0
"""A step that runs longer is taken for stuck. A long prefill step on a slow CPU takes seconds, not minutes."""


class PodHealth:
    """`attach` gives it the engine once there is one; `max_step_age_s` is the longest step that is still progress."""

    def __init__(self, *, max_step_age_s: float = MAX_STEP_AGE_S) -> None:
        self._max_step_age_s = max_step_age_s
        self._engine: EngineHandle | None = None
        self._is_leaving = False

    def attach(self, engine: EngineHandle) -> None:
        self._engine = engine

    def leave(self) -> None:
        """Not ready from now on, though calls may still be taken."""
        self._is_leaving = True

    def is_live(self) -> bool:
        """Loading, idle or advancing. False at once when the engine has died, and when a step does not end."""
        engine = self._engine
        return engine is None or (engine.is_alive and engine.step_age_s <= self._max_step_age_s)

    def is_ready(self) -> bool:
        """The model has answered a first token, and the pod is not about to leave."""
        return self._engine is not None and self._engine.is_ready and self.is_live() and not self._is_leaving

    def is_started(self) -> bool:
        """The model was ready once: the start-up is over, and liveness is what counts."""
        return self._engine is not None and (self._engine.is_ready or self._engine.is_draining)

    def probes(self) -> dict[str, Probe]:
        """By the service names that probes and clients ask for."""
        return {
            "": self.is_ready,
            "liveness": self.is_live,
            "readiness": self.is_ready,
            "startup": self.is_started,
            "headstart.v1.Inference": self.is_ready,
            "headstart.v1.PrefixCache": self.is_ready,
        }
