"""`draftboard inspect`: what a checkpoint holds, and the self-test that catches a wrong reading of it."""

from __future__ import annotations

import json
import shutil
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner, Result

from checkpoint_files import changed
from draftboard.cli import app
from draftboard.drafter import UserError
from draftboard.measure import inspection, self_test
from draftboard.measure.inspection import Inspection, Variation
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.measure.self_test import Drafted, Outcome
from draftboard.record.records import Sampling
from draftboard_drafters import checkpoints
from golden import FOLDER, Case, case
from scripted import Scripted, oracle, wrong_at
from tiny import plain_greedy, tiny_model, tiny_target

CASES = (
    *("zlab_dflash_b8", "deepspec_dflash", "deepspec_dspark_vanilla", "deepspec_dspark_rnn"),
    *("deepspec_eagle3", "safeailab_eagle3", "specforge_eagle3", "speculators_eagle3"),
    *("speculators_dflash", "speculators_mtp_qwen3"),
)


# What a checkpoint holds


@pytest.mark.parametrize("name", CASES)
def test_an_inspection_accounts_for_every_tensor(name: str) -> None:
    which = case(name)
    loaded, found = checkpoints.load(which.drafter), checkpoints.inspect(which.drafter)
    assert found.summary == loaded.describe()
    assert {one.name: one.shape for one in found.tensors} == {
        tensor: tuple(stored.shape) for tensor, stored in loaded.tensors.items()
    }
    assert all(one.role == loaded.roles[one.name] for one in found.tensors)
    assert found.facts["K"] == str(which.expected["K"]) or loaded.method in ("eagle3", "mtp")
    assert found.variations == ()


@pytest.mark.filterwarnings("ignore:.*trained on up to 48 positions")
@pytest.mark.parametrize("name", CASES)
def test_memory_when_served_is_what_a_drafter_reports(name: str) -> None:
    which = case(name)
    (shipped, *_) = checkpoints.inspect(which.drafter, None, which.target).variations
    drafter = shipped.make(which.target, Sampler(Sampling(), Randomness(0, which.target.device)))
    beside, alone = (checkpoints.inspect(which.drafter, None, target) for target in (which.target, None))
    assert sum(one.served_bytes or 0 for one in beside.tensors) == drafter.weights.bytes
    floats = [one for one in alone.tensors if one.dtype == "bfloat16"]
    assert sum(one.served_bytes or 0 for one in alone.tensors) == 2 * sum(one.parameters for one in floats)


def test_what_is_the_targets_is_named_and_not_counted() -> None:
    which = case("deepspec_dflash")
    found = checkpoints.inspect(which.drafter, None, which.target)
    copies = {one.name: one for one in found.tensors if "copy of the target's" in one.role}
    assert copies.keys() == {"embed_tokens.weight", "lm_head.weight"}
    assert all(one.served_bytes == 0 for one in copies.values())
    assert "less where embedding or head" in checkpoints.inspect(which.drafter).served


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (
            "zlab_dflash_b8",
            {
                "method": "dflash",
                "layout": "z-lab",
                "K": "7",
                "taps": "1, 4, 7 (",
                "slots": "8 with the anchor; a slot predicts the token at it",
                "mask id": "255",
                "embedding": "the target's",
                "head": "the target's",
                "made for": "a target of 8 layers",
            },
        ),
        (
            "deepspec_dspark_gated",
            {
                "taps": "0, 3, 6 (0 is the embedding output",
                "slots": "5 with the anchor; a slot predicts the token after it, the anchor's slot too",
                "Markov head": "gated, rank",
                "confidence": "from hidden and previous token",
                "embedding": "its own",
            },
        ),
        (
            "safeailab_eagle3",
            {
                "taps": "none in the file: 2, half the depth, and 3 from the end",
                "vocabulary": "160 of 256, by d2t (target id minus draft id)",
                "slots": "feature t joins token t+1, at position t",
                "rope": "rope_theta 20000",
                "head": "its own",
            },
        ),
        (
            "speculators_eagle3",
            {"switches": "norm_before_residual true", "norms": "queries and keys normed", "K": "5"},
        ),
        ("speculators_mtp_qwen3", {"taps": "after the final norm", "vocabulary": "256, the target's"}),
    ],
)
def test_conventions_are_told_in_our_terms(name: str, facts: dict[str, str]) -> None:
    found = checkpoints.inspect(case(name).drafter).facts
    assert {fact: text for fact, text in facts.items() if text not in found[fact]} == {}


