"""MTP against its reference module: through the engine's loop, and teacher-forced beside a hybrid target."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from draftboard.measure.target import TargetModel
from draftboard_drafters import checkpoints, mtp
from draftboard_drafters.checkpoints import Checkpoint
from golden import (
    FOLDER,
    TOLERANCE,
    Make,
    Recorder,
    Run,
    case,
    check_logits,
    check_tokens,
    replay,
    runs,
)
from serial_faults import FAULTS as SERIAL_FAULTS
from serial_faults import Fault, check_first_rounds, serial_changed

DENSE, HYBRID = "speculators_mtp_qwen3", "mtp_qwen3_5"
SIDES: tuple[mtp.Side, ...] = ("post", "pre")


def folder(name: str) -> str:
    """The hybrid target carries its module itself."""
    return case(name).drafter if name == DENSE else str(FOLDER / case(name).expected["target"])


def loaded(name: str) -> Checkpoint:
    return checkpoints.load_as("mtp", folder(name))


def maker(checkpoint: Checkpoint, **options: Any) -> Make:
    return lambda target, sampler: mtp.drafter(checkpoint, target, sampler, 3, **options)


@pytest.mark.parametrize(("name", "run_name"), runs(DENSE))
def test_golden_mtp(name: str, run_name: str) -> None:
    which = case(name)
    run = which.run(run_name)
    found = replay(which, run, lambda target, sampler: mtp.build(target, sampler, checkpoint=folder(name)))
    check_tokens(run, found)
    assert check_logits(which, run, found) > 0 or run_name not in ("prompt0", "prompt1", "prompt2")


@torch.inference_mode()
def states(target: TargetModel, ids: list[int]) -> dict[str, Tensor]:
    """The target's last states [n, 1, H] over a text run at once, on both sides of its final norm."""
    model, caught = target.forward.model, {}  # type: ignore[attr-defined]
    handle = model.model.norm.register_forward_pre_hook(lambda module, args: caught.update(pre=args[0][0]))
    model(input_ids=torch.tensor([ids]), use_cache=False)
    handle.remove()
    return {"pre": caught["pre"][:, None], "post": target.final_norm(caught["pre"])[:, None]}


@cache
def forced_states(name: str) -> dict[str, Tensor]:
    target = hybrid_target() if name == HYBRID else module_target(case(name).target.id)
    return states(target, case(name).expected["teacher_forced"]["token_ids"])


@cache
def module_target(name: str) -> TargetModel:
    """A golden target that runs its own module's forward, so that whole texts can go through it."""
    model = AutoModelForCausalLM.from_pretrained(FOLDER / "targets" / name, dtype=torch.float32).eval()
    return TargetModel(model, id=name, max_context=128, stop_ids=frozenset(), fused=False)


def hybrid_target() -> TargetModel:
    return module_target(Path(case(HYBRID).expected["target"]).name)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", [DENSE, HYBRID])
@torch.inference_mode()
def test_golden_teacher_forced_rows(name: str, side: mtp.Side) -> None:
    """Row t joins state t with token t+1, on the side of the final norm that was asked for."""
    which = case(name)
    target = hybrid_target() if name == HYBRID else which.target
    ids = torch.tensor(which.expected["teacher_forced"]["token_ids"])
    recorder = Recorder(target.device)
    drafter = maker(loaded(name), hidden=side)(target, recorder)
    assert drafter.taps == ((-1,) if side == "post" else (target.num_layers,))
    features = forced_states(name)[side]
    expected = which.logits[f"teacher_forced.logits_{side}_norm_hidden"]
    for row in range(len(expected)):
        recorder.rounds.append([])
        if row == 0:
            drafter.prefill(ids[:2], features[:1])
        else:
            drafter.commit(ids[row + 1 : row + 2], features[row : row + 1])
        drafter.propose(1)
    seen = torch.cat([recorder.seen(row) for row in range(len(expected))])
    torch.testing.assert_close(seen, expected, atol=TOLERANCE, rtol=0)
    other = which.logits[f"teacher_forced.logits_{'pre' if side == 'post' else 'post'}_norm_hidden"]
    assert (seen - other).abs().max() > 100 * TOLERANCE


