"""The training loop: it learns, it is repeatable, and a kill at any step changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from draftboard.errors import UserError
from draftboard_drafters.training import loop
from draftboard_drafters.training.batches import Batch
from draftboard_drafters.training.loop import Settings, State, train
from draftboard_drafters.training.states import Store
from training_factory import RECIPES, everything, recipe, tiny_store

SETTINGS = Settings(tokens=400, rate=3e-3, rows=40, evaluations=3)


class Killed(Exception):
    """The process is gone."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return tiny_store(tmp_path_factory.mktemp("store"))


def learn(name: str, store: Store, folder: Path, settings: Settings = SETTINGS) -> State:
    texts = everything(store)
    texts.held_out = texts.train[:2]
    return train(recipe(name, store), texts, settings, folder, lambda line: None)


def dying_after(steps: int) -> Callable[..., float]:
    """A training step that works so many times."""
    real, left = loop._step, [steps]

    def step(*arguments: Any) -> float:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return real(*arguments)

    return step


@pytest.mark.parametrize("native", [True, False], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("name", RECIPES)
def test_training_on_a_few_texts_learns_them(
    name: str, native: bool, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "native_bfloat16", lambda: native)
    state = learn(name, store, tmp_path, Settings(tokens=5_000, rate=8e-3, rows=120, evaluations=2))
    assert state.curve[-1].length > state.curve[0].length + 0.4


def test_bfloat16_products_leave_weights_gradients_and_labels_in_float32(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "native_bfloat16", lambda: True)
    method, texts = recipe("dflash", store), everything(store)
    parameters = {name: tensor.requires_grad_(True) for name, tensor in method.initial(0).items()}
    batch = texts.batch(texts.train)
    with loop._arithmetic():
        rounded = method.slots.block(parameters, batch, 0)
        loss = method.outcome(parameters, batch, 0).loss
    loss.backward()
    exact = method.slots.block(parameters, batch, 0)
    torch.testing.assert_close(rounded.laws, exact.laws, rtol=0, atol=0)
    assert not torch.equal(rounded.states, exact.states), "the products were not rounded"
    assert {t.dtype for t in (rounded.laws, loss, *(p.grad for p in parameters.values()))} == {torch.float32}


@pytest.mark.parametrize("name", ["eagle3", "mtp"])
def test_every_chain_of_a_reply_is_judged_where_prompts_are_left_out(
    name: str, store: Store, tmp_path: Path
) -> None:
    """As it is beside a text without a prompt, where nothing is left out."""
    settings = Settings(tokens=5_000, rate=8e-3, rows=120, evaluations=1)
    parameters = learn(name, store, tmp_path, settings).parameters
    method, texts, first = recipe(name, store), everything(store), 0
    for text in texts.train:
        batch = texts.batch([text])
        short, whole = (method.outcome(parameters, one, 0).hits for one in (batch, padded(batch)))
        assert torch.equal(short, whole)
        first += int(short[0, 1:].sum())
    assert first > 0, "no first chain was right past its first draft: leaving it out would not be seen"


def padded(batch: Batch) -> Batch:
    """The batch with a row more, which is empty."""
    one = {
        name: torch.cat([tensor, torch.zeros_like(tensor[:1])])
        for name in ("ids", "states", "prompts", "lengths")
        if (tensor := getattr(batch, name)) is not None
    }
    return Batch(**one)


def test_a_training_begun_in_other_products_is_not_continued(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "native_bfloat16", lambda: True)
    learn("mtp", store, tmp_path)
    monkeypatch.setattr(loop, "native_bfloat16", lambda: False)
    with pytest.raises(UserError, match="holds a training whose products is bfloat16, not float32"):
        learn("mtp", store, tmp_path)


@pytest.mark.parametrize("steps", [1, 4, 8])
def test_a_training_killed_at_any_step_ends_as_one_that_was_not(
    steps: int, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SAVE_EVERY", -1.0)
    whole = learn("mtp", store, tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(loop, "_step", dying_after(steps))
        learn("mtp", store, tmp_path / "killed")
    again = learn("mtp", store, tmp_path / "killed")
    assert (again.step, again.tokens) == (whole.step, whole.tokens)
    assert again.step > steps
    for key, tensor in whole.parameters.items():
        assert torch.equal(again.parameters[key], tensor), key
    assert [p.length for p in again.curve] == [p.length for p in whole.curve]


def test_a_kill_while_saving_costs_no_more_than_that_save(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SAVE_EVERY", -1.0)
    whole = learn("mtp", store, tmp_path / "whole")
    real, saves = torch.save, [0]

    def dying(held: Any, file: Path) -> None:
        saves[0] += 1
        if saves[0] == 4:
            Path(file).write_bytes(b"half of it")
            raise Killed
        real(held, file)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(torch, "save", dying)
        learn("mtp", store, tmp_path / "killed")
    again = learn("mtp", store, tmp_path / "killed")
    assert all(torch.equal(again.parameters[key], tensor) for key, tensor in whole.parameters.items())


def test_a_damaged_save_says_what_to_do(store: Store, tmp_path: Path) -> None:
    (tmp_path / "state.pt").write_bytes(b"half of it")
    with pytest.raises(UserError, match="remove its folder to begin anew"):
        learn("mtp", store, tmp_path)


def test_going_on_with_other_data_or_words_is_refused(store: Store, tmp_path: Path) -> None:
    texts, method = everything(store), recipe("mtp", store)
    texts.held_out = texts.train[:2]
    train(method, texts, SETTINGS, tmp_path, lambda line: None, {"data": "one"})
    with pytest.raises(UserError, match="whose data is one, not two"):
        train(method, texts, SETTINGS, tmp_path, lambda line: None, {"data": "two"})


def test_a_finished_training_is_not_trained_further(store: Store, tmp_path: Path) -> None:
    first = learn("eagle3", store, tmp_path)
    second = learn("eagle3", store, tmp_path)
    assert (first.step, first.cpu_seconds) == (second.step, second.cpu_seconds)


def test_going_on_with_other_settings_is_refused(store: Store, tmp_path: Path) -> None:
    learn("mtp", store, tmp_path)
    with pytest.raises(UserError, match="whose tokens is 400, not 700; finish it as it was begun"):
        learn("mtp", store, tmp_path, Settings(tokens=700, rate=3e-3, rows=40, evaluations=3))


def test_the_curve_holds_the_start_the_end_and_the_points_between(store: Store, tmp_path: Path) -> None:
    state = learn("eagle3", store, tmp_path)
    tokens = [point.tokens for point in state.curve]
    assert tokens[0] == 0
    assert tokens[-1] == state.tokens >= SETTINGS.tokens
    assert len(tokens) >= 1 + SETTINGS.evaluations
    assert all(point.length == pytest.approx(1 + sum(point.positions)) for point in state.curve)
    assert [p.cpu_seconds for p in state.curve] == sorted(p.cpu_seconds for p in state.curve)
