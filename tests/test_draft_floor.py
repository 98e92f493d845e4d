"""What a round of a drafter reads of weights, counted, and T_draft beside it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from draftboard.measure import block_parts, plugins
from draftboard.measure.linear import pack
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.record.records import Sampling
from draftboard.record.suites import ArmSpec
from tiny import tiny_model, tiny_target

BENCH = Path(__file__).resolve().parents[1] / "harness" / "bench"
PROMPT = torch.tensor([1, 2, 3, 4, 1, 2])


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCH))
    yield importlib.import_module("draft_floor")
    for name in ("draft_floor", "peers", "contenders", "contest", "vllm_peer"):
        sys.modules.pop(name)


def sampler() -> Sampler:
    return Sampler(Sampling(), Randomness(0, torch.device("cpu")))


def test_every_product_counts_its_weight_each_time(bench: Any) -> None:
    weight, x = torch.randn(5, 16), torch.randn(2, 16)
    packed, plain = pack(weight), torch.nn.Linear(16, 5)
    with torch.inference_mode(), bench.Reads() as reads:
        for product in (packed, plain, packed):
            product(x)
        packed(torch.randn(100, 16))
        x @ weight.t()
        (x * 2).sum()
    packed(x)
    assert reads.bytes == 5 * 5 * 16 * 4


@torch.inference_mode()
def test_a_serial_draft_reads_its_model_once_a_token_and_nothing_for_the_commit(
    bench: Any, tmp_path: Path
) -> None:
    draft = tiny_model(seed=3)
    draft.save_pretrained(tmp_path)
    embedding = draft.get_input_embeddings().weight
    products = sum(p.numel() for p in draft.parameters() if p.dim() == 2) - embedding.numel()
    target = tiny_target()
    module = plugins.load("draft_model", "draftboard_drafters")
    for k in (1, 3):
        built = module.build(target, sampler(), model=str(tmp_path), num_speculative_tokens=k)
        assert bench.read_bytes(target, built, sampler(), PROMPT) == k * products * 4


@torch.inference_mode()
def test_the_targets_head_counts_where_it_is_read(bench: Any) -> None:
    """Per draft token in a serial drafter that reads through it, so K more reads than with no drafts."""
    target = tiny_target()
    module = plugins.load("mtp", "draftboard_drafters")
    read = {
        k: bench.read_bytes(
            target, module.example(target, sampler(), num_speculative_tokens=k), sampler(), PROMPT
        )
        for k in (1, 2, 3)
    }
    head = target.vocab_size * target.hidden_size * 4
    assert read[2] - read[1] == read[3] - read[2] > head


@torch.inference_mode()
@pytest.mark.parametrize("name", ["eagle3", "dflash"])
def test_a_layers_compiled_calls_count(bench: Any, name: str) -> None:
    """By a layer or its halves as by single products: what is read is the same."""
    target = tiny_target()
    module = plugins.load(name, "draftboard_drafters")

    def read() -> int:
        built = module.example(target, sampler(), num_speculative_tokens=2)
        return int(bench.read_bytes(target, built, sampler(), PROMPT))

    compiled = read()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_parts, "kernels", lambda: None)
        assert compiled == read() > 0


def test_a_suites_drafters_with_weights_have_a_figure_and_one_that_fails_a_line(
    bench: Any, tmp_path: Path
) -> None:
    tiny_model(seed=3).save_pretrained(tmp_path)
    options = {"model": str(tmp_path)}
    specs = (
        ArmSpec("none"),
        ArmSpec("ngram", 2),
        ArmSpec("draft_model", 2, options),
        ArmSpec("draft_model", 2, {"model": "no/such/folder"}),
    )
    suite = type("Suite", (), {"arms": specs, "plugins": "draftboard_drafters"})
    figure, line = bench.figures(tiny_target(), suite, [PROMPT], 8)
    assert (figure.name, figure.k) == ("draft_model", 2) and figure.draft_ms > 0
    assert figure.read > figure.weights > 0
    assert "no/such/folder" in line or "folder" in line


def test_a_figure_is_held_against_its_floor(bench: Any) -> None:
    figure = bench.Figure("x", 2, 10_000_000, 20_000_000, 3.0)
    assert figure.line(bandwidth=10e9).split() == ["x", "2", "10.0", "20.0", "2.00", "3.00", "1.50"]
    assert "unknown" in bench.Figure("x", 2, 1, 1, None).line(10e9)
    assert bench.HEAD.split()[:2] == ["drafter", "K"]
