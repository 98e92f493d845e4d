"""An MTP module limited to some ids: it drafts the best of them, and only them."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from draftboard.drafter import DraftSampler
from draftboard.errors import UserError
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.measure.target import TargetModel
from draftboard.record.records import Sampling
from draftboard_drafters import checkpoints, mtp
from draftboard_drafters.checkpoints.token_maps import (
    head_rows,
    ids_sha256,
    read_token_map,
    write_token_map,
)
from draftboard_drafters.training.evaluate import Measured
from draftboard_drafters.training.report import _shipped
from shipped import MODULES
from tiny import tiny_model, tiny_target
from training_factory import SIZES, VOCABULARY, recipe, tiny_store

CPU = torch.device("cpu")
SOME = [1, 4, 9, 16, 25, 30]


def sampler(temperature: float = 0.0) -> DraftSampler:
    return Sampler(Sampling(temperature=temperature), Randomness(0, CPU))


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mtp")
    method = recipe("mtp", tiny_store(folder / "store", texts=2))
    method.ship(method.initial(0), folder / "mtp")
    return folder / "mtp"


def drafts(shipped: Path, drawn_by: DraftSampler, token_map: Path | None) -> mtp.SerialDrafter:
    found = MODULES["mtp"].build(
        tiny_target(**SIZES),
        drawn_by,
        checkpoint=str(shipped),
        token_map="all" if token_map is None else str(token_map),
    )
    dice = torch.Generator().manual_seed(1)
    found.prefill(torch.arange(9), torch.randn(8, 1, tiny_target(**SIZES).hidden_size, generator=dice))
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_rows_are_the_heads_bit_for_bit(dtype: torch.dtype) -> None:
    model = tiny_model(hidden_size=96, vocab_size=VOCABULARY).to(dtype)
    target = TargetModel(model, id="wide", max_context=32)
    assert torch.equal(head_rows(target, torch.tensor(SOME)), model.lm_head.weight[SOME])


@pytest.mark.parametrize(
    "head",
    [lambda logits: 5 * torch.tanh(logits / 5), lambda logits: logits + 0.25],
    ids=["capped", "biased"],
)
def test_a_head_that_is_more_than_a_product_is_not_limited(
    head: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_target(**SIZES)
    plain = target.head
    monkeypatch.setattr(target, "head", lambda states: head(plain(states)))
    with pytest.raises(UserError, match="the head of 'tiny-llama-0' is more than a product"):
        head_rows(target, torch.tensor(SOME))


def test_a_map_that_its_card_does_not_speak_of_is_refused(shipped: Path, tmp_path: Path) -> None:
    write_token_map(tmp_path, SOME)
    card = {"vocabulary": ids_sha256(torch.tensor(SOME))}
    (tmp_path / "card.json").write_text(json.dumps(card))
    assert read_token_map(str(tmp_path), tiny_target(**SIZES)).tolist() == SOME
    write_token_map(tmp_path, SOME[1:])
    with pytest.raises(UserError, match=r"card\.json beside it speaks of .*; fetch the folder again"):
        read_token_map(str(tmp_path), tiny_target(**SIZES))


@pytest.mark.parametrize("card", ["no json", "[]", '{"vocabulary": 49152}'])
def test_a_card_beside_a_map_of_ones_own_has_no_say(card: str, tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text(card)
    (tmp_path / "mine.json").write_text("[1, 2]")
    assert read_token_map(str(tmp_path / "mine.json"), tiny_target(**SIZES)).tolist() == [1, 2]
    write_token_map(tmp_path, [1, 2])
    with pytest.raises(UserError, match=r"is no JSON|expected an object|speaks of 49152"):
        read_token_map(str(tmp_path), tiny_target(**SIZES))


def test_a_map_of_every_id_changes_no_draft(shipped: Path, tmp_path: Path) -> None:
    write_token_map(tmp_path, range(VOCABULARY))
    whole, mapped = (drafts(shipped, sampler(), one) for one in (None, tmp_path))
    assert torch.equal(whole.propose(3).tokens, mapped.propose(3).tokens)
    assert whole.weights.sha256 != mapped.weights.sha256


def test_only_the_ids_of_the_map_are_drafted_and_of_those_the_best(shipped: Path, tmp_path: Path) -> None:
    write_token_map(tmp_path, SOME)
    whole, mapped = (drafts(shipped, sampler(), one) for one in (None, tmp_path))
    logits = whole._logits(whole.state)[0]
    assert int(mapped.propose(1).tokens) == max(SOME, key=lambda id: float(logits[id]))
    assert set(mapped.propose(3).tokens.tolist()) <= set(SOME)


def test_the_law_is_zero_outside_of_the_map(shipped: Path, tmp_path: Path) -> None:
    write_token_map(tmp_path, SOME)
    laws = drafts(shipped, sampler(1.0), tmp_path).propose(3).probs
    assert laws is not None and laws.shape == (3, VOCABULARY)
    torch.testing.assert_close(laws.sum(-1), torch.ones(3))
    assert laws[:, SOME].sum() == laws.sum()


def test_own_is_the_map_beside_the_weights_whatever_they_are(shipped: Path, tmp_path: Path) -> None:
    """A suite asks for `own`; somebody's own checkpoint in its place must not get another one's map."""
    target = tiny_target(**SIZES)
    own = MODULES["mtp"].build(target, sampler(), checkpoint=str(shipped), token_map="own")
    assert own.weights.sha256 == drafts(shipped, sampler(), shipped).weights.sha256
    bare = tmp_path / "bare"
    shutil.copytree(shipped, bare, ignore=shutil.ignore_patterns("token_map.json"))
    with pytest.raises(UserError, match=r"bare has no token_map\.json; --option token_map=all drafts any id"):
        MODULES["mtp"].build(target, sampler(), checkpoint=str(bare), token_map="own")


def test_an_evaluation_takes_the_map_beside_the_weights_that_it_judges(shipped: Path) -> None:
    arm = Measured("mtp", 2, {"checkpoint": "shipped", "token_map": "own"}, None, 1.0)
    judged = _shipped(shipped, tiny_target(**SIZES), arm)
    assert judged.weights.sha256 == drafts(shipped, sampler(), shipped).weights.sha256


def test_other_ids_are_other_weights(shipped: Path, tmp_path: Path) -> None:
    """What is drafted decides an arm's result, so that it must be a part of its identity."""
    hashes = set[str | None]()
    for ids in (SOME, SOME[1:]):
        write_token_map(tmp_path, ids)
        hashes.add(drafts(shipped, sampler(), tmp_path).weights.sha256)
    assert len(hashes) == 2


