"""One run as asked for: everything a worker process needs to know, and nothing it has measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

from draftboard.record.ids import digest
from draftboard.record.records import Sampling
from draftboard.record.suites import ArmSpec, Suite


@dataclass(frozen=True, slots=True)
class Plan:
    """One engine, target, dtype, task and sampling, with the arms to interleave."""

    suite: str
    indicative: bool
    target: str
    revision: str | None
    dtype: str
    device: str
    plugins: str
    baseline: str
    """The drafter of the arm that all others are compared with."""
    task: str
    root: str
    """The checkout: where tasks are looked up."""
    limit: int | None
    """Prompts to draw from the task; None for all."""
    max_new_tokens: int
    repeats: int
    warmup: int
    sampling: Sampling
    arms: tuple[ArmSpec, ...]
    thinking: bool | None = None
    """The chat template's thinking flag, over the task's own; None leaves it to the task."""
    telemetry_s: float = 0.0
    """Seconds that each arm runs under sampling after all timing; 0 for no such pass."""
    verify_repeats: int = 1
    """Forwards timed for each number of rows of T_verify(m); 0 for none."""
    max_context: int | None = None
    """The most positions that the caches may hold; None for as many as the prompts need."""
    command: str = ""

    @property
    def key(self) -> str:
        """What must agree for an interrupted run to be continued; the command line may differ."""
        return digest(replace(self, command="", root=""))


def plans(suite: Suite, root: str, command: str, device: str = "auto") -> list[Plan]:
    """One plan for each task of a suite."""
    return [
        Plan(
            suite=suite.name,
            indicative=suite.indicative,
            target=suite.target,
            revision=suite.revision,
            dtype=suite.dtype,
            device=device,
            plugins=suite.plugins,
            baseline=suite.baseline,
            task=task,
            root=root,
            limit=suite.limit,
            max_new_tokens=suite.max_new_tokens,
            repeats=suite.repeats,
            warmup=suite.warmup,
            sampling=Sampling(suite.temperature, suite.top_k, suite.top_p, suite.seed),
            arms=suite.arms,
            thinking=suite.thinking,
            telemetry_s=suite.telemetry_s,
            max_context=suite.max_context,
            verify_repeats=suite.verify_repeats,
            command=command,
        )
        for task in suite.tasks
    ]
