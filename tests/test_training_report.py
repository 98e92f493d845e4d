"""`train evaluate` against the engine: what it replays offline is what a run measured, in the run's dtype."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftboard.errors import UserError
from draftboard.measure import runner
from draftboard.record.records import Sampling
from draftboard.record.store import Store as Results
from draftboard.record.suites import ArmSpec
from draftboard_drafters.training.batches import Texts
from draftboard_drafters.training.loop import Settings, train
from draftboard_drafters.training.parts import count, most_frequent, parts_of
from draftboard_drafters.training.recipes.dspark import DSparkRecipe
from draftboard_drafters.training.report import report
from draftboard_drafters.training.states import Layout, Store, fill, taps_of
from tiny import plain_greedy, tiny_model, tiny_target
from tiny_folder import byte_tokenizer, save_task, small_plan

SIZES = {"vocab_size": 260, "num_hidden_layers": 8, "max_position_embeddings": 1024}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target's folder and a DSpark that was trained a little for it."""
    root = tmp_path_factory.mktemp("toy")
    tiny_model("llama", 0, **SIZES).save_pretrained(root / "target")
    byte_tokenizer().save_pretrained(root / "target")
    target, parts = tiny_target(**SIZES), parts_of(str(root / "target"))
    store = Store(root / "states", Layout(parts.id, taps_of(8), target.hidden_size))
    for i in range(2):
        turn = [{"role": "user", "content": f"abcabcab {i}"}]
        ids = byte_tokenizer().apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
        fill(store, target, [(ids, plain_greedy(tiny_model("llama", 0, **SIZES), ids, 24))])
    texts = Texts([store], held_out=2)
    texts.train = texts.held_out = [*texts.train, *texts.held_out]
    words = most_frequent(count([store.ids()], parts.vocab_size), 64, parts, texts.present(parts.vocab_size))
    recipe = DSparkRecipe(parts, words, store.layout.taps, k=3, layers=1, mask_id=1)
    state = train(
        recipe,
        texts,
        Settings(tokens=5_000, rate=8e-3, rows=120, evaluations=1),
        root / "work",
        lambda line: None,
    )
    recipe.ship(state.parameters, root / "weights" / "dspark")
    recipe.ship(recipe.initial(1), root / "weights" / "other")
    return root / "target", root / "weights" / "dspark"


def measure(root: Path, target: Path, weights: Path, dtype: str, **changes: Any) -> Path:
    """A run of plain decoding and DSpark: two K, a threshold that hands over nothing, other weights."""
    if not (root / "tasks").exists():
        save_task(root, prompts=2)
    checkpoint = {"checkpoint": str(weights)}
    arms = [ArmSpec("dspark", k, checkpoint) for k in (1, 3)]
    arms += [ArmSpec("dspark", 3, {**checkpoint, "confidence_threshold": 0.999})]
    arms += [ArmSpec("dspark", 2, {"checkpoint": str(weights.parent / "other")})]
    plan = replace(
        small_plan(root, max_new_tokens=24, warmup=0),
        target=str(target), dtype=dtype, repeats=2, arms=(ArmSpec("none"), *arms),
    )  # fmt: skip
    results = Results(root / "results")
    return runner.run_plan(replace(plan, **changes), results, lambda event: None, start_method="fork").folder


def lines_of(target: Path, weights: Path, root: Path) -> list[str]:
    lines: list[str] = []
    report(str(target), weights.parent, ["dspark"], root / "results", root / "work", lines.append)
    return lines


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_offline_lengths_are_the_engines_at_every_k_and_option(
    dtype: str, toy: tuple[Path, Path], tmp_path: Path
) -> None:
    target, weights = toy
    folder = measure(tmp_path, target, weights, dtype, sampling=Sampling(seed=3))
    lines = lines_of(target, weights, tmp_path)
    told = [line.split(" length")[0].split() for line in lines]
    assert [one[:4] for one in told] == [["dspark", "small", dtype, f"K={k}"] for k in (1, 3, 3)]
    assert told[2][4:] == ["confidence_threshold=0.999"]
    lengths = [float(line.split("length ")[1].split()[0]) for line in lines]
    engines = [float(line.split("engine ")[1].split()[0]) for line in lines]
    assert lengths[1] > lengths[0] > 1.0 and lengths[2] < lengths[1], "the comparison would say nothing"
    assert engines == (lengths if dtype == "float32" else pytest.approx(lengths, rel=0.05))
    states = Store(tmp_path / "work" / "evaluation" / dtype / folder.name, Layout("target", taps_of(8), 32))
    assert len(states.rows) == 2, "two turns of a prompt, without their repeats"
    assert lines_of(target, weights, tmp_path) == lines, "kept states say the same"


def test_replies_without_a_round_and_runs_of_another_revision_are_told(
    toy: tuple[Path, Path], tmp_path: Path
) -> None:
    target, weights = toy
    measure(tmp_path, target, weights, "float32", max_new_tokens=1)
    [line] = lines_of(target, weights, tmp_path)
    assert line.endswith("float32  K=3 no reply has a round")
    other = tmp_path / "elsewhere" / "target"
    tiny_model("llama", 1, **SIZES).save_pretrained(other)
    byte_tokenizer().save_pretrained(other)
    [line] = lines_of(other, weights, tmp_path)
    assert line.startswith("left out: ") and line.endswith("a run of another revision of target")


def test_tokens_that_the_target_lacks_name_the_run(toy: tuple[Path, Path], tmp_path: Path) -> None:
    target, weights = toy
    folder = measure(tmp_path, target, weights, "float32", limit=1)
    [file] = folder.glob("none-*.json")
    arm = json.loads(file.read_text())
    arm["traces"][0]["token_ids"][0] = 9999
    file.write_text(json.dumps(arm))
    with pytest.raises(UserError, match=f"{folder.name}: token 9999 is none of the target's 260"):
        lines_of(target, weights, tmp_path)


def test_without_weights_or_runs_there_is_nothing_to_judge(toy: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"draftboard train all --target {toy[0]}$"):
        report(str(toy[0]), tmp_path, ["dspark"], tmp_path, tmp_path, print)
    with pytest.raises(UserError, match="run a suite first"):
        report(str(toy[0]), toy[1].parent, ["dspark"], tmp_path, tmp_path, print)
