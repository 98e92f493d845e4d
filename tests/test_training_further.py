"""`draftboard train METHOD --further N` on a toy: on from what is shipped, through kills, never back."""

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
from draftboard_drafters.checkpoints.cards import training_of
from draftboard_drafters.checkpoints.loader import load
from draftboard_drafters.training import commands, loop
from draftboard_drafters.training.jobs import Job
from draftboard_drafters.training.shipping import restore
from training_toy import Killed, dying_at, toy_job


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return toy_job(tmp_path, monkeypatch)


@pytest.fixture
def shipped(job: Job, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job with an MTP module, of which every training on makes a better one."""
    commands.run("data", job)
    commands.run("mtp", job)
    rising = itertools.count(1)
    monkeypatch.setattr(loop, "held_out", lambda *arguments: (next(rising) / 20,))
    monkeypatch.setattr(loop, "SAVE_EVERY", -1.0)
    return replace(job, tokens=None, further=400)


def read_card(job: Job, method: str = "mtp") -> dict[str, Any]:
    """The card of what is shipped."""
    card: dict[str, Any] = json.loads((job.weights / method / "card.json").read_text())
    return card


def check_sums(card: dict[str, Any], stages: int) -> None:
    assert len(card["stages"]) == stages
    for cost in ("steps", "token_visits"):
        assert card[cost] == sum(stage[cost] for stage in card["stages"])
    for cost in ("seconds", "cpu_seconds"):
        assert card[cost] == pytest.approx(sum(stage[cost] for stage in card["stages"]), abs=0.051)
    assert [p["tokens"] for p in card["curve"]] == sorted({p["tokens"] for p in card["curve"]})
    assert card["curve"][-1]["tokens"] == card["token_visits"]


def test_the_card_adds_up_what_all_stages_cost(shipped: Job) -> None:
    first = read_card(shipped)
    commands.run("mtp", shipped)
    second = read_card(shipped)
    check_sums(second, 2)
    assert second["stages"][0]["token_visits"] == first["token_visits"]
    assert second["curve"][: len(first["curve"])] == first["curve"]
    assert second["stages"][1]["start"] == f"weights {first['weights_sha256'][:12]}"
    commands.run("mtp", replace(shipped, further=200))
    third = read_card(shipped)
    check_sums(third, 3)
    assert [stage["settings"]["tokens"] for stage in third["stages"]] == [600, 400, 200]
    assert third["stages"][:2] == second["stages"]
    assert training_of(str(shipped.weights / "mtp")) is not None
    assert not (shipped.work / "mtp-further").exists()
    assert [path.name for path in shipped.weights.iterdir()] == ["mtp"]


def test_no_stage_sees_the_texts_in_the_order_of_another(shipped: Job) -> None:
    first = read_card(shipped)
    commands.run("mtp", shipped)
    commands.run("mtp", shipped)
    stages = read_card(shipped)["stages"]
    seeds = [stage["settings"]["seed"] for stage in stages]
    assert seeds == [0, first["steps"], first["steps"] + stages[1]["steps"]]


def test_two_processors_are_both_named(shipped: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    own = read_card(shipped)["cpu"]
    monkeypatch.setattr(loop, "read_cpu", lambda: ("Another", 1))
    commands.run("mtp", shipped)
    assert read_card(shipped)["cpu"] == f"{own} and Another"


def test_a_killed_training_goes_on_where_it_stopped(shipped: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_card(shipped)
    with pytest.raises(Killed):
        commands.run("mtp", replace(shipped, say=dying_at("held-out", 3)))
    assert read_card(shipped) == first, "what is shipped changed before the training had ended"
    assert (shipped.work / "mtp-further" / "state.pt").exists()
    steps = list[int]()
    real = loop._step

    def counted(*arguments: Any) -> float:
        steps.append(arguments[3].step)
        return real(*arguments)

    monkeypatch.setattr(loop, "_step", counted)
    commands.run("mtp", shipped)
    assert steps and steps[0] > 0, "it began anew"
    check_sums(read_card(shipped), 2)


def dying_when(patch: pytest.MonkeyPatch, name: str, condition: Callable[[Path], bool]) -> None:
    """The call of this name dies, before it does anything, when its first path meets the condition."""
    real: Any = (
        shutil.rmtree if name == "shutil.rmtree" else getattr(Path, name.removeprefix("pathlib.Path."))
    )

    def call(path: Any, *arguments: Any, **options: Any) -> Any:
        if condition(Path(path)):
            raise Killed
        return real(path, *arguments, **options)

    patch.setattr(name, call)


KILLS: dict[str, tuple[str, Callable[[Path], bool]]] = {
    "before the card": ("pathlib.Path.replace", lambda path: path.name == "card.json.new"),
    "before the old weights go": ("pathlib.Path.rename", lambda path: path.name == "mtp"),
    "before the new weights come": ("pathlib.Path.rename", lambda path: path.name == ".mtp.new"),
    "before the old weights are removed": ("shutil.rmtree", lambda path: path.name == ".mtp.old"),
    "before its work is removed": ("shutil.rmtree", lambda path: path.name == "mtp-further"),
}


@pytest.mark.parametrize("place", KILLS)
def test_a_kill_while_shipping_loses_neither_the_old_nor_the_new(
    place: str, shipped: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read_card(shipped)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        dying_when(patch, *KILLS[place])
        commands.run("mtp", shipped)
    restore(shipped.weights / "mtp")
    assert training_of(str(shipped.weights / "mtp")) is not None
    commands.run("mtp", shipped)
    card = read_card(shipped)
    check_sums(card, 2)
    assert card["stages"][0]["token_visits"] == first["token_visits"]
    assert not (shipped.work / "mtp-further").exists()
    assert [path.name for path in shipped.weights.iterdir()] == ["mtp"]


def test_the_work_of_another_stage_is_not_taken_for_the_shipped_one(
    shipped: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines went on from the same weights, and the other one was first to ship."""
    with pytest.raises(Killed):
        commands.run("mtp", replace(shipped, say=dying_at("held-out", 3)))
    elsewhere = replace(shipped, work=shipped.work.with_name("elsewhere"))
    shutil.copytree(shipped.work / "states", elsewhere.work / "states")
    commands.run("mtp", elsewhere)
    with pytest.raises(UserError, match="holds a training whose s"):
        commands.run("mtp", shipped)
    assert (shipped.work / "mtp-further" / "state.pt").exists()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda card: card | {"vocabulary": "ab"}, "has another vocabulary than its recipe"),
        (
            lambda card: {k: v for k, v in card.items() if k != "steps"},
            "has no 'number of steps'; restore it, or train",
        ),
        (lambda card: card | {"curve": []}, "has no 'curve'"),
        (lambda card: card | {"steps": "x"}, "has no 'number of steps'"),
        (lambda card: card | {"not_kept": [{}]}, "has no 'number of steps'"),
        (lambda card: card | {"stages": [{"steps": 1}]}, "has no 'number of token_visits'"),
        (lambda card: card | {"stages": ["x"]}, "has no 'number of steps'"),
    ],
    ids=[
        "vocabulary",
        "old card",
        "no curve",
        "steps of a text",
        "something not kept without steps",
        "a stage without visits",
        "a stage of a text",
    ],
)
def test_a_card_that_cannot_be_gone_on_from_is_refused_before_the_hours(
    damage: Callable[[dict[str, Any]], dict[str, Any]], said: str, shipped: Job
) -> None:
    card = damage(read_card(shipped))
    (shipped.weights / "mtp" / "card.json").write_text(json.dumps(card))
    with pytest.raises(UserError, match=said):
        commands.run("mtp", shipped)


