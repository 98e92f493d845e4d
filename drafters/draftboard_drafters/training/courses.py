"""A method's training from texts to shipped weights: from the recipe's start, or on from what is shipped."""

from __future__ import annotations

import importlib
import json
import pkgutil
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from draftboard.drafter import UserError
from draftboard_drafters.checkpoints.cards import CARD, training_of
from draftboard_drafters.training import recipes
from draftboard_drafters.training.batches import Texts
from draftboard_drafters.training.cards import Data, write_card
from draftboard_drafters.training.jobs import Job
from draftboard_drafters.training.loop import Settings, State, read_state, train
from draftboard_drafters.training.objective import Recipe
from draftboard_drafters.training.parts import Parts, count, most_frequent, parts_of
from draftboard_drafters.training.states import Layout, Store, taps_of

HELD_OUT = 32
"""One text in so many judges the training and is not trained on."""
FURTHER_EVALUATIONS = 6
"""Points that a further training adds to a curve."""


def modules() -> dict[str, ModuleType]:
    """The recipe modules by method, found by listing their folder."""
    found = pkgutil.iter_modules(recipes.__path__)
    return {m.name: importlib.import_module(f"{recipes.__name__}.{m.name}") for m in found}


def in_order(known: Mapping[str, ModuleType]) -> list[str]:
    """Methods after those that they start from."""
    ordered = list[str]()
    while len(ordered) < len(known):
        ready = [n for n, m in known.items() if n not in ordered and set(m.AFTER) <= set(ordered)]
        ordered.append(ready[0])
    return ordered


@dataclass(frozen=True, slots=True)
class Course:
    """A method's training: what is learnt, from which texts, and what else decides it.

    `earlier` is the card of the shipped weights that are trained on; None: the recipe's own start.
    """

    module: ModuleType
    recipe: Recipe
    texts: Texts
    data: Data
    about: dict[str, str]
    earlier: dict[str, Any] | None = None


def train_method(method: str, job: Job) -> None:
    """Trains a method by its recipe and writes its weights and card."""
    course = _course(method, job)
    settings: Settings = course.module.SETTINGS
    if job.tokens is not None:
        settings = replace(settings, tokens=job.tokens)
    state = train(
        course.recipe, course.texts, settings, job.work / method, _saying(method, job), course.about
    )
    _ship(method, job, course, settings, state)


def train_further(method: str, job: Job, tokens: int) -> None:
    """Trains what is shipped for so many token visits more, and replaces it if that made it better.

    Raises UserError where nothing is shipped, or what is learnt from other data.
    """
    course = _course(method, job, further=True)
    assert course.earlier is not None
    settings = replace(course.module.SETTINGS, tokens=tokens, evaluations=FURTHER_EVALUATIONS)
    start, say = course.recipe.shipped(job.weights / method), _saying(method, job)
    folder = job.work / f"{method}-further"
    state = train(course.recipe, course.texts, settings, folder, say, course.about, start)
    was, now = state.curve[0].length, state.curve[-1].length
    if now > was:
        _ship(method, job, course, settings, state)
    else:
        say(f"held-out length {now:.3f}, was {was:.3f}: no better, what is shipped stays")
    shutil.rmtree(folder)


def _course(method: str, job: Job, further: bool = False) -> Course:
    module, parts = modules()[method], parts_of(job.target)
    store, texts = _texts(job, parts)
    words = most_frequent(_counts(texts, parts), module.WORDS, parts, texts.present(parts.vocab_size))
    data = Data(texts.sha256(), len(texts.train), sum(t.row.length for t in texts.train))
    earlier = _shipped_card(job.weights / method, data) if further else None
    before = {} if further else {name: _finished(name, job, data) for name in module.AFTER}
    recipe = module.make(parts, words, store.layout.taps, before)
    about = {"target": parts.id, "drafts": str(recipe.k), "vocabulary": words.sha256(), "data": data.sha256}
    if earlier is not None:
        about["from"] = earlier["weights_sha256"]
    return Course(module, recipe, texts, data, about, earlier)


def _texts(job: Job, parts: Parts) -> tuple[Store, Texts]:
    store = Store(job.work / "states", layout_of(parts))
    if not store.rows:
        raise UserError(f"{store.folder} holds no states; run `draftboard train data` first")
    texts = Texts([store], held_out=HELD_OUT)
    if not (texts.train and texts.held_out):
        raise UserError(
            f"{len(store.rows)} texts are too few to train on and to hold some out (about one in {HELD_OUT});"
            " make more: draftboard train data --reply-tokens"
        )
    return store, texts


def _saying(method: str, job: Job) -> Callable[[str], None]:
    return lambda line: job.say(f"{method}: {line}")


def _ship(method: str, job: Job, course: Course, settings: Settings, state: State) -> None:
    folder = job.weights / method
    course.recipe.ship(state.parameters, folder)
    write_card(folder, course.recipe, settings, state, course.data, course.earlier)
    job.say(f"{method}: written to {folder}")


def _shipped_card(folder: Path, data: Data) -> dict[str, Any]:
    """The card of weights to go on from. Their vocabulary came from their data, so that must be the same."""
    if training_of(str(folder)) is None:
        raise UserError(f"{folder} has no trained weights to go on from; train the method without --further")
    card: dict[str, Any] = json.loads((folder / CARD).read_text())
    if card["data"]["sha256"] != data.sha256:
        raise UserError(
            f"{folder} was trained on data {card['data']['sha256'][:12]}, and the states are of"
            f" {data.sha256[:12]}; make the same data, or train the method anew without --further"
        )
    return card


def layout_of(parts: Parts) -> Layout:
    return Layout(parts.id, taps_of(parts.layers), parts.geometry.hidden_size)


def _counts(texts: Texts, parts: Parts) -> Tensor:
    replies = (texts.tokens(text)[text.row.prompt :] for text in texts.train)
    return count(replies, parts.vocab_size)


def _finished(method: str, job: Job, data: Data) -> dict[str, Tensor]:
    found = read_state(job.work / method)
    if found is None or found[1].tokens < int(found[0]["tokens"]):
        raise UserError(
            f"no finished training of {method!r} in {job.work}, from which this one starts; train it first"
        )
    if found[0].get("data") != data.sha256:
        raise UserError(
            f"the training of {method!r} in {job.work}, from which this one starts, had other data;"
            f" remove {job.work / method} and train it again"
        )
    return {name: tensor.detach().requires_grad_(False) for name, tensor in found[1].parameters.items()}