def test_taps_that_the_target_decides_are_told_beside_it() -> None:
    which = case("safeailab_eagle3")
    assert checkpoints.inspect(which.drafter, None, which.target).facts["taps"].startswith("2, 4, 5 (")


def test_warnings_are_part_of_the_inspection() -> None:
    which = case("safeailab_eagle3")
    (warning,) = checkpoints.inspect(which.drafter, None, which.target).warnings
    assert warning.startswith("trained on up to 48 positions")


# The seam


def test_a_package_without_the_hook_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="plug-in package 'no_such_package' has no module 'checkpoints'"):
        inspection.inspect("x", None, None, "no_such_package")
    with pytest.raises(UserError, match="plug-in package 'scripted' has no module 'checkpoints'"):
        inspection.inspect("x", None, None, "scripted")
    empty = types.ModuleType("bare.checkpoints")
    monkeypatch.setitem(sys.modules, "bare", types.ModuleType("bare"))
    monkeypatch.setitem(sys.modules, "bare.checkpoints", empty)
    with pytest.raises(UserError, match=r"has no inspect; define inspect\(path, revision, target\)"):
        inspection.inspect("x", None, None, "bare")


def test_another_package_can_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, asked = Inspection("a head", {"K": "1"}, (), "in float32"), []
    module: Any = types.ModuleType("other.checkpoints")
    module.inspect = lambda *arguments: asked.append(arguments) or answer
    monkeypatch.setitem(sys.modules, "other", types.ModuleType("other"))
    monkeypatch.setitem(sys.modules, "other.checkpoints", module)
    assert inspection.inspect("there", "r1", None, "other") is answer
    assert asked == [("there", "r1", None)]


# The self-test's arithmetic


def scripted_reading(name: str, script: Any) -> Variation:
    return Variation(name, (0,), lambda target, sampler: Scripted(script, k=3, taps=(0,)))


def scripted_outcomes(*places: int | None) -> tuple[Outcome, ...]:
    """Readings that guess right but for one place in each draft (None: everywhere right), on one target."""
    target, model, tokens = tiny_target(), tiny_model(), 16
    prompts = [[1, 2, 3], [4, 5, 6, 7], [8, 9]]
    texts = [prompt + plain_greedy(model, prompt, tokens) for prompt in prompts]

    def script(place: int | None) -> Any:
        def guess(text: list[int]) -> Sequence[int]:
            (whole,) = (whole for whole in texts if whole[: len(text)] == text)
            return (oracle(whole, 3) if place is None else wrong_at(place, whole, 3, 96))(text)

        return guess

    return self_test.run(
        target, [scripted_reading(f"wrong at {place}", script(place)) for place in places], prompts, tokens
    )


def test_acceptance_is_counted_with_the_targets_own_token() -> None:
    assert [one.length for one in scripted_outcomes(None, 0, 1, 2)] == [4.0, 1.0, 2.0, 3.0]


def test_the_right_reading_wins_clearly() -> None:
    outcomes = scripted_outcomes(None, 0, 2)
    assert [one.verdict for one in outcomes] == ["shipped", "clearly worse", "clearly worse"]
    assert self_test.passed(outcomes)


