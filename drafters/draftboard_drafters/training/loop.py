"""The one loop that trains every method: seeded, resumable, with a curve of held-out acceptance."""

from __future__ import annotations

import math
import pickle
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from draftboard.drafter import UserError
from draftboard.measure.linear import native_bfloat16
from draftboard.record.environment import read_checkout, read_cpu
from draftboard_drafters.training.batches import Texts
from draftboard_drafters.training.objective import Recipe

SAVE_EVERY = 60.0
"""Seconds of work that a kill may cost."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How long and how fast a method is trained."""

    tokens: int
    """Token visits in all: the schedule ends there."""
    rate: float = 5e-4
    """AdamW's step at its highest: it rises over the first 3 % and falls as a cosine to a twentieth."""
    rows: int = 1024
    """Tokens a step, about."""
    seed: int = 0
    evaluations: int = 12
    """Points of the curve."""


@dataclass(frozen=True, slots=True)
class Point:
    """Held-out acceptance after so much effort.

    `length` is the acceptance length that chains of K greedy drafts from the target's own tokens, all or
    those that a recipe draws, would have; `positions` the share of chains whose first 1, 2, .. drafts are
    all right.
    """

    tokens: int
    cpu_seconds: float
    loss: float | None
    """Of the last step before; None at the start."""
    length: float
    positions: tuple[float, ...]


@dataclass(slots=True)
class State:
    """Where a training stands. It is all that a checkpoint holds."""

    parameters: dict[str, Tensor]
    optimiser: dict[str, Any] | None = None
    epoch: int = 0
    group: int = 0
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    curve: list[Point] = field(default_factory=list)
    processes: list[dict[str, Any]] = field(default_factory=list)
    """What trained, one entry for each kind of process that had a part in it."""


def train(
    recipe: Recipe,
    texts: Texts,
    settings: Settings,
    folder: Path,
    say: Callable[[str], None],
    identity: Mapping[str, str] | None = None,
    start: Mapping[str, Tensor] | None = None,
) -> State:
    """Trains until the token visits are spent, or goes on where `folder` says that a training stopped.

    `identity` is what else decides the training, such as hashes of its data and vocabulary; `start` are
    parameters to begin with instead of the recipe's own. Raises UserError when the folder holds a training
    with other settings or of another identity.
    """
    about = {**{k: str(v) for k, v in asdict(settings).items()}, "products": products(), **(identity or {})}
    state = _resume(folder, about) or State(dict(recipe.initial(settings.seed) if start is None else start))
    for tensor in state.parameters.values():
        tensor.requires_grad_(True)
    _credit(state, settings)
    optimiser = _optimiser(state, settings)
    clock, saved = _Clock(state), time.monotonic()
    if not state.curve:
        _evaluate(recipe, texts, state, None, say)
    flops = _flops_per_token(recipe, texts, state, settings)
    while state.tokens < settings.tokens:
        loss = _step(recipe, texts, settings, state, optimiser)
        clock.note()
        if _due(state, settings):
            _evaluate(recipe, texts, state, loss, say)
            clock.note()
            say(clock.words(settings, flops))
        if time.monotonic() - saved > SAVE_EVERY:
            saved = time.monotonic()
            _save(folder, about, state, optimiser)
    _save(folder, about, state, optimiser)
    return state


def _credit(state: State, settings: Settings) -> None:
    """Notes what trains, where there is something left to train."""
    process = _process()
    if process not in state.processes and (state.tokens < settings.tokens or not state.processes):
        state.processes.append(process)


