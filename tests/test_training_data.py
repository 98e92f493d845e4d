"""Training texts: prompts kept apart from the benchmark, replies in batches, states on disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from draftboard.drafter import FINAL_NORM
from draftboard.errors import UserError
from draftboard.record.tasks import list_tasks, load_task
from draftboard_drafters.training import prompts
from draftboard_drafters.training.batches import Texts
from draftboard_drafters.training.generation import BatchedReplies
from draftboard_drafters.training.replies import Replies
from draftboard_drafters.training.states import Layout, Store
from tiny import plain_greedy, tiny_model, tiny_target
from training_factory import tiny_store

ROOT = Path(__file__).resolve().parents[1]
LAYOUT = Layout("tiny", (2, -1), 4)


def benchmark() -> list[str]:
    """Every turn of every task that ships."""
    return [
        turn for name in list_tasks(ROOT) for prompt in load_task(name, ROOT).prompts for turn in prompt.turns
    ]


def test_no_training_prompt_shares_13_words_with_a_benchmark_prompt() -> None:
    texts = [prompt.text for prompt in prompts.read(ROOT / "drafters" / "train_prompts")]
    assert len(texts) == 13_651
    assert prompts.shared_with(texts, benchmark()) == []


def test_a_shared_run_of_13_words_is_found_wherever_it_stands() -> None:
    words = [f"word{i}" for i in range(30)]
    asked = " ".join(words)
    inside = "So: " + ", ".join(words[7:20]).upper() + "!"
    twelve = " ".join(words[7:19]) + " other"
    assert prompts.shared_with([twelve, inside, asked], [asked]) == [1, 2]
    assert prompts.shared_with(["Short one?", "Short"], ["short ONE"]) == [0]


def test_every_beginning_of_the_order_has_each_kind_in_its_share() -> None:
    many = [prompts.Prompt(str(i), "chat" if i % 4 else "code", "") for i in range(400)]
    order = prompts.ordered(many)
    assert sorted(p.id for p in order) == sorted(p.id for p in many)
    assert order == prompts.ordered(many) != many
    assert 20 <= sum(p.kind == "code" for p in order[:100]) <= 30


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_batched_replies_are_the_greedy_ones(slots: int) -> None:
    target, model = tiny_target(), tiny_model()
    dice = torch.Generator().manual_seed(1)
    asked = [torch.randint(96, (n,), generator=dice).tolist() for n in (1, 9, 2, 7, 12, 3, 5)]
    batch = BatchedReplies(target, slots=slots, max_prompt=12, max_new_tokens=9, taps=(0, 2, FINAL_NORM))
    found = list(batch.answers(asked))
    said = {answer.prompt: answer.reply for answer in found}
    assert said == {tuple(ids): tuple(plain_greedy(model, ids, 9)) for ids in asked}
    for answer in found:
        target.begin((0, 2, FINAL_NORM))
        with torch.inference_mode():
            _, states = target.prefill(torch.tensor([*answer.prompt, *answer.reply]))
        torch.testing.assert_close(answer.states, states.bfloat16(), atol=1e-6, rtol=2**-7)


def test_a_batched_reply_ends_with_its_stop_token_and_frees_its_slot() -> None:
    model, asked = tiny_model(), [[5, 6, 7], [8, 9], [1, 2, 3, 4]]
    said = [plain_greedy(model, ids, 8) for ids in asked]
    stop = said[0][3]
    target = tiny_target(stop_ids=frozenset([stop]))
    batch = BatchedReplies(target, slots=2, max_prompt=4, max_new_tokens=8, taps=(1,))
    ends = [ids.index(stop) + 1 if stop in ids else 8 for ids in said]
    expected = {tuple(p): tuple(r[:end]) for p, r, end in zip(asked, said, ends, strict=True)}
    assert {answer.prompt: answer.reply for answer in batch.answers(asked)} == expected
    assert len(expected[(5, 6, 7)]) < 8


def test_a_target_without_a_fused_forward_is_refused_with_the_way_out() -> None:
    with pytest.raises(UserError, match="cannot be batched here"):
        BatchedReplies(tiny_target(fused=False), slots=1, max_prompt=4, max_new_tokens=4, taps=())


def test_replies_go_on_after_a_half_written_line(tmp_path: Path) -> None:
    replies = Replies(tmp_path / "replies.jsonl")
    replies.add((1, 2), (3,))
    replies.add((4,), (5, 6))
    with replies.file.open("a") as file:
        file.write('{"prompt":[7')
    assert list(replies) == [((1, 2), (3,)), ((4,), (5, 6))]
    Replies(replies.file).add((8,), (9,))
    assert [json.loads(line) for line in replies.file.read_text().splitlines()][-1]["prompt"] == [8]
    assert len(list(replies)) == 3


def test_a_store_gives_back_what_it_was_given(tmp_path: Path) -> None:
    store, states = Store(tmp_path, LAYOUT), torch.randn(3, 2, 4)
    store.append([5, 6, 7], 1, states)
    store.append([8], 0, states[:1])
    again = Store(tmp_path, LAYOUT)
    assert again.ids().tolist() == [5, 6, 7, 8]
    assert torch.equal(again.states()[:3], states.to(torch.bfloat16))
    assert [(row.start, row.prompt, row.length) for row in again.rows] == [(0, 1, 3), (3, 0, 1)]


def test_a_store_drops_what_a_killed_writer_left_behind(tmp_path: Path) -> None:
    states = torch.randn(3, 2, 4)
    Store(tmp_path, LAYOUT).append([5, 6, 7], 1, states)
    with (tmp_path / "ids.i32").open("ab") as ids, (tmp_path / "rows.jsonl").open("a") as rows:
        ids.write(b"\x01\x02\x03\x04\x05")
        rows.write('{"start": 3, "pro')
    assert Store(tmp_path, LAYOUT).ids().tolist() == [5, 6, 7]
    Store(tmp_path, LAYOUT).append([9], 0, states[:1])
    again = Store(tmp_path, LAYOUT)
    assert again.ids().tolist() == [5, 6, 7, 9]
    assert torch.equal(again.states()[3], states[0].to(torch.bfloat16))


def test_a_store_of_another_target_is_refused(tmp_path: Path) -> None:
    Store(tmp_path, LAYOUT)
    with pytest.raises(UserError, match="use another folder"):
        Store(tmp_path, Layout("other", (2, -1), 4))


def test_the_held_out_texts_stay_the_same_while_a_store_grows(tmp_path: Path) -> None:
    small = Texts([tiny_store(tmp_path / "a", texts=5)], held_out=2)
    large = Texts([tiny_store(tmp_path / "b", texts=9)], held_out=2)
    assert 0 < len(small.held_out) < 5
    assert small.held_out == [text for text in large.held_out if text in small.held_out + small.train]


def test_an_epoch_visits_every_text_once_in_groups_of_similar_length(tmp_path: Path) -> None:
    texts = Texts([tiny_store(tmp_path, texts=9)], held_out=9)
    groups = texts.groups(texts.train, 40, seed=1)
    visited = [text for group in groups for text in group]
    assert sorted(visited, key=str) == sorted(texts.train, key=str)
    assert max(len(group) for group in groups) > 1
    assert groups != texts.groups(texts.train, 40, seed=2)


def test_a_store_that_lost_its_end_is_refused_and_not_filled_with_zeros(tmp_path: Path) -> None:
    Store(tmp_path, LAYOUT).append([5, 6, 7], 1, torch.randn(3, 2, 4))
    with (tmp_path / "states.bf16").open("r+b") as file:
        file.truncate(10)
    with pytest.raises(UserError, match="make it anew"):
        Store(tmp_path, LAYOUT).append([9], 0, torch.randn(1, 2, 4))


def test_a_work_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be made a folder: .*; choose another --work"):
        Store(tmp_path / "file", LAYOUT)


@pytest.mark.parametrize(
    ("name", "text"),
    [("layout.json", ""), ("rows.jsonl", "{}\n"), ("states.bf16", "short"), ("states.bf16", None)],
    ids=["empty layout", "no row", "short states", "no states"],
)
def test_damaged_states_say_what_to_do(name: str, text: str | None, tmp_path: Path) -> None:
    Store(tmp_path, LAYOUT).append([5, 6, 7], 1, torch.randn(3, 2, 4))
    (tmp_path / name).unlink()
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(
        UserError, match=r"cannot be read .*; remove .*: states .* by `draftboard train data`"
    ):
        Store(tmp_path, LAYOUT).states()


@pytest.mark.parametrize(
    ("held", "asked", "fits"),
    [("r1", "r1", True), (None, "r1", True), ("r1", None, True), ("r1", "r2", False)],
)
def test_states_of_another_revision_of_the_target_are_refused(
    held: str | None, asked: str | None, fits: bool, tmp_path: Path
) -> None:
    Store(tmp_path, replace(LAYOUT, revision=held))
    if fits:
        Store(tmp_path, replace(LAYOUT, revision=asked))
    else:
        with pytest.raises(UserError, match=r"use another folder, and where the target itself changed"):
            Store(tmp_path, replace(LAYOUT, revision=asked))


def test_states_of_before_revisions_were_kept_can_be_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "layout.json").write_text('{"target": "tiny", "taps": [2, -1], "width": 4}')
    Store(tmp_path, replace(LAYOUT, revision="r1"))


def test_words_are_no_reply(tmp_path: Path) -> None:
    (tmp_path / "replies.jsonl").write_text('{"prompt": "abc", "response": [1]}\n')
    with pytest.raises(UserError, match="line 1: not a reply"):
        list(Replies(tmp_path / "replies.jsonl"))
