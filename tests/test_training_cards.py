"""A trained drafter is written with its card, loads as what it is, and is refused when tampered with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from draftboard.drafter import UserError
from draftboard.measure.loading import target_id
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.record.records import Sampling
from draftboard_drafters.checkpoints import shipped as shipped_weights
from draftboard_drafters.checkpoints.cards import training_of
from draftboard_drafters.checkpoints.shipped import SHIPPED as SHIPPED_WORD
from draftboard_drafters.checkpoints.shipped import located
from draftboard_drafters.training import jobs
from draftboard_drafters.training.cards import Data, write_card
from draftboard_drafters.training.loop import Settings, State, products, train
from draftboard_drafters.training.recipes import draft_model
from draftboard_drafters.training.tables import tables
from shipped import MODULES
from tiny import tiny_target
from tiny_folder import byte_tokenizer
from training_factory import EVERY, RECIPES, SIZES, everything, recipe, tiny_store

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = sorted(path.parent for path in (ROOT / "drafters" / "weights").glob("*/*/card.json"))


@pytest.fixture(scope="module", params=RECIPES)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, folder = request.param, tmp_path_factory.mktemp("weights") / request.param
    store = tiny_store(folder / "store", texts=3)
    texts, method = everything(store), recipe(name, store)
    texts.held_out = texts.train[:1]
    settings = Settings(tokens=60, rows=30, evaluations=1)
    state: State = train(method, texts, settings, folder / "work", lambda line: None)
    method.ship(state.parameters, folder / name)
    write_card(folder / name, method, settings, state, Data("ab" * 32, 2, 40), {})
    return folder / name


def test_a_trained_drafter_says_where_it_comes_from_and_what_it_cost(trained: Path) -> None:
    sampler = Sampler(Sampling(), Randomness(0, torch.device("cpu")))
    drafter = MODULES[trained.name].build(tiny_target(**SIZES), sampler, checkpoint=str(trained))
    assert drafter.weights.origin == "trained here"
    assert drafter.weights.training is not None
    assert drafter.weights.training.data_tokens == 40
    assert drafter.weights.training.token_visits >= 60
    assert drafter.weights.training.energy_joules is None
    assert json.loads((trained / "card.json").read_text())["products"] == products()


@pytest.mark.parametrize("name", EVERY)
def test_what_is_shipped_is_read_back(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_model, "load_tokenizer", lambda *arguments: byte_tokenizer())
    method = recipe(name, tiny_store(tmp_path / "store", texts=3))
    trained = {name: tensor + 0.01 for name, tensor in method.initial(0).items()}
    method.ship(trained, tmp_path / "shipped")
    found = method.shipped(tmp_path / "shipped")
    assert found.keys() == trained.keys()
    assert all(torch.equal(found[key], tensor.bfloat16().float()) for key, tensor in trained.items())


def test_weights_that_are_not_those_of_the_card_are_refused(trained: Path) -> None:
    file = trained / "model.safetensors"
    whole = file.read_bytes()
    try:
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(UserError, match="speaks of"):
            training_of(str(trained))
    finally:
        file.write_bytes(whole)
    assert training_of(str(trained)) is not None


def test_weights_without_a_card_have_an_unknown_training(tmp_path: Path) -> None:
    assert training_of(str(tmp_path)) is None


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda path: path.name)
def test_shipped_weights_are_those_of_their_card(folder: Path) -> None:
    card = json.loads((folder / "card.json").read_text())
    assert training_of(str(folder)) is not None
    assert card["held_out_length"] == pytest.approx(1 + sum(card["held_out_positions"]), abs=1e-3)
    assert card["curve"][-1]["tokens"] == card["token_visits"]


def test_the_readme_shows_the_cards() -> None:
    shipped = ROOT / "drafters" / "weights" / "smollm2-135m-instruct-q4_1"
    assert tables(shipped) in (ROOT / "drafters" / "README.md").read_text()


def test_a_curve_of_several_stages_is_read_by_its_visits(tmp_path: Path) -> None:
    visits = [0, 100, 200, 300, 400, 410, 420, 430, 440, 1000]
    curve = [{"tokens": 1000 * at, "cpu_seconds": 36.0 * at, "length": 1 + at / 1000} for at in visits]
    costs = {"parameters": 5, "data": {"tokens": 9}, "token_visits": 10**6, "cpu_seconds": 36_000.0}
    (tmp_path / "mtp").mkdir()
    (tmp_path / "mtp" / "card.json").write_text(
        json.dumps({**costs, "held_out_positions": [0.5], "curve": curve})
    )
    cells = tables(tmp_path).splitlines()[-1].split(" | ")
    assert [cell[:5] for cell in cells[1:]] == ["1.000", "1.200", "1.440", "2.000", "2.000"]
    assert cells[-1] == "2.000 (1.0 M, 10.00 h) |"


@pytest.mark.parametrize(
    "card",
    [None, "[1]", '{"parameters": 5}', '{"parameters": 5, "data": {"tokens": 9}, "token_visits": "x"}'],
)
def test_tables_of_no_cards_or_garbled_ones_are_one_line(card: str | None, tmp_path: Path) -> None:
    if card is not None:
        (tmp_path / "mtp").mkdir()
        (tmp_path / "mtp" / "card.json").write_text(card)
    with pytest.raises(
        UserError, match="no cards in" if card is None else r"mtp.card\.json lacks or garbles"
    ):
        tables(tmp_path)


def test_the_shipped_weights_stay_small() -> None:
    weights = [path for path in (ROOT / "drafters" / "weights").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in weights) <= 90_000_000


def test_shipped_weights_are_found_by_their_word_and_missing_ones_say_what_to_do() -> None:
    target = tiny_target(**SIZES)
    assert located("some/folder", "eagle3", target) == "some/folder"
    with pytest.raises(
        UserError,
        match=r"no shipped weights of 'mtp' for target 'tiny-llama-0' .* train mtp --target FOLDER$",
    ):
        located(SHIPPED_WORD, "mtp", target)


@pytest.mark.parametrize("name", [None, "{folder}", "{folder}/", "owner/toy", "other/toy"])
def test_what_is_trained_for_a_target_is_what_is_shipped_for_it(
    name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded target, a folder and hub ids: the weights lie where they are looked for afterwards."""
    (tmp_path / "owner-toy").mkdir()
    given = name and name.format(folder=tmp_path / "owner-toy")
    made = jobs.job(given, tmp_path, tmp_path / "work")
    monkeypatch.setattr(shipped_weights, "WEIGHTS", tmp_path / "drafters" / "weights")
    (made.weights / "mtp").mkdir(parents=True)
    target = tiny_target()
    target.id = target_id(made.target)
    assert located(SHIPPED_WORD, "mtp", target) == str(made.weights / "mtp")


def test_namesakes_of_two_owners_share_no_folder(tmp_path: Path) -> None:
    one, two = (jobs.job(name, tmp_path, None) for name in ("one/toy", "two/toy"))
    assert one.weights != two.weights
    assert one.work != two.work
    assert one.replies != two.replies