def test_a_card_that_cannot_be_read_does_not_cost_what_was_trained_further(shipped: Job) -> None:
    commands.run("mtp", shipped)
    card = shipped.weights / "mtp" / "card.json"
    card.write_text(card.read_text()[:20])
    with pytest.raises(UserError, match=r"card\.json cannot be read .*; restore it, or remove"):
        commands.run("mtp", replace(shipped, tokens=600, further=None))


@pytest.mark.parametrize("name", ["card.json", "model.safetensors"])
def test_weights_that_were_not_fetched_whole_can_be_trained_anew(name: str, shipped: Job) -> None:
    (shipped.weights / "mtp" / name).unlink()
    commands.run("mtp", replace(shipped, tokens=600, further=None))
    assert training_of(str(shipped.weights / "mtp")) is not None


def test_a_method_that_starts_from_another_follows_it(job: Job) -> None:
    """Its card says from which weights; others in their place begin another training."""
    commands.run("data", job)
    commands.run("dflash", job)
    commands.run("dspark", job)
    first = read_card(job, "dflash")
    named = read_card(job, "dspark")["started_from"]["dflash"]
    assert named == {key: first[key] for key in ("weights_sha256", "token_visits", "cpu_seconds")}
    (job.weights / "dflash" / "card.json").unlink()
    commands.run("dflash", replace(job, tokens=100))
    with pytest.raises(UserError, match="holds a training whose start dflash is"):
        commands.run("dspark", job)


