"""`train evaluate` against the engine: what it replays offline is what a run measured, in the run's dtype."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from draftboard.errors import UserError
from draftboard.measure import runner
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
        Settings(tokens=4_000, rate=8e-3, rows=120, evaluations=1),
        root / "work",
        lambda line: None,
    )
    recipe.ship(state.parameters, root / "weights" / "dspark")
    return root / "target", root / "weights" / "dspark"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_offline_lengths_are_the_engines_at_every_k(
    dtype: str, toy: tuple[Path, Path], tmp_path: Path
) -> None:
    target, weights = toy
    save_task(tmp_path, prompts=2)
    arms = [ArmSpec("dspark", k, {"checkpoint": str(weights)}) for k in (1, 3)]
    plan = replace(
        small_plan(tmp_path, max_new_tokens=24, warmup=0),
        target=str(target), dtype=dtype, repeats=2, arms=(ArmSpec("none"), *arms),
    )  # fmt: skip
    runner.run_plan(plan, Results(tmp_path / "results"), lambda event: None, start_method="fork")
    lines: list[str] = []
    report(str(target), [weights], tmp_path / "results", tmp_path / "work", lines.append)
    assert [line.split()[:4] for line in lines] == [["dspark", "small", dtype, f"K={k}"] for k in (1, 3)]
    lengths = [float(line.split("length ")[1].split()[0]) for line in lines]
    engines = [float(line.split("engine ")[1].split()[0]) for line in lines]
    assert max(lengths) > 1.0, "nothing was accepted: the comparison says nothing"
    if dtype == "float32":
        assert engines == lengths
    assert engines == pytest.approx(lengths, rel=0.05)
    again: list[str] = []
    report(str(target), [weights], tmp_path / "results", tmp_path / "work", again.append)
    assert again == lines, "kept states say the same"


def test_without_weights_or_runs_there_is_nothing_to_judge(toy: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="draftboard train all"):
        report(str(toy[0]), [], tmp_path, tmp_path, print)
    with pytest.raises(UserError, match="run a suite first"):
        report(str(toy[0]), [toy[1]], tmp_path, tmp_path, print)