@torch.inference_mode()
def walk(run: Run, checkpoint: Checkpoint) -> None:
    """The rounds of a run over the target's states of its whole text: drafts, counts and logits."""
    which, target = case(HYBRID), hybrid_target()
    text = [*run["prompt_ids"], run["rounds"][0]["anchor_id"]]
    text += [token for one in run["rounds"] for token in one["committed_ids"]]
    features, recorder = run_states(tuple(text)), Recorder(target.device)
    drafter = maker(checkpoint)(target, recorder)
    at = len(run["prompt_ids"])
    drafter.prefill(torch.tensor(text[: at + 1]), features[:at])
    for number, expected in enumerate(run["rounds"]):
        assert at == expected["anchor_pos"]
        recorder.rounds.append([])
        drafts, committed = drafter.propose(3).tokens.tolist(), expected["committed_ids"]
        assert drafts == expected["draft_ids"]
        hits = [a == b for a, b in zip(drafts, committed, strict=False)]
        assert [*hits, False].index(False) == expected["accepted"]
        logits = which.logits.get(f"{run['name']}.round{number}.draft_logits")
        if logits is not None:
            torch.testing.assert_close(recorder.seen(number), logits, atol=TOLERANCE, rtol=0)
        drafter.commit(torch.tensor(committed), features[at : at + len(committed)])
        at += len(committed)


@cache
def run_states(text: tuple[int, ...]) -> Tensor:
    return states(hybrid_target(), list(text))["post"]


@pytest.mark.parametrize("run_name", [run_name for _, run_name in runs(HYBRID)])
def test_golden_mtp_beside_a_hybrid_target(run_name: str) -> None:
    walk(case(HYBRID).run(run_name), loaded(HYBRID))


def concat_reversed(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    return serial_changed(embedding_first=False)(patch, checkpoint)


def geometry_changed(**changes: Any) -> Fault:
    def fault(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
        return dataclasses.replace(checkpoint, geometry=dataclasses.replace(checkpoint.geometry, **changes))

    return fault


def fully_turned(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    parameters = {**checkpoint.rope.parameters, "partial_rotary_factor": 1.0}
    return dataclasses.replace(checkpoint, rope=dataclasses.replace(checkpoint.rope, parameters=parameters))


def gate_first(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    """The first rows of each head in q_proj read as the gate."""
    name, width = "layers.0.self_attn.q_proj.weight", checkpoint.geometry.head_dim
    weight = checkpoint.tensors[name]
    swapped = weight.view(-1, 2 * width, weight.shape[1]).roll(width, 1).reshape(weight.shape)
    return dataclasses.replace(checkpoint, tensors={**checkpoint.tensors, name: swapped})


SHARED: dict[str, Fault] = {
    **SERIAL_FAULTS,
    "embedding and state joined in reverse": concat_reversed,
    "state before the norm recycled": serial_changed(recycle_normed=False),
}
HYBRID_ONLY: dict[str, Fault] = {
    "norms not zero-centred": geometry_changed(zero_centred_norms=False),
    "rotary over the whole head": fully_turned,
    "gate before the query": gate_first,
}


@pytest.mark.parametrize("fault", SHARED)
def test_golden_catches(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError):
        check_first_rounds(case(DENSE), maker(SHARED[fault](monkeypatch, loaded(DENSE))))


def test_golden_catches_the_state_before_the_final_norm() -> None:
    with pytest.raises(AssertionError):
        check_first_rounds(case(DENSE), maker(loaded(DENSE), hidden="pre"))


@pytest.mark.parametrize("fault", {**SHARED, **HYBRID_ONLY})
def test_golden_catches_beside_a_hybrid_target(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inject = {**SHARED, **HYBRID_ONLY}[fault]
    with pytest.raises(AssertionError):
        walk(case(HYBRID).run("prompt1"), inject(monkeypatch, loaded(HYBRID)))


def test_golden_comparison_passes_without_a_fault() -> None:
    check_first_rounds(case(DENSE), maker(loaded(DENSE)))
    check_first_rounds(case(DENSE), maker(loaded(DENSE), hidden="post", recycled="post"))
