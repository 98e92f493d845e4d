"""A draft model: its cache, its vocabulary, its weights, and that its guesses are worth something."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models
from transformers import PreTrainedTokenizerFast

from draftboard.drafter import NO_WEIGHTS, Draft, UserError
from draftboard.measure.clock import Clock
from draftboard.measure.decode import Reply, decode
from draftboard.measure.rehearsal import sampler
from draftboard.measure.sampling import Sampler, Verdict
from draftboard.measure.target import TargetModel
from draftboard_drafters import draft_model
from draftboard_drafters.draft_model import DraftModel
from tiny import plain_greedy, tiny_model, tiny_target

PROMPT = [3, 1, 4, 1, 5]


def tokenizer(size: int, special: dict[int, str] | None = None, **renamed: str) -> PreTrainedTokenizerFast:
    """Ids 0..size-1 spelled t0, t1, ...; `t5="x"` renames id 5, `special` turns ids into special tokens."""
    words = {f"t{i}": i for i in range(size) if i not in (special or {})}
    vocab = {renamed.get(word, word): i for word, i in words.items()}
    inner = Tokenizer(models.WordLevel(vocab, unk_token=next(iter(vocab))))
    for name in (special or {}).values():
        inner.add_special_tokens([AddedToken(name, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def as_target(model: Any, words: Any = None, max_context: int = 256) -> TargetModel:
    return TargetModel(
        model, id="some-target", max_context=max_context, tokenizer=words, stop_ids=frozenset()
    )


def as_draft(model: Any, words: Any = None, max_context: int = 256) -> TargetModel:
    return TargetModel(model, id="some-draft", max_context=max_context, tokenizer=words)


def reply(target: TargetModel, draft: TargetModel, count: int, k: int = 4, chooses: Any = None) -> Reply:
    chooses = chooses or sampler(target)
    drafter = DraftModel(target, chooses, draft, k, NO_WEIGHTS)
    prompt = torch.tensor(PROMPT)
    return decode(target, drafter, prompt, chooses, Clock(target.device), max_new_tokens=count)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("k", [1, 4])
def test_a_copy_of_the_target_is_believed_every_time(family: str, k: int) -> None:
    rounds = 200 // (k + 1)
    found = reply(tiny_target(family), as_draft(tiny_model(family)), 1 + rounds * (k + 1), k)
    assert found.rounds.accepted == (k,) * rounds
    assert found.rounds.emitted == (k + 1,) * rounds


class Rejecting(Sampler):
    """Keeps 0, 1, 2, ... guesses in turn and rejects the next, whatever the target says."""

    def __init__(self, sound: Sampler, k: int) -> None:
        super().__init__(sound.settings, sound._randomness)
        self.k, self.round = k, 0

    def verify(self, logits: torch.Tensor, draft: Draft) -> Verdict:
        verdict = super().verify(logits, draft)
        most, self.round = self.round % (self.k + 1), self.round + 1
        if verdict.hits <= most:
            return verdict
        other = (draft.tokens[most : most + 1] + 1) % 96
        return Verdict.of(torch.cat([draft.tokens[:most], other]), most)


def test_a_copy_is_believed_for_200_rounds_after_forced_rejections() -> None:
    room: dict[str, Any] = {"max_position_embeddings": 700}
    target, draft = tiny_target(max_context=700, **room), as_draft(tiny_model(**room), max_context=700)
    found = reply(target, draft, 1 + 40 * (1 + 2 + 3 + 4 + 5), 4, Rejecting(sampler(target), 4))
    assert found.rounds.accepted == (0, 1, 2, 3, 4) * 40


def test_the_draft_cache_holds_the_committed_tokens_and_nothing_else() -> None:
    target, draft = tiny_target(), as_draft(tiny_model(seed=1))
    drafter = DraftModel(target, sampler(target), draft, 4, NO_WEIGHTS)
    with torch.inference_mode():
        drafter.prefill(torch.tensor(PROMPT), torch.empty(0))
        assert draft.length == len(PROMPT) - 1
        guesses = drafter.propose(9).tokens.tolist()
        assert draft.length == len(PROMPT) + 3
        drafter.commit(torch.tensor([*guesses[:2], 95]), torch.empty(0))
        assert draft.length == len(PROMPT) + 2
        drafter.release()
        assert draft.length == 0


def test_a_poor_draft_changes_no_token() -> None:
    target = tiny_target()
    found = reply(target, as_draft(tiny_model(seed=7)), 40)
    assert list(found.token_ids) == plain_greedy(tiny_model(), PROMPT, 40)
    assert sum(found.rounds.accepted) < sum(found.rounds.proposed) / 2


def test_guesses_are_the_drafts_own_greedy_text() -> None:
    target, other = tiny_target(), tiny_model("qwen3", seed=3)
    drafter = DraftModel(target, sampler(target), as_draft(other), 6, NO_WEIGHTS)
    with torch.inference_mode():
        drafter.prefill(torch.tensor(PROMPT), torch.empty(0))
        draft = drafter.propose(9)
    assert draft.tokens.tolist() == plain_greedy(other, PROMPT, 6)
    assert draft.probs is None


def test_laws_are_the_drafts_own_after_every_guess() -> None:
    target, other = tiny_target(), tiny_model("qwen3", seed=3)
    drafter = DraftModel(target, sampler(target, 0.7), as_draft(other), 5, NO_WEIGHTS)
    with torch.inference_mode():
        drafter.prefill(torch.tensor(PROMPT), torch.empty(0))
        draft = drafter.propose(9)
        text = torch.tensor([PROMPT + draft.tokens.tolist()])
        logits = other(input_ids=text).logits[0, len(PROMPT) - 1 : -1]
    assert draft.probs is not None
    assert torch.allclose(draft.probs, torch.softmax(logits / 0.7, dim=-1), atol=1e-5)


def test_a_text_that_outgrows_the_drafts_context_gets_no_guesses() -> None:
    target, draft = tiny_target(), as_draft(tiny_model(), max_context=20)
    found = reply(target, draft, 30)
    assert list(found.token_ids) == plain_greedy(tiny_model(), PROMPT, 30)
    within, beyond = found.rounds.proposed[:3], found.rounds.proposed[-10:]
    assert within == (4, 4, 4)
    assert beyond == (0,) * 10


def test_a_prompt_longer_than_the_drafts_context_gets_no_guesses() -> None:
    found = reply(tiny_target(), as_draft(tiny_model(), max_context=3), 6)
    assert found.rounds.proposed == (0,) * 5


def drawn_ids(target: TargetModel, draft: TargetModel, temperature: float) -> set[int]:
    drafter = DraftModel(target, sampler(target, temperature), draft, 4, NO_WEIGHTS)
    seen: set[int] = set()
    with torch.inference_mode():
        for first in range(60):
            drafter.prefill(torch.tensor([first, first + 1]), torch.empty(0))
            guesses = drafter.propose(4)
            seen |= set(guesses.tokens.tolist())
            assert guesses.probs is None or guesses.probs.shape[1] == target.vocab_size
    return seen


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize(("draft_rows", "target_rows"), [(96, 128), (128, 96), (96, 96)])
def test_vocabularies_padded_differently_never_yield_a_padding_id(
    draft_rows: int, target_rows: int, temperature: float
) -> None:
    words = tokenizer(90)
    target = as_target(tiny_model(vocab_size=target_rows), words)
    draft = as_draft(tiny_model(seed=1, vocab_size=draft_rows), words)
    seen = drawn_ids(target, draft, temperature)
    assert max(seen) < 90
    assert len(seen) > 20


def test_without_the_mask_padding_ids_would_be_drawn() -> None:
    """The test above would not notice a missing mask if the draft never favoured a padding id."""
    words = tokenizer(96)
    draft = as_draft(tiny_model(seed=1), words)
    assert max(drawn_ids(as_target(tiny_model(), words), draft, 0.0)) >= 90


def test_ids_that_only_one_model_has_are_never_proposed() -> None:
    target, draft = as_target(tiny_model(), tokenizer(80)), as_draft(tiny_model(seed=1), tokenizer(96))
    assert draft_model.shared_ids(target, draft).nonzero().flatten().tolist() == list(range(80))
    target, draft = as_target(tiny_model(), tokenizer(96)), as_draft(tiny_model(seed=1), tokenizer(70))
    assert max(drawn_ids(target, draft, 1.5)) < 70


def refusal(target: TargetModel, draft: TargetModel) -> str:
    with pytest.raises(UserError) as caught:
        draft_model.shared_ids(target, draft)
    message = str(caught.value)
    assert "some-draft" in message and "some-target" in message and "\n" not in message
    return message


def test_two_swapped_ids_are_another_tokenizer_and_the_first_is_named() -> None:
    target = as_target(tiny_model(), tokenizer(96))
    draft = as_draft(tiny_model(), tokenizer(96, t17="t40", t40="t17"))
    assert "id 17 is 't40' to it and 't17' to the target" in refusal(target, draft)


def test_special_tokens_may_be_named_differently_but_are_not_proposed() -> None:
    target = as_target(tiny_model(), tokenizer(96, special={95: "<reserved>"}))
    draft = as_draft(tiny_model(), tokenizer(96, special={95: "<tool>"}))
    shared = draft_model.shared_ids(target, draft)
    assert shared.nonzero().flatten().tolist() == list(range(95))


def test_a_special_token_is_not_excused_from_differing_from_an_ordinary_one() -> None:
    target = as_target(tiny_model(), tokenizer(96))
    draft = as_draft(tiny_model(), tokenizer(96, special={95: "<tool>"}))
    assert "id 95" in refusal(target, draft)


def test_without_tokenizers_only_equal_sizes_pass() -> None:
    assert draft_model.shared_ids(as_target(tiny_model()), as_draft(tiny_model())).all()
    assert "64 rows, not 96" in refusal(as_target(tiny_model()), as_draft(tiny_model(vocab_size=64)))


@pytest.mark.parametrize("bare", ["draft", "target"])
def test_one_tokenizer_alone_cannot_be_compared(bare: str) -> None:
    words = tokenizer(96)
    target = as_target(tiny_model(), None if bare == "target" else words)
    draft = as_draft(tiny_model(), None if bare == "draft" else words)
    assert f"'some-{bare}' has no tokenizer files" in refusal(target, draft)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved draft model with its tokenizer."""
    place = tmp_path_factory.mktemp("draft")
    tiny_model(seed=0, max_position_embeddings=512).save_pretrained(place)
    tokenizer(96).save_pretrained(place)
    return place


