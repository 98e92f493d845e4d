"""`draftboard train` on a toy, from prompts to weights that draft, killed on the way."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftboard.errors import UserError
from draftboard.measure.loading import load_target
from draftboard_drafters.training import commands, jobs, loop, recipes
from draftboard_drafters.training.batches import Texts
from draftboard_drafters.training.evaluate import greedy_sampler
from draftboard_drafters.training.jobs import Job
from draftboard_drafters.training.parts import parts_of, parts_of_model
from draftboard_drafters.training.recipes import draft_model
from draftboard_drafters.training.replies import Replies
from draftboard_drafters.training.states import Store, layout_of, taps_of
from loaded import saved
from shipped import MODULES
from tiny import tiny_model
from training_toy import Killed, dying_at, toy_job

CPU = torch.device("cpu")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return toy_job(tmp_path, monkeypatch)


def _store(job: Job) -> Store:
    parts = parts_of(job.target)
    layout = layout_of(parts.id, parts.layers, parts.geometry.hidden_size)
    return Store(job.work / "states", layout)


def test_a_toy_is_trained_through_kills_and_drafts(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(loop, "SAVE_EVERY", -1.0)
    with pytest.raises(Killed):
        commands.run("eagle3", replace(job, say=dying_at("held-out", 3)))
    assert (job.work / "eagle3-tokens-600" / "state.pt").exists(), "nothing was saved, so nothing goes on"
    commands.run("eagle3", job)
    card = json.loads((job.weights / "eagle3" / "card.json").read_text())
    assert card["token_visits"] >= 600
    target = load_target(job.target, dtype=torch.float32, device=CPU, max_context=None)
    checkpoint = str(job.weights / "eagle3")
    drafter = MODULES["eagle3"].build(target, greedy_sampler(CPU), checkpoint=checkpoint)
    assert drafter.weights.origin == "trained here"
    assert drafter.num_speculative_tokens == 3


def test_states_of_other_replies_are_refused(job: Job) -> None:
    commands.run("data", job)
    first, second, *rest = job.replies.read_text().splitlines(keepends=True)
    for lines in ([second, first, *rest], [second, *rest], rest[:1]):
        job.replies.write_text("".join(lines))
        with pytest.raises(UserError, match=r"holds states of other texts than .*; bring back the file"):
            commands.run("data", replace(job, reply_tokens=1))
    job.replies.write_text("".join([first, second, *rest]))
    commands.run("data", job)


def test_a_target_that_changed_in_place_is_not_trained_on_the_states_of_before(job: Job) -> None:
    commands.run("data", job)
    weights = Path(job.target) / "model.safetensors"
    tensors = load_file(weights)
    save_file({name: tensor + 0.01 for name, tensor in tensors.items()}, weights, {"format": "pt"})
    with pytest.raises(UserError, match=r"holds states of .*; use another folder"):
        commands.run("mtp", job)


def test_the_draft_model_is_trained_and_shares_the_tokenizer(job: Job) -> None:
    commands.run("data", job)
    commands.run("draft_model", replace(job, tokens=100))
    target = load_target(job.target, dtype=torch.float32, device=CPU, max_context=None)
    drafter = MODULES["draft_model"].build(
        target, greedy_sampler(CPU), model=str(job.weights / "draft_model"), num_speculative_tokens=2
    )
    assert drafter.weights.origin == "trained here"
    assert drafter.weights.training is not None


@pytest.mark.parametrize(
    "content", [None, "{}", '{"model_type": "llama"}'], ids=["empty", "no type", "no weights"]
)
def test_a_target_that_cannot_be_loaded_is_one_line(content: str | None, job: Job, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    if content is not None:
        (folder / "config.json").write_text(content)
    with pytest.raises(
        UserError, match=r"cannot load .*broken' as a causal LM from a folder: .*; give a folder"
    ):
        commands.run("data", replace(job, target=str(folder)))


def test_an_unknown_word_names_what_can_be_trained(job: Job) -> None:
    with pytest.raises(UserError, match="did you mean 'eagle3'"):
        commands.run("eagle", job)


def test_a_method_without_data_or_its_predecessor_says_what_to_do(job: Job) -> None:
    with pytest.raises(UserError, match=f"draftboard train data --target {job.target}$"):
        commands.run("mtp", job)
    commands.run("data", job)
    with pytest.raises(
        UserError,
        match="dflash has no weights with a card to go on from; train them: draftboard train dflash",
    ):
        commands.run("dspark", job)


def test_methods_come_after_those_they_start_from() -> None:
    order = recipes.in_order(recipes.modules())
    assert sorted(order) == ["dflash", "draft_model", "dspark", "eagle3", "mtp"]
    assert order.index("dflash") < order.index("dspark")


@pytest.mark.parametrize(
    "before, after, said",
    [
        ("mtp", "mtp", "holds a training whose data is"),
        ("dflash", "dspark", "was trained on data .* and the states are of"),
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