def test_a_finished_training_is_not_credited_to_who_ships_it_again(
    shipped: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read_card(shipped)
    monkeypatch.setattr(loop, "read_cpu", lambda: ("Another", 1))
    commands.run("mtp", replace(shipped, tokens=600, further=None))
    assert read_card(shipped) == first


def test_a_stage_on_two_processors_names_both(shipped: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    own = read_card(shipped)["cpu"]
    with pytest.raises(Killed):
        commands.run("mtp", replace(shipped, say=dying_at("held-out", 3)))
    monkeypatch.setattr(loop, "read_cpu", lambda: ("Another", 1))
    commands.run("mtp", shipped)
    commands.run("mtp", shipped)
    card = read_card(shipped)
    assert card["cpu"] == card["stages"][1]["cpu"] == f"{own} and Another"
    assert [process["cpu"] for process in card["stages"][1]["processes"]] == [own, "Another"]


def test_where_nothing_can_be_written_is_said_first(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    commands.run("data", job)
    job.weights.write_text("a file")
    with pytest.raises(UserError, match="cannot be made a folder: File exists"):
        commands.run("mtp", job)
    assert [path.name for path in job.work.iterdir()] == ["states"]


def test_a_training_goes_on_from_the_weights_and_not_from_the_recipes_start(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.run("data", job)
    commands.run("dflash", job)
    commands.run("dspark", job)
    shutil.rmtree(job.work / "dflash-tokens-600")  # what a method began from is not needed to go on
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
    before = read_card(job)
    lengths = iter([(0.5, 0.19, 0.005), *[(0.5, 0.19, 0.01)] * 20])
    monkeypatch.setattr(loop, "held_out", lambda *arguments: next(lengths))
    said = list[str]()
    commands.run("mtp", replace(job, tokens=None, further=100, say=said.append))
    assert "not 0.5% better, what is shipped stays" in said[-1]
    after = read_card(job)
    (tried,) = after.pop("not_kept")
    assert after == before
    assert tried["token_visits"] >= 100 and tried["curve"][-1]["length"] == pytest.approx(1.7)
    monkeypatch.setattr(loop, "held_out", lambda *arguments: (0.5, 0.2))
    commands.run("mtp", replace(job, tokens=None, further=100))
    seeds = [stage["settings"]["seed"] for stage in read_card(job)["not_kept"]]
    assert seeds == [before["steps"], before["steps"] + tried["steps"]], "the same draws were tried twice"


def test_a_kill_after_a_training_was_noted_as_not_kept_is_not_in_the_way(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.run("data", job)
    commands.run("mtp", job)
    monkeypatch.setattr(loop, "held_out", lambda *arguments: (0.5, 0.2))
    further = replace(job, tokens=None, further=100)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        dying_when(patch, *KILLS["before its work is removed"])
        commands.run("mtp", further)
    assert len(read_card(job)["not_kept"]) == 1
    said = list[str]()
    commands.run("mtp", replace(further, say=said.append))
    assert said == ["mtp: was ended already, as its card says"]
    assert len(read_card(job)["not_kept"]) == 1 and not (job.work / "mtp-further").exists()
    commands.run("mtp", further)
    assert len(read_card(job)["not_kept"]) == 2


def test_an_unknown_commit_is_no_missing_one(shipped: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of a git checkout nobody knows it, and a short training may take no tenth of a second."""
    file = shipped.weights / "mtp" / "card.json"
    file.write_text(json.dumps({**read_card(shipped), "commit": None, "cpu_seconds": 0.0}))
    commands.run("mtp", shipped)
    check_sums(read_card(shipped), 2)


def test_going_on_needs_weights_and_their_data(job: Job) -> None:
    further = replace(job, tokens=None, further=100)
    commands.run("data", job)
    with pytest.raises(UserError, match="has no weights with a card to go on from"):
        commands.run("mtp", further)
    commands.run("mtp", job)
    commands.run("data", replace(job, reply_tokens=144))
    with pytest.raises(UserError, match=r"was trained on data .* and the states are of"):
        commands.run("mtp", further)


@pytest.mark.parametrize(
    ("what", "tokens", "said"),
    [
        ("data", None, "trains one method on, not 'data'; name one of: dflash"),
        ("all", None, "trains one method on, not 'all'"),
        ("mtp", 5, "--further and --tokens are both given"),
    ],
)
def test_going_on_is_for_one_method_and_its_own_length(
    what: str, tokens: int | None, said: str, job: Job
) -> None:
    with pytest.raises(UserError, match=said):
        commands.run(what, replace(job, tokens=tokens, further=100))
    assert not job.work.exists()


def test_training_anew_does_not_undo_what_was_trained_further(shipped: Job) -> None:
    commands.run("mtp", shipped)
    card, said = read_card(shipped), list[str]()
    with pytest.raises(UserError, match="was trained further, which training 'mtp' anew would undo"):
        commands.run("mtp", replace(shipped, tokens=600, further=None))
    commands.run("all", replace(shipped, tokens=100, further=None, say=said.append))
    assert "mtp: was trained further than its recipe, and stays" in said
    assert read_card(shipped) == card
