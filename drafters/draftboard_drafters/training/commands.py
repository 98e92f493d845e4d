"""What `draftboard train` does: the data, a method, or everything in the order in which it is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

import torch

from draftboard.drafter import UserError
from draftboard.errors import unknown
from draftboard.measure.loading import load_target, load_tokenizer, resolve_dtype, resolve_source
from draftboard.measure.target import TargetModel
from draftboard_drafters.training import batches, prompts
from draftboard_drafters.training.batches import Texts
from draftboard_drafters.training.courses import train_further, train_method, trained_further
from draftboard_drafters.training.generation import Answer, BatchedReplies
from draftboard_drafters.training.jobs import Job
from draftboard_drafters.training.jobs import job as job
from draftboard_drafters.training.parts import parts_of
from draftboard_drafters.training.recipes import in_order, modules
from draftboard_drafters.training.replies import Pair, Replies
from draftboard_drafters.training.report import report
from draftboard_drafters.training.states import Store, fill, layout_of
from draftboard_drafters.training.tables import tables

MAX_NEW_TOKENS = 192
LONGEST_PROMPT = 384
"""Longer prompts are left out: they would fill the memory of all slots and teach little."""
SLOTS = 128
SAY_EVERY = 50
DATA, EVERYTHING, EVALUATION, TABLES = "data", "all", "evaluate", "tables"


def run(what: str, job: Job) -> None:
    """Makes the data, trains one method, or does all. Raises UserError for a word that is none of them."""
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    known = modules()
    if job.further is not None and what not in known:
        raise UserError(f"--further trains one method on, not {what!r}; name one of: {', '.join(known)}")
    if what not in (words := [DATA, EVERYTHING, EVALUATION, TABLES, *known]):
        raise unknown("training", what, words, "the recipes")
    if job.further is not None and job.tokens is not None:
        raise UserError("--further and --tokens are both given; --further alone says how many visits more")
    if what in (DATA, EVERYTHING):
        parts_of(job.target)  # refuses what cannot be trained for before the hours that the data takes
        make_data(job)
    if what == TABLES:
        job.say(tables(job.weights))
    if what == EVALUATION:
        report(job.target, job.weights, [*known], job.results, job.work, job.say)
    for method in in_order(known) if what == EVERYTHING else [what] if what in known else []:
        if job.further is not None:
            train_further(method, job, job.further)
        elif what == EVERYTHING and trained_further(method, job):
            job.say(f"{method}: was trained further than its recipe, and stays")
        else:
            train_method(method, job)


def make_data(job: Job) -> None:
    """Replies up to the number of tokens asked for, with the target's states on all of them."""
    context = LONGEST_PROMPT + MAX_NEW_TOKENS
    device = torch.device("cpu")
    target = load_target(job.target, dtype=resolve_dtype("auto", device), device=device, max_context=context)
    replies = Replies(job.replies)
    layout = layout_of(target.id, target.num_layers, target.hidden_size, target.revision)
    store = Store(job.work / "states", layout)
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
    data = Texts([store], held_out=batches.HELD_OUT).sha256()
    job.say(f"data {data[:12]}: {have:,} reply tokens in {job.replies}")


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


def _check_paired(job: Job, pairs: Sequence[Pair], store: Store) -> None:
    """Raises UserError where the states are not of the first of the replies, in their order."""
    ids = store.ids()
    for row, pair in zip_longest(store.rows, pairs[: len(store.rows)]):
        if pair is None or ids[row.start : row.start + row.length].tolist() != [*pair[0], *pair[1]]:
            raise UserError(
                f"{store.folder} holds states of other texts than {job.replies} has; bring back the file that"
                " they were made of, or remove the folder: they are then made again"
            )


def _catch_up(job: Job, target: TargetModel, replies: Replies, store: Store) -> None:
    """States of the replies that have none yet: those that came with the checkout, and a killed writer's."""
    pairs = list(replies)
    fitting = [pair for pair in pairs if len(pair[0]) + len(pair[1]) <= target.max_context]
    if len(fitting) < len(pairs):
        over = len(pairs) - len(fitting)
        job.say(f"left out: {over} of {len(pairs)} texts, longer than {target.max_context} tokens")
    _check_paired(job, fitting, store)
    for index, pair in enumerate(fitting[len(store.rows) :]):
        fill(store, target, [pair])
        if index % SAY_EVERY == 0:
            job.say(f"states of {len(store.rows):,} texts, {store.tokens:,} tokens")