def test_a_better_reading_fails_the_shipped_one() -> None:
    outcomes = scripted_outcomes(1, 0, None)
    assert [one.verdict for one in outcomes] == ["shipped", "clearly worse", "clearly better"]
    assert not self_test.passed(outcomes) and self_test.unbeaten(outcomes) == ["wrong at None"]


def test_the_same_drafts_prove_nothing() -> None:
    outcomes = scripted_outcomes(None, None)
    assert outcomes[1].verdict.startswith("the same drafts")
    assert not self_test.passed(outcomes)


@pytest.mark.parametrize(
    ("other", "verdict", "errors"),
    [
        (((3, 3), (1, 1), (2, 2)), "not clearly worse", 1.0),
        (((3, 3), (3, 3), (2, 2)), "not clearly worse", 0.0),
        (((3, 3), (3, 3), (3, 3)), "not clearly better", -1.0),
        (((1, 1), (1, 1), (1, 1)), "clearly worse", 5.0),
    ],
)
def test_errors_are_over_prompts(other: Any, verdict: str, errors: float) -> None:
    shipped = Drafted((((1,), (1,)),) * 3, ((3, 3), (3, 3), (2, 2)))
    found = self_test._outcome("x", shipped, Drafted((((2,), (2,)),) * 3, other))
    assert (found.verdict, found.errors) == (verdict, pytest.approx(errors, abs=1e-3))


def test_replies_shorter_than_a_draft_are_refused() -> None:
    reading = scripted_reading("x", lambda text: (1,))
    with pytest.raises(UserError, match="0 of 2 replies are longer than a draft of 3"):
        self_test.run(tiny_target(), [reading], [[1, 2], [3]], 4)


# The self-test on golden checkpoints


def pieces(which: Case, cuts: Sequence[int] = (0, 12, 24)) -> list[list[int]]:
    """Texts that the golden drafters know: their prompts, alone and with the beginning of the reply."""
    known = [which.run(f"prompt{i}") for i in range(3)]
    return [[*run["prompt_ids"], *run["output_ids"][:cut]] for run in known for cut in cuts]


@pytest.mark.parametrize("name", ["zlab_dflash_b8", "deepspec_eagle3", "speculators_mtp_qwen3"])
@torch.inference_mode()
def test_golden_hits_are_those_of_the_reference_rounds(name: str) -> None:
    """At the positions where the reference's rounds begin, as many drafts are right as it accepted."""
    which = case(name)
    run, k = which.run("prompt1"), which.expected["K"]
    shipped = checkpoints.inspect(which.drafter, None, which.target).variations[0]
    prompts, compared = [run["prompt_ids"]] * 2, 0
    sampler = Sampler(Sampling(), Randomness(0, which.target.device))
    told = [self_test.tell(which.target, prompt, shipped.taps, 48) for prompt in prompts]
    (hits, _) = self_test.draft_everywhere(shipped.make(which.target, sampler), told, k).hits
    for one in run["rounds"]:
        at = one["anchor_pos"] - len(run["prompt_ids"])
        if at < len(hits) and len(one["draft_ids"]) == k:
            assert hits[at] == one["accepted"]
            compared += 1
    assert compared > 3


WRONG = {
    "zlab_dflash_b8": ("taps one too low", "slots read one too early", "drafts turned by one position more"),
    "deepspec_dspark_vanilla": (
        "taps one too high",
        "no bias from the previous token",
        "slots read one too late",
    ),
    "speculators_dflash": ("taps one too low", "the mask's neighbour as mask", "d2t read as target ids"),
    "deepspec_eagle3": ("taps in reverse order", "recycle_normed true", "norm_before_residual true"),
    "safeailab_eagle3": ("taps one too low", "d2t read as target ids", "norm_before_residual true"),
    "speculators_mtp_qwen3": ("embedding_first false", "norm_before_head false"),
}


