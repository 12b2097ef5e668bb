"""The seam between the scheduler's plan and a forward pass. Two methods, so that steps can overlap later."""

from __future__ import annotations

from typing import Protocol

from headstart.core.step import StepOutput, StepPlan


class InFlight(Protocol):
    """A step that was submitted and may still be running."""

    def result(self) -> StepOutput:
        """Block until the step is done. Raises what the forward raised; the step then has no output at all."""
        ...


class Runner(Protocol):
    """Owns the rows, the KV storage and the model. Called from the engine thread only."""

    def submit(self, plan: StepPlan) -> InFlight:
        """Start one step. `plan.finished` rows are forgotten first, then `plan.started` rows are made."""
        ...
