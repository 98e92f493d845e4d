"""What `draftboard train` does: the data, a method, or everything in the order in which it is needed."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from draftboard.drafter import UserError
from draftboard.errors import unknown
from draftboard.measure.embedded import EMBEDDED_ID, default_cache
from draftboard.measure.loading import load_target, load_tokenizer, resolve_dtype, resolve_source, target_id
from draftboard.measure.target import TargetModel
from draftboard_drafters.checkpoints.shipped import slug
from draftboard_drafters.training import prompts, recipes
from draftboard_drafters.training.batches import Texts
from draftboard_drafters.training.cards import Data, write_card
from draftboard_drafters.training.generation import Answer, BatchedReplies
from draftboard_drafters.training.loop import read_state, train
from draftboard_drafters.training.parts import Parts, count, most_frequent, parts_of
from draftboard_drafters.training.replies import Replies
from draftboard_drafters.training.report import report
from draftboard_drafters.training.states import Layout, Store, fill, taps_of
from draftboard_drafters.training.tables import tables

MAX_NEW_TOKENS = 192
LONGEST_PROMPT = 384
"""Longer prompts are left out: they would fill the memory of all slots and teach little."""
SLOTS = 128
SAY_EVERY = 50
HELD_OUT = 32
"""One text in so many judges the training and is not trained on."""
DATA, EVERYTHING, EVALUATION, TABLES = "data", "all", "evaluate", "tables"


@dataclass(frozen=True, slots=True)
class Job:
    """What is trained, for which target, from what, and where it is kept.

    `replies` is the file of the target's replies, `work` holds states and unfinished trainings, `weights`
    receives one folder per method, `results` has the replies that an evaluation replays. `reply_tokens` is
    how many tokens of replies the data shall have in all; `tokens` overrides a recipe's token visits.
    """

    target: str
    prompts: Path
    replies: Path
    work: Path
    weights: Path
    results: Path
    reply_tokens: int = 1_000_000
    tokens: int | None = None
    threads: int | None = None
    say: Callable[[str], None] = print


def job(target: str | None, root: Path, work: Path | None, **options: Any) -> Job:
    """The job for a target (None: the embedded one) in a checkout."""
    name = target or EMBEDDED_ID
    folder = slug(target_id(name))
    work = work or default_cache() / "training" / folder
    return Job(
        target=name,
        prompts=root / "drafters" / "train_prompts",
        replies=root / "drafters" / "train_data" / f"{folder}.jsonl",
        work=work,
        # A shortened training never replaces what is shipped.
        weights=work / "weights" if options.get("tokens") else root / "drafters" / "weights" / folder,
        results=root / "results",
        **options,
    )


def run(what: str, job: Job) -> None:
    """Makes the data, trains one method, or does all. Raises UserError for a word that is none of them."""
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    known = modules()
    if what not in (words := [DATA, EVERYTHING, EVALUATION, TABLES, *known]):
        raise unknown("training", what, words, "the recipes")
    if what in (DATA, EVERYTHING):
        parts_of(job.target)  # refuses what cannot be trained for before the hours that the data takes
        make_data(job)
    if what == TABLES:
        job.say(tables(job.weights))
    if what == EVALUATION:
        report(job.target, job.weights, [*known], job.results, job.work, job.say)
    for method in in_order(known) if what == EVERYTHING else [what] if what in known else []:
        train_method(method, job)


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


def make_data(job: Job) -> None:
    """Replies up to the number of tokens asked for, with the target's states on all of them."""
    context = LONGEST_PROMPT + MAX_NEW_TOKENS
    device = torch.device("cpu")
    target = load_target(job.target, dtype=resolve_dtype("auto", device), device=device, max_context=context)
    replies = Replies(job.replies)
    store = Store(job.work / "states", Layout(target.id, taps_of(target.num_layers), target.hidden_size))
    answered = {prompt for prompt, _ in replies}
    have = sum(len(reply) for _, reply in replies)
    job.say(f"{len(answered):,} prompts answered so far, {have:,} tokens of {job.reply_tokens:,}")
    _catch_up(job, target, replies, store)
    if have < job.reply_tokens:
        for new, answer in enumerate(_answers(target, store.layout.taps, _waiting(job, answered)), 1):
            # A killed process leaves the states behind the replies, and the next one catches up.
            replies.add(answer.prompt, answer.reply)
            store.append([*answer.prompt, *answer.reply], len(answer.prompt), answer.states.cpu())
            have += len(answer.reply)
            if new % SAY_EVERY == 0:
                job.say(f"{have:,} of {job.reply_tokens:,} reply tokens")
            if have >= job.reply_tokens:
                break
    job.say(f"data {replies.sha256()[:12]}: {have:,} reply tokens in {job.replies}")