@pytest.mark.parametrize("name", WRONG)
def test_golden_a_wrong_reading_is_clearly_worse(name: str) -> None:
    which = case(name)
    shipped, *others = checkpoints.inspect(which.drafter, None, which.target).variations
    chosen = [one for one in others if one.name in WRONG[name]]
    assert len(chosen) == len(WRONG[name])
    outcomes = self_test.run(which.target, [shipped, *chosen], pieces(which), 9 + which.expected["K"])
    assert {one.name: one.verdict for one in outcomes[1:]} == dict.fromkeys(WRONG[name], "clearly worse")


# The command


def text_of(ids: Sequence[int]) -> str:
    return "".join(chr(0x4E00 + i) for i in ids)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A golden target with a tokenizer of one character an id, and a task of texts that its drafters know."""
    folder = tmp_path_factory.mktemp("root")
    shutil.copytree(FOLDER / "targets" / "qwen3_tiny", folder / "target")
    tokenizer = Tokenizer(models.BPE({text_of([i]): i for i in range(256)}, []))
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder / "target")
    task = folder / "tasks" / "known"
    task.mkdir(parents=True)
    rows = [
        {"id": f"p{i}", "category": "all", "turns": [text_of(ids)]}
        for i, ids in enumerate(pieces(case("deepspec_dflash"), (0, 10, 20)))
    ]
    (task / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (task / "task.toml").write_text(
        'title = "Known"\nversion = 1\nlicence = "CC0-1.0"\norigin = "made for a test"\n'
        'analysis = "nothing"\ntemplate = "raw"\nturns = 1\n'
    )
    return folder


def command(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["inspect", *arguments])


def self_tested(root: Path, checkpoint: str) -> Result:
    where = ("--target", str(root / "target"), "--root", str(root), "--task", "known")
    limits = ("--limit", "9", "--max-new-tokens", "17", "--dtype", "float32", "--device", "cpu")
    return command(checkpoint, "--self-test", *where, *limits)


def test_the_command_prints_the_record() -> None:
    path = case("zlab_dflash_b8").drafter
    result = command(path)
    assert result.exit_code == 0
    assert result.stdout.startswith(checkpoints.load(path).describe())
    assert "slots  8 with the anchor; a slot predicts the token at it" in result.stdout
    assert "layers.0.post_attention_layernorm.weight  norm before the MLP" in result.stdout
    assert "MB served in bfloat16" in result.stdout and "as shipped" not in result.stdout


def test_the_self_test_passes_for_a_checkpoint_as_published(root: Path) -> None:
    result = self_tested(root, case("deepspec_dflash").drafter)
    assert result.exit_code == 0, result.stdout
    assert "self-test passed" in result.stdout and result.stdout.count("clearly worse") == 8
    assert "beside" in result.stdout


def test_the_self_test_fails_for_a_checkpoint_that_states_wrong_taps(root: Path, tmp_path: Path) -> None:
    def shift(config: dict[str, Any]) -> None:
        config["target_layer_ids"] = [i - 1 for i in config["target_layer_ids"]]

    result = self_tested(root, changed(tmp_path, "deepspec_dflash", shift))
    assert result.exit_code == 1
    assert "self-test FAILED: no clear lead over taps one too high" in result.stdout
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("taps one too high"))
    assert "clearly better" in line


def test_a_self_test_needs_a_target() -> None:
    result = command(case("deepspec_dflash").drafter, "--self-test")
    assert isinstance(result.exception, UserError) and "name the target with --target" in str(
        result.exception
    )


def test_what_cannot_be_read_is_a_users_error() -> None:
    result = command("no/such/checkpoint")
    assert isinstance(result.exception, UserError) and "cannot be fetched" in str(result.exception)


def test_a_checkpoint_of_another_target_is_refused(root: Path, tmp_path: Path) -> None:
    path = changed(tmp_path, "zlab_dflash_b8", lambda config: config.update(num_target_layers=9))
    result = command(path, "--target", str(root / "target"), "--device", "cpu")
    assert isinstance(result.exception, UserError)
    assert "made for a target with layers: 9" in str(result.exception)