def test_a_trained_module_has_the_words_that_its_loss_read(shipped: Path) -> None:
    assert read_token_map(str(shipped), tiny_target(**SIZES)).tolist() == list(range(VOCABULARY))


def test_an_inspection_tells_of_the_map_beside_the_weights(shipped: Path, tmp_path: Path) -> None:
    said = checkpoints.inspect(str(shipped)).facts["token map"]
    assert said == f"{VOCABULARY} ids beside the weights; token_map=own drafts no others"
    bare = tmp_path / "bare"
    shutil.copytree(shipped, bare, ignore=shutil.ignore_patterns("token_map.json"))
    assert "token map" not in checkpoints.inspect(str(bare)).facts
    (bare / "token_map.json").write_text("[1")
    assert checkpoints.inspect(str(bare)).facts["token map"].startswith("not to be used: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file or directory; name a JSON list of ids, or own or all"),
        ("[1, 2", "is no JSON"),
        ("{}", "expected a list of token ids, found {}"),
        ("[]", "expected a list of token ids"),
        ("[1, true]", "expected a list of token ids"),
        ("[3, 3]", "names an id twice: 1 of its 2 ids are different"),
        ("[3, 99999999999999999999999]", "99999999999999999999999 is none of the 32 ids"),
        ("[3, 32]", "32 is none of the 32 ids of 'tiny-llama-0'"),
        ("[-1, 3]", "-1 is none of the 32 ids"),
    ],
)
def test_what_is_no_map_is_refused(text: str | None, said: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "token_map.json").write_text(text)
    with pytest.raises(UserError, match=said):
        read_token_map(str(tmp_path / "token_map.json"), tiny_target(**SIZES))


def test_a_head_of_its_own_is_not_limited(shipped: Path) -> None:
    target = tiny_target(**SIZES)
    loaded = checkpoints.load(str(shipped))
    head = torch.randn(VOCABULARY, target.hidden_size)
    own = dataclasses.replace(loaded, tensors={**loaded.tensors, "lm_head.weight": head})
    with pytest.raises(UserError, match="has a head of its own, which no token map can limit"):
        checkpoints.serve(own, target, torch.tensor(SOME))
