"""A method's training from texts to shipped weights: from the recipe's start, or on from what is shipped."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from draftboard.drafter import UserError
from draftboard.errors import make_folder
from draftboard_drafters.checkpoints.shipped import train_command
from draftboard_drafters.training import batches
from draftboard_drafters.training.batches import Texts
from draftboard_drafters.training.cards import (
    Data,
    last_stage,
    note_not_kept,
    read_card,
    stated,
    write_card,
)
from draftboard_drafters.training.jobs import Job
from draftboard_drafters.training.loop import Settings, State, read_state, train
from draftboard_drafters.training.objective import Recipe
from draftboard_drafters.training.parts import Parts, count, most_frequent, parts_of
from draftboard_drafters.training.recipes import modules
from draftboard_drafters.training.shipping import replacing, restore
from draftboard_drafters.training.states import Store, layout_of

FURTHER_EVALUATIONS = 6
"""Points that a further training adds to a curve."""
LEAST_GAIN = 0.005
"""The share by which a further training must raise the held-out length to be shipped. Less is chance, or what
rounding to bfloat16 does: the length before is of weights that were rounded, the one after is not."""

Before = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Ground:
    """What every method is trained on."""

    parts: Parts
    texts: Texts
    counts: Tensor
    """How often the target's replies have each id, int64 [V]."""
    data: Data


@dataclass(frozen=True, slots=True)
class Course:
    """A method's training: what is learnt from which texts, and what else decides it."""

    recipe: Recipe
    ground: Ground
    settings: Settings
    about: Mapping[str, str]


def train_method(method: str, job: Job) -> None:
    """Trains a method by its recipe and writes its weights and card.

    Raises UserError where what is shipped was trained further, which this would undo, or where a method that
    it starts from is not shipped.
    """
    if trained_further(method, job):
        raise UserError(
            f"{job.weights / method} was trained further, which training {method!r} anew would undo;"
            " go on with --further, or remove the folder to begin anew"
        )
    ground = _ground(job)
    cards = {name: _shipped_card(name, job, ground.data) for name in modules()[method].AFTER}
    before = {name: _course(name, job, ground, {}).recipe.shipped(job.weights / name) for name in cards}
    course = _course(method, job, ground, before)
    starts = {f"start {name}": card["weights_sha256"] for name, card in cards.items()}
    course = replace(course, about={**course.about, **starts})
    state = _trained(method, job, course)
    _ship(method, job, course, state, before=cards)


def trained_further(method: str, job: Job) -> bool:
    """Whether what is shipped went through more than its recipe."""
    restore(job.weights / method)
    return bool(stated(job.weights / method).get("stages"))


def train_further(method: str, job: Job, tokens: int) -> None:
    """Trains what is shipped for so many token visits more, and replaces it if that made it better.

    Raises UserError where nothing is shipped, or what is learnt from other data.
    """
    ground, work = _ground(job), job.work / f"{method}-further"
    earlier = _shipped_card(method, job, ground.data)
    ended = _ended(work, earlier)
    if ended is not None:  # a killed process left it behind
        shutil.rmtree(work)
    if ended is not None and ended["settings"]["tokens"] == tokens:
        _saying(method, job)("was ended already, as its card says")
        return
    _go_on(method, job, _further(method, job, ground, earlier, tokens), earlier)
    shutil.rmtree(work)