def _optimiser(state: State, settings: Settings) -> torch.optim.Optimizer:
    optimiser = torch.optim.AdamW(
        state.parameters.values(), lr=settings.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    if state.optimiser is not None:
        optimiser.load_state_dict(state.optimiser)
    return optimiser


def _step(
    recipe: Recipe, texts: Texts, settings: Settings, state: State, optimiser: torch.optim.Optimizer
) -> float:
    groups = texts.groups(texts.train, settings.rows, settings.seed + state.epoch)
    batch = texts.batch(groups[state.group])
    for group in optimiser.param_groups:
        group["lr"] = settings.rate * _shape(state.tokens / settings.tokens)
    with _arithmetic():
        outcome = recipe.outcome(state.parameters, batch, settings.seed + state.step)
    optimiser.zero_grad()
    outcome.loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(state.parameters.values(), 1.0)
    optimiser.step()
    state.step, state.tokens, state.group = state.step + 1, state.tokens + batch.tokens, state.group + 1
    if state.group == len(groups):
        state.epoch, state.group = state.epoch + 1, 0
    loss: float = outcome.loss.item()
    return loss


def products() -> str:
    """The dtype of the matrix products: bfloat16 where the processor has them, else float32. Weights, norms
    and losses are in float32 either way."""
    return "bfloat16" if native_bfloat16() else "float32"


def _process() -> dict[str, Any]:
    """What trains: processor, products, threads, versions, and the commit."""
    return {
        "cpu": read_cpu()[0],
        "products": products(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "commit": read_checkout(Path(__file__))[0],
    }


def _arithmetic() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=products() == "bfloat16")


def _shape(done: float) -> float:
    """The step's size at this share of the schedule, from 0 to 1."""
    return min(done / 0.03 + 0.01, 1.0) * (0.05 + 0.95 * (1 + math.cos(math.pi * min(done, 1.0))) / 2)


def _due(state: State, settings: Settings) -> bool:
    spacing = settings.tokens / settings.evaluations
    return state.tokens // spacing > state.curve[-1].tokens // spacing or state.tokens >= settings.tokens


@torch.no_grad()
def held_out(recipe: Recipe, texts: Texts, parameters: dict[str, Tensor]) -> tuple[float, ...]:
    """The share of chains on the held-out texts whose first 1, 2, .. K drafts are all right."""
    groups = texts.groups(texts.held_out, 2048, 0)
    with _arithmetic():
        hits = [recipe.outcome(parameters, texts.batch(group), 0).hits for group in groups]
    return tuple(torch.cat(hits).float().cumprod(-1).mean(0).tolist())


def _evaluate(
    recipe: Recipe, texts: Texts, state: State, loss: float | None, say: Callable[[str], None]
) -> None:
    positions = held_out(recipe, texts, state.parameters)
    point = Point(state.tokens, state.cpu_seconds, loss, 1 + sum(positions), positions)
    state.curve.append(point)
    shares = " ".join(f"{share:.3f}" for share in positions)
    lost = "-" if loss is None else f"{loss:.4f}"
    say(f"tokens {state.tokens:>9,}  loss {lost:>7}  held-out length {point.length:.3f}  ({shares})")


def _flops_per_token(recipe: Recipe, texts: Texts, state: State, settings: Settings) -> float:
    """Arithmetic of one step forward and back for a token, counted on a batch."""
    batch = texts.batch(texts.groups(texts.train, settings.rows, settings.seed)[0])
    with FlopCounterMode(display=False) as counter:
        with _arithmetic():
            outcome = recipe.outcome(state.parameters, batch, 0)
        outcome.loss.backward()  # type: ignore[no-untyped-call]
    flops: int = counter.get_total_flops()
    return flops / batch.tokens


class _Clock:
    """Wall and processor seconds of the training, over all its resumptions."""

    def __init__(self, state: State) -> None:
        self.state, self.wall, self.cpu = state, time.monotonic(), time.process_time()
        self.began, self.tokens = self.wall, state.tokens

    def note(self) -> None:
        wall, cpu = time.monotonic(), time.process_time()
        self.state.seconds += wall - self.wall
        self.state.cpu_seconds += cpu - self.cpu
        self.wall, self.cpu = wall, cpu

    def words(self, settings: Settings, flops: float) -> str:
        rate = (self.state.tokens - self.tokens) / max(time.monotonic() - self.began, 1e-9)
        left = max(settings.tokens - self.state.tokens, 0) / max(rate, 1e-9)
        return f"  {rate:,.0f} tokens/s, {rate * flops / 1e9:,.0f} GFLOP/s, {left / 60:.0f} min left"


def _save(folder: Path, about: Mapping[str, str], state: State, optimiser: torch.optim.Optimizer) -> None:
    state.optimiser = optimiser.state_dict()
    held = {name: getattr(state, name) for name in State.__slots__}
    held["curve"] = [asdict(point) for point in state.curve]
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"about": dict(about), "state": held}, folder / "state.new")
    (folder / "state.new").replace(folder / "state.pt")


def _resume(folder: Path, about: Mapping[str, str]) -> State | None:
    found = read_state(folder)
    if found is None:
        return None
    held_about, state = found
    other = {key for key in {*held_about, *about} if held_about.get(key) != about.get(key)}
    if other:
        key = min(other)
        raise UserError(
            f"{folder} holds a training whose {key} is {held_about.get(key)}, not {about.get(key)};"
            " finish it as it was begun, or remove the folder to begin anew"
        )
    return state


def read_state(folder: Path) -> tuple[dict[str, str], State] | None:
    """What a folder's training is about and where it stands; None where there is none.

    Raises UserError for a file that cannot be read.
    """
    file = folder / "state.pt"
    if not file.exists():
        return None
    try:
        found = torch.load(file, weights_only=True)
        held = found["state"]
        held["curve"] = [Point(**{**p, "positions": tuple(p["positions"])}) for p in held["curve"]]
        return found["about"], State(**held)
    except (RuntimeError, KeyError, TypeError, EOFError, OSError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{file} cannot be read ({reason}); remove its folder to begin anew") from None