def _waiting(job: Job, answered: set[tuple[int, ...]]) -> Iterator[list[int]]:
    """Prompts without a reply, in the seeded order, those that are too long left out."""
    tokenizer = load_tokenizer(resolve_source(job.target), None)
    for prompt in prompts.ordered(prompts.read(job.prompts)):
        ids = prompts.template(tokenizer, prompt.text)
        if len(ids) <= LONGEST_PROMPT and tuple(ids) not in answered:
            yield ids


def _answers(target: TargetModel, taps: tuple[int, ...], waiting: Iterator[list[int]]) -> Iterator[Answer]:
    sizes = {"slots": SLOTS, "max_prompt": LONGEST_PROMPT, "max_new_tokens": MAX_NEW_TOKENS}
    return BatchedReplies(target, taps=taps, **sizes).answers(waiting)


def _catch_up(job: Job, target: TargetModel, replies: Replies, store: Store) -> None:
    """States of the replies that have none yet: those that came with the checkout, and a killed writer's."""
    pairs = list(replies)
    fitting = [pair for pair in pairs if len(pair[0]) + len(pair[1]) <= target.max_context]
    if len(fitting) < len(pairs):
        over = len(pairs) - len(fitting)
        job.say(f"left out: {over} of {len(pairs)} texts, longer than {target.max_context} tokens")
    for index, pair in enumerate(fitting[len(store.rows) :]):
        fill(store, target, [pair])
        if index % SAY_EVERY == 0:
            job.say(f"states of {len(store.rows):,} texts, {store.tokens:,} tokens")


def train_method(method: str, job: Job) -> None:
    """Trains a method to its end and writes its weights and card."""
    module, parts = modules()[method], parts_of(job.target)
    store = Store(job.work / "states", _layout(parts))
    if not store.rows:
        raise UserError(f"{store.folder} holds no states; run `draftboard train data` first")
    texts = Texts([store], held_out=HELD_OUT)
    if not (texts.train and texts.held_out):
        raise UserError(
            f"{len(store.rows)} texts are too few to train on and to hold some out (about one in {HELD_OUT});"
            " make more: draftboard train data --reply-tokens"
        )
    words = most_frequent(_counts(texts, parts), module.WORDS, parts, texts.present(parts.vocab_size))
    data = Data(texts.sha256(), len(texts.train), sum(t.row.length for t in texts.train))
    before = {name: _finished(name, job, data) for name in module.AFTER}
    recipe = module.make(parts, words, store.layout.taps, before)
    settings = module.SETTINGS if job.tokens is None else replace(module.SETTINGS, tokens=job.tokens)
    about = {"target": parts.id, "drafts": str(recipe.k), "vocabulary": words.sha256(), "data": data.sha256}
    say = lambda line: job.say(f"{method}: {line}")  # noqa: E731
    state = train(recipe, texts, settings, job.work / method, say, about)
    recipe.ship(state.parameters, job.weights / method)
    write_card(job.weights / method, recipe, settings, state, data)
    job.say(f"{method}: written to {job.weights / method}")


def _layout(parts: Parts) -> Layout:
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
