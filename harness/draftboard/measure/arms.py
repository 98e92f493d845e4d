"""The arms of a run, alive: a drafter built from its specification, or the reason why it could not be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from draftboard.drafter import NO_WEIGHTS, Captured, Drafter, DraftSampler, Target, Weights
from draftboard.errors import UserError
from draftboard.measure import plugins
from draftboard.measure.decode import DrafterFault
from draftboard.measure.out_of_memory import memory_words, out_of_memory
from draftboard.record.ids import digest, without_folders
from draftboard.record.records import Arm, Card, Validity
from draftboard.record.suites import ArmSpec

K_OPTION = "num_speculative_tokens"


@dataclass(slots=True)
class LiveArm:
    """An arm in a worker process. `error` set means that it no longer takes part."""

    spec: ArmSpec
    card: Card
    options: dict[str, Any]
    drafter: Drafter | None = None
    error: str | None = None
    starved: bool = False
    """Whether memory ran out when it was built."""
    id: str = ""

    @property
    def name(self) -> str:
        """The drafter's name, without the folders of a file."""
        return without_folders(self.spec.drafter).rpartition("/")[2]

    @property
    def label(self) -> str:
        """The arm as a person names it: drafter and K."""
        k = self.options.get(K_OPTION)
        return self.name if k is None else f"{self.name} K={k}"

    @property
    def weights(self) -> Weights:
        """What its drafter adds to the target."""
        return NO_WEIGHTS if self.drafter is None else self.drafter.weights

    @property
    def graphs(self) -> tuple[int | None, str | None]:
        """CUDA graphs that its drafter replays from; or None, and why there are none."""
        if self.drafter is None:
            return None, "the arm failed"
        if isinstance(self.drafter, Captured):
            return self.drafter.captured()
        return None, "its drafter captures nothing"

    def record(self, run: str, baseline: str) -> Arm:
        """The arm's record before its first reply."""
        return Arm(
            id=self.id,
            run=run,
            drafter=self.name,
            card=self.card,
            k=self.options.get(K_OPTION),
            options=self.options,
            weights=self.weights,
            baseline=baseline,
            traces=(),
            guess_pieces={},
            losslessness=None,
            validity=Validity(),
            error=self.error,
            graphs=self.graphs[0],
            graphs_missing=self.graphs[1],
        )


def bound_options(spec: ArmSpec, plugins_package: str) -> tuple[Any, dict[str, Any]]:
    """The drafter's module and its options, K among them, as `build` will get them."""
    module = plugins.load(spec.drafter, plugins_package)
    asked = dict(spec.options) if spec.k is None else {**spec.options, K_OPTION: spec.k}
    return module, plugins.bind(module, asked)


def check_arms(specs: tuple[ArmSpec, ...], baseline: str, plugins_package: str) -> None:
    """Raises UserError unless every arm's drafter and options exist and the baseline proposes nothing."""
    cards = {spec.drafter: bound_options(spec, plugins_package)[0].CARD for spec in specs}
    if not cards[baseline].baseline:
        raise UserError(f"baseline {baseline!r} guesses; name a drafter whose CARD says baseline=True")


def build_arm(
    spec: ArmSpec, plugins_package: str, target: Target, sampler: DraftSampler, common: Any
) -> LiveArm:
    """Builds one arm. What goes wrong while it is built is the arm's error, not the run's."""
    module, options = bound_options(spec, plugins_package)
    arm = LiveArm(spec, module.CARD, options)
    try:
        with torch.inference_mode():
            arm.drafter = module.build(target, sampler, **options)
        assert arm.drafter is not None
        if K_OPTION in options:
            arm.options = {**options, K_OPTION: arm.drafter.num_speculative_tokens}
    except Exception as error:
        arm.error, arm.starved = describe(error), out_of_memory(error)
    arm.options = _published(arm.options)
    arm.id = digest([common, arm.name, arm.options, arm.weights.sha256])
    return arm


def _published(options: dict[str, Any]) -> dict[str, Any]:
    """Options as a record holds them; a checkpoint's content is named by the weights' hash."""
    return {name: without_folders(v) if isinstance(v, str) else v for name, v in options.items()}


def left_out(spec: ArmSpec, plugins_package: str, error: str, common: Any, id: str | None) -> LiveArm:
    """An arm that failed in an earlier worker process: not built again, and still a row under its old id."""
    module, options = bound_options(spec, plugins_package)
    arm = LiveArm(spec, module.CARD, _published(options), error=error)
    arm.id = id or digest([common, arm.name, arm.options, None])
    return arm


def rebuilt(arm: LiveArm, plugins_package: str, target: Target, sampler: DraftSampler) -> Drafter:
    """The same arm's drafter on another target, for the float32 proof."""
    module, options = bound_options(arm.spec, plugins_package)
    with torch.inference_mode():
        drafter: Drafter = module.build(target, sampler, **options)
    return drafter


def describe(error: BaseException) -> str:
    """An arm's error in one line, with what to do where that is known."""
    text = str(error).strip().split("\n", maxsplit=1)[0] or "no message"
    text = without_folders(text)
    if isinstance(error, (UserError, DrafterFault)):
        return text
    if out_of_memory(error):
        return memory_words(error)
    return f"{type(error).__name__}: {text}{_place(error)}"


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    file = trace.tb_frame.f_code.co_filename.rpartition("/")[2]
    return f" ({file}:{trace.tb_lineno})"