def _ended(work: Path, card: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What the card says of the training in `work`, where that made the weights or was not kept."""
    if (held := read_state(work)) is None:
        return None
    about, state = held
    stages: list[Mapping[str, Any]] = [last_stage(card), *card.get("not_kept", ())]
    found = about.get("start"), about["seed"], state.step, state.tokens
    for stage in stages:
        told = stage.get("start"), str(stage["settings"]["seed"]), stage["steps"], stage["token_visits"]
        if told == found:
            return stage
    return None


def _further(method: str, job: Job, ground: Ground, earlier: Mapping[str, Any], tokens: int) -> Course:
    """The seed moves on by the steps made so far: otherwise every stage would see the same texts first."""
    course = _course(method, job, ground, {})
    made = earlier["steps"] + sum(stage["steps"] for stage in earlier.get("not_kept", []))
    settings = replace(
        course.settings,
        tokens=tokens,
        evaluations=FURTHER_EVALUATIONS,
        seed=course.settings.seed + made,
    )
    about = {**course.about, "start": f"weights {earlier['weights_sha256'][:12]}"}
    if earlier.get("vocabulary", about["vocabulary"]) != about["vocabulary"]:
        raise UserError(f"{job.weights / method} has another vocabulary than its recipe; train it anew")
    return replace(course, settings=settings, about=about)


def _go_on(method: str, job: Job, course: Course, earlier: Mapping[str, Any]) -> None:
    start = course.recipe.shipped(job.weights / method)
    recipes_own = {name: tensor.shape for name, tensor in course.recipe.initial(0).items()}
    if recipes_own != {name: tensor.shape for name, tensor in start.items()}:
        raise UserError(f"{job.weights / method} has other tensors than its recipe now trains; train it anew")
    state = _trained(method, job, course, f"{method}-further", start)
    was, now = state.curve[0].length, state.curve[-1].length
    told = f"held-out length {now:.4f}, was {was:.4f}"
    if now >= was * (1 + LEAST_GAIN):
        _saying(method, job)(told)
        _ship(method, job, course, state, earlier)
    else:
        _saying(method, job)(f"{told}: not {LEAST_GAIN:.1%} better, what is shipped stays")
        note_not_kept(job.weights / method, course.settings, state, course.about)


def _ground(job: Job) -> Ground:
    parts = parts_of(job.target)
    layout = layout_of(parts.id, parts.layers, parts.geometry.hidden_size, parts.revision)
    store = Store(job.work / "states", layout)
    if not store.rows:
        raise UserError(f"{store.folder} holds no states; make some: {train_command('data', job.target)}")
    texts = Texts([store], held_out=batches.HELD_OUT)
    if not (texts.train and texts.held_out):
        raise UserError(
            f"{len(store.rows)} texts are too few to train on and to hold some out (about one in"
            f" {batches.HELD_OUT}); make more: {train_command('data', job.target)} --reply-tokens N"
        )
    data = Data(texts.sha256(), len(texts.train), sum(text.row.length for text in texts.train))
    replies = (texts.tokens(text)[text.row.prompt :] for text in texts.train)
    return Ground(parts, texts, count(replies, parts.vocab_size), data)


def _course(method: str, job: Job, ground: Ground, before: Before) -> Course:
    module, parts, texts = modules()[method], ground.parts, ground.texts
    words = most_frequent(ground.counts, module.WORDS, parts, texts.present(parts.vocab_size))
    recipe: Recipe = module.make(parts, words, texts.taps, before)
    settings: Settings = module.SETTINGS
    if job.tokens is not None:
        settings = replace(settings, tokens=job.tokens)
    about = {"target": parts.id, "drafts": str(recipe.k), "vocabulary": words.sha256()}
    return Course(recipe, ground, settings, {**about, "data": ground.data.sha256})


def _trained(
    method: str, job: Job, course: Course, folder: str | None = None, start: dict[str, Tensor] | None = None
) -> State:
    make_folder(job.weights, "choose another --root")
    work = job.work / (folder or (method if job.tokens is None else f"{method}-tokens-{job.tokens}"))
    return train(
        course.recipe, course.ground.texts, course.settings, work, _saying(method, job), course.about, start
    )


def _saying(method: str, job: Job) -> Callable[[str], None]:
    return lambda line: job.say(f"{method}: {line}")


def _ship(
    method: str,
    job: Job,
    course: Course,
    state: State,
    earlier: Mapping[str, Any] | None = None,
    before: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    folder, data = job.weights / method, course.ground.data
    with replacing(folder) as new:
        course.recipe.ship(state.parameters, new)
        write_card(new, course.recipe, course.settings, state, data, course.about, earlier, before)
    _saying(method, job)(f"written to {folder}")


def _shipped_card(method: str, job: Job, data: Data) -> dict[str, Any]:
    """The card of weights to go on from. Their words and mask came from the data: it must be the same."""
    folder = job.weights / method
    restore(folder)
    card = read_card(folder)
    if card is None:
        short = "" if job.tokens is None else f" --tokens {job.tokens}"
        raise UserError(
            f"{folder} has no weights with a card to go on from; train them:"
            f" {train_command(method, job.target)}{short}"
        )
    if card["data"]["sha256"] != data.sha256:
        raise UserError(
            f"{folder} was trained on data {card['data']['sha256'][:12]}, and the states are of"
            f" {data.sha256[:12]}; bring back its replies, remove {job.work / 'states'} and run"
            f" `{train_command('data', job.target)}`, or remove the weights and train them anew"
        )
    return card