def test_builds_from_a_folder_in_the_targets_dtype_and_describes_its_weights(folder: Path) -> None:
    target = as_target(tiny_model().to(torch.bfloat16), tokenizer(96))
    drafter: Any = draft_model.build(target, sampler(target), model=str(folder), num_speculative_tokens=3)
    assert drafter.model.dtype == torch.bfloat16
    assert drafter.num_speculative_tokens == 3
    parameters = sum(p.numel() for p in tiny_model(max_position_embeddings=512).parameters())
    assert drafter.weights.bytes == 2 * parameters
    file = folder / "model.safetensors"
    assert drafter.weights.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert drafter.weights.origin is None


def test_another_dtype_can_be_asked_for(folder: Path) -> None:
    target = as_target(tiny_model(), tokenizer(96))
    drafter: Any = draft_model.build(target, sampler(target), model=str(folder), dtype="bfloat16")
    assert drafter.model.dtype == torch.bfloat16
    with pytest.raises(UserError, match="bfloat61"):
        draft_model.build(target, sampler(target), model=str(folder), dtype="bfloat61")


def test_a_model_read_from_disk_is_believed_like_the_one_that_was_saved(folder: Path) -> None:
    target = as_target(tiny_model(max_position_embeddings=512), tokenizer(96))
    drafter = draft_model.build(target, sampler(target), model=str(folder))
    prompt = torch.tensor(PROMPT)
    found = decode(target, drafter, prompt, sampler(target), Clock(target.device), max_new_tokens=26)
    assert found.rounds.accepted == (4,) * 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_speculative_tokens": 0}, "num_speculative_tokens must be at least 1, found 0"),
        ({"model": "/no/such/folder"}, "/no/such/folder"),
    ],
)
def test_what_cannot_draft_is_refused(folder: Path, options: dict[str, Any], said: str) -> None:
    target = as_target(tiny_model(), tokenizer(96))
    with pytest.raises(UserError) as caught:
        draft_model.build(target, sampler(target), **{"model": str(folder), **options})
    assert said in str(caught.value)
