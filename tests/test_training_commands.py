"""`draftboard train` on a toy, from prompts to weights that draft, killed on the way."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from draftboard.errors import UserError
from draftboard.measure.loading import load_target
from draftboard_drafters.checkpoints.cards import training_of
from draftboard_drafters.checkpoints.loader import load
from draftboard_drafters.training import commands, courses, jobs, loop
from draftboard_drafters.training.batches import Texts
from draftboard_drafters.training.evaluate import greedy_sampler
from draftboard_drafters.training.jobs import Job
from draftboard_drafters.training.parts import parts_of, parts_of_model
from draftboard_drafters.training.recipes import draft_model
from draftboard_drafters.training.replies import Replies
from draftboard_drafters.training.states import Layout, Store, taps_of
from loaded import saved
from shipped import MODULES
from tiny import tiny_model
from tiny_folder import byte_tokenizer

CPU = torch.device("cpu")


class Killed(Exception):
    """The process is gone."""


def dying_at(word: str, times: int) -> Callable[[str], None]:
    """Says nothing and dies the given time that a line holds the word."""
    left = [times]

    def say(line: str) -> None:
        left[0] -= word in line
        if left[0] <= 0:
            raise Killed

    return say


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    target = tmp_path / "toy"
    tiny_model("llama", 0, vocab_size=260, num_hidden_layers=8, max_position_embeddings=1024).save_pretrained(
        target
    )
    byte_tokenizer().save_pretrained(target)
    asked = tmp_path / "prompts"
    asked.mkdir()
    rows = [{"id": f"p{i}", "turns": [f"say {'abc' * i}"]} for i in range(12)]
    (asked / "chat_toy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(commands, "MAX_NEW_TOKENS", 12)
    monkeypatch.setattr(commands, "SLOTS", 4)
    monkeypatch.setattr(courses, "HELD_OUT", 3)
    monkeypatch.setattr(commands, "SAY_EVERY", 2)
    return Job(
        target=str(target),
        prompts=asked,
        replies=tmp_path / "replies.jsonl",
        work=tmp_path / "work",
        weights=tmp_path / "weights",
        results=tmp_path / "results",
        reply_tokens=120,
        tokens=600,
        say=lambda line: None,
    )


def _store(job: Job) -> Store:
    parts = parts_of(job.target)
    layout = Layout(parts.id, taps_of(parts.layers), parts.geometry.hidden_size)
    return Store(job.work / "states", layout)


def test_a_toy_is_trained_through_kills_and_drafts(job: Job) -> None:
    with pytest.raises(Killed):
        commands.run("data", replace(job, say=dying_at("reply tokens", 2)))
    shutil.rmtree(job.work / "states")  # replies come with a checkout, their states do not
    with pytest.raises(Killed):
        commands.run("data", replace(job, say=dying_at("states of", 2)))
    commands.run("data", job)
    pairs = list(Replies(job.replies))
    texts = Texts([_store(job)], held_out=3)
    stored = {tuple(texts.tokens(text).tolist()) for text in [*texts.train, *texts.held_out]}
    assert stored == {(*prompt, *reply) for prompt, reply in pairs}
    assert sum(len(reply) for _, reply in pairs) >= job.reply_tokens
    assert len({prompt for prompt, _ in pairs}) == len(pairs)
    with pytest.raises(Killed):
        commands.run("eagle3", replace(job, say=dying_at("held-out", 2)))
    commands.run("eagle3", job)
    card = json.loads((job.weights / "eagle3" / "card.json").read_text())
    assert card["token_visits"] >= 600
    target = load_target(job.target, dtype=torch.float32, device=CPU, max_context=None)
    checkpoint = str(job.weights / "eagle3")
    drafter = MODULES["eagle3"].build(target, greedy_sampler(CPU), checkpoint=checkpoint)
    assert drafter.weights.origin == "trained here"
    assert drafter.num_speculative_tokens == 3


def test_the_draft_model_is_trained_and_shares_the_tokenizer(job: Job) -> None:
    commands.run("data", job)
    commands.run("draft_model", replace(job, tokens=100))
    target = load_target(job.target, dtype=torch.float32, device=CPU, max_context=None)
    drafter = MODULES["draft_model"].build(
        target, greedy_sampler(CPU), model=str(job.weights / "draft_model"), num_speculative_tokens=2
    )
    assert drafter.weights.origin == "trained here"
    assert drafter.weights.training is not None


def test_what_is_shipped_is_trained_on_through_a_kill_and_its_card_adds_up(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    rising = itertools.count(1)
    monkeypatch.setattr(loop, "held_out", lambda *arguments: (next(rising) / 100,))
    commands.run("data", job)
    commands.run("mtp", job)
    first = read_card(job, "mtp")
    further = replace(job, tokens=None, further=400)
    with pytest.raises(Killed):
        commands.run("mtp", replace(further, say=dying_at("held-out", 3)))
    assert read_card(job, "mtp") == first, "what is shipped changed before the training had ended"
    commands.run("mtp", further)
    card = read_card(job, "mtp")
    assert [stage["settings"]["tokens"] for stage in card["stages"]] == [600, 400]
    for cost in ("steps", "token_visits", "seconds", "cpu_seconds"):
        assert card[cost] == pytest.approx(sum(stage[cost] for stage in card["stages"]), abs=0.11)
    assert card["stages"][0]["token_visits"] == first["token_visits"]
    assert card["curve"][: len(first["curve"])] == first["curve"]
    assert [p["tokens"] for p in card["curve"]] == sorted({p["tokens"] for p in card["curve"]})
    assert card["curve"][-1]["tokens"] == card["token_visits"]
    assert training_of(str(job.weights / "mtp")) is not None
    commands.run("mtp", further)
    assert len(read_card(job, "mtp")["stages"]) == 3


def test_a_training_goes_on_from_the_weights_and_not_from_the_recipes_start(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.run("data", job)
    commands.run("dflash", job)
    commands.run("dspark", job)
    shutil.rmtree(job.work / "dflash")  # what a method began from is not needed to go on
    begun = list[dict[str, torch.Tensor]]()
    real = loop._evaluate

    def noting(*arguments: Any) -> None:
        begun.append({name: tensor.detach().clone() for name, tensor in arguments[2].parameters.items()})
        real(*arguments)

    monkeypatch.setattr(loop, "_evaluate", noting)
    shipped = load(str(job.weights / "dspark")).tensors
    commands.run("dspark", replace(job, tokens=None, further=50))
    assert begun[0].keys() == shipped.keys() - {"lm_head.weight", "d2t", "t2d"}
    assert all(torch.equal(tensor, shipped[name].float()) for name, tensor in begun[0].items())


def test_weights_that_became_no_better_are_not_shipped(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    commands.run("data", job)
    commands.run("mtp", job)
    before = read_card(job, "mtp")
    lengths = iter([(0.5, 0.2, 0.1), *[(0.4, 0.2, 0.1)] * 20])
    monkeypatch.setattr(loop, "held_out", lambda *arguments: next(lengths))
    said = list[str]()
    commands.run("mtp", replace(job, tokens=None, further=100, say=said.append))
    assert "no better, what is shipped stays" in said[-1]
    assert read_card(job, "mtp") == before


def test_going_on_needs_weights_and_their_data(job: Job) -> None:
    further = replace(job, tokens=None, further=100)
    commands.run("data", job)
    with pytest.raises(UserError, match="has no trained weights to go on from"):
        commands.run("mtp", further)
    commands.run("mtp", job)
    commands.run("data", replace(job, reply_tokens=144))
    with pytest.raises(UserError, match=r"was trained on data .* and the states are of"):
        commands.run("mtp", further)


@pytest.mark.parametrize("what, tokens", [("data", None), ("all", None), ("mtp", 5)])
def test_going_on_is_for_one_method_and_its_own_length(what: str, tokens: int | None, job: Job) -> None:
    with pytest.raises(UserError, match="--further goes with a method"):
        commands.run(what, replace(job, tokens=tokens, further=100))
    assert not job.work.exists()


def read_card(job: Job, method: str) -> dict[str, Any]:
    """The card of what is shipped."""
    card: dict[str, Any] = json.loads((job.weights / method / "card.json").read_text())
    return card


def test_an_unknown_word_names_what_can_be_trained(job: Job) -> None:
    with pytest.raises(UserError, match="did you mean 'eagle3'"):
        commands.run("eagle", job)


def test_a_method_without_data_or_its_predecessor_says_what_to_do(job: Job) -> None:
    with pytest.raises(UserError, match="draftboard train data"):
        commands.run("mtp", job)
    commands.run("data", job)
    with pytest.raises(UserError, match="no finished training of 'dflash'"):
        commands.run("dspark", job)


def test_methods_come_after_those_they_start_from() -> None:
    order = courses.in_order(courses.modules())
    assert sorted(order) == ["dflash", "draft_model", "dspark", "eagle3", "mtp"]
    assert order.index("dflash") < order.index("dspark")


@pytest.mark.parametrize(
    "before, after, said",
    [
        ("mtp", "mtp", "holds a training whose data is"),
        ("dflash", "dspark", "from which this one starts, had other data"),
    ],
)
def test_data_that_grew_does_not_continue_another_training(
    job: Job, before: str, after: str, said: str
) -> None:
    job = replace(job, reply_tokens=84)
    commands.run("data", job)
    commands.run(before, job)
    commands.run("data", replace(job, reply_tokens=144))
    with pytest.raises(UserError, match=said):
        commands.run(after, job)


def test_a_shortened_training_goes_to_the_work_folder(tmp_path: Path) -> None:
    whole = jobs.job(None, tmp_path, tmp_path / "work", tokens=None)
    short = jobs.job(None, tmp_path, tmp_path / "work", tokens=5)
    assert whole.weights == tmp_path / "drafters" / "weights" / whole.target
    assert short.weights == tmp_path / "work" / "weights"


@pytest.mark.parametrize("changes", [{"attention_bias": True}, {"mlp_bias": True}])
def test_blocks_that_training_does_not_follow_are_refused_before_it(changes: dict[str, bool]) -> None:
    with pytest.raises(UserError, match="not plain Llama blocks"):
        parts_of_model("odd", "", tiny_model(num_hidden_layers=8, **changes))


@pytest.mark.parametrize("what", ["data", "all"])
def test_a_target_that_cannot_be_trained_for_is_refused_before_its_data(what: str, job: Job) -> None:
    odd = saved(Path(job.target).with_name("odd"), "qwen3", num_hidden_layers=8)
    with pytest.raises(UserError, match="not plain Llama blocks"):
        commands.run(what, replace(job, target=str(odd)))
    assert not job.replies.exists() and not job.work.exists()


def test_the_states_lie_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTBOARD_CACHE", str(tmp_path / "cache"))
    found = jobs.job(None, tmp_path, None)
    assert found.work == tmp_path / "cache" / "training" / found.target


def test_a_norm_on_queries_is_refused_and_so_is_a_shallow_target() -> None:
    with pytest.raises(UserError, match="q_norm"):
        parts_of_model("odd", "", tiny_model("qwen3", num_hidden_layers=8))
    with pytest.raises(UserError, match="at least 7"):
        taps_of(6)
    assert taps_of(7) == (2, 3, 4, -1)


def test_a_text_shorter_than_a_chain_has_no_chains() -> None:
    right, starts = torch.ones(2, 1, dtype=torch.bool), torch.zeros(2, 2, dtype=torch.bool)
    assert draft_model._runs(right, starts, 3).shape == (0, 3)
