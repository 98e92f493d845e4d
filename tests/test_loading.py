"""From a name to a target: what loads, what is refused by name before anything is timed, and why."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from draftboard.errors import UserError
from draftboard.measure import loading
from draftboard.measure.loading import (
    check_rewind,
    dtype_name,
    load_target,
    refuse_uncuttable,
    resolve_device,
    resolve_dtype,
)
from draftboard.measure.target import TargetModel
from tiny import SIZES, tiny_model, tiny_target
from tiny_folder import byte_tokenizer, save_tiny_folder

CPU = torch.device("cpu")
HYBRID = Path(__file__).parent / "data/golden/targets/qwen3_5_tiny"


def load(name: str | Path, **options: Any) -> TargetModel:
    return load_target(str(name), **{"dtype": torch.float32, "device": CPU, **options})


def refused(act: Callable[[], object], *parts: str) -> None:
    """`act` raises a UserError of one line that says each of `parts`."""
    with pytest.raises(UserError) as caught:
        act()
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 500
    for part in parts:
        assert part in said


def saved(folder: Path, family: str = "llama", **changes: Any) -> Path:
    tiny_model(family, **changes).save_pretrained(folder)
    return folder


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_folder_with_everything_loads(tmp_path: Path) -> None:
    target = load(save_tiny_folder(tmp_path))
    sha256 = hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    assert (target.id, target.forward.name) == (tmp_path.name, "fused")
    assert target.revision == f"sha256:{sha256[:12]}", "a folder is pinned by its weights"
    assert (target.max_context, target.length, target.dtype) == (1024, 0, torch.float32)
    assert target.tokenizer.decode(target.tokenizer.encode("Grüße")) == "Grüße"


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt_neox", "gemma"])
def test_a_folder_without_tokenizer_files_gives_none(tmp_path: Path, family: str) -> None:
    assert load(saved(tmp_path, family)).tokenizer is None


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_broken_tokenizer_is_not_taken_for_none(tmp_path: Path, name: str) -> None:
    save_tiny_folder(tmp_path)
    (tmp_path / name).write_text((tmp_path / name).read_text()[:40])
    refused(lambda: load(tmp_path), "cannot read the tokenizer", str(tmp_path), "fetch its files again")


def test_dtype_and_context_are_as_asked(tmp_path: Path) -> None:
    target = load(saved(tmp_path), dtype=torch.bfloat16, max_context=40)
    assert (target.dtype, target.max_context) == (torch.bfloat16, 40)
    refused(lambda: load(tmp_path, max_context=257), "may need 257 positions", "limit of 256")


def test_a_model_with_a_long_limit_gets_the_default_context(tmp_path: Path) -> None:
    assert load(saved(tmp_path, max_position_embeddings=100_000)).max_context == loading.DEFAULT_CONTEXT


@pytest.mark.parametrize("name", ["no/such-model", "no-such-model", "/no/such/folder", "", "a b", "../x"])
def test_a_nonsense_name_is_refused_in_one_line(name: str) -> None:
    refused(lambda: load(name), f"cannot load {name!r}", "give a folder with config.json and safetensors")


def test_a_folder_that_is_no_model_is_refused_in_one_line(tmp_path: Path) -> None:
    refused(lambda: load(tmp_path), "from a folder")
    (tmp_path / "config.json").write_text("{")
    refused(lambda: load(tmp_path), "config.json")
    (tmp_path / "config.json").write_text('{"model_type": "bert", "vocab_size": 8, "hidden_size": "wide"}')
    refused(lambda: load(tmp_path), "hidden_size")


def test_weights_that_are_absent_broken_or_of_another_shape_are_refused(tmp_path: Path) -> None:
    weights = saved(tmp_path) / "model.safetensors"
    tensors = load_file(weights)
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({**tensors, name: tensors[name][:, :16].contiguous()}, weights, {"format": "pt"})
    refused(lambda: load(tmp_path), "cannot load")
    weights.write_bytes(b"torn")
    refused(lambda: load(tmp_path), "cannot load")
    weights.unlink()
    refused(lambda: load(tmp_path), "cannot load", "model.safetensors")


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "lm_head.weight"])
def test_a_missing_tensor_is_never_made_up(tmp_path: Path, name: str) -> None:
    weights = saved(tmp_path) / "model.safetensors"
    save_file({k: v for k, v in load_file(weights).items() if k != name}, weights, {"format": "pt"})
    refused(lambda: load(tmp_path), "lack 1 tensors", name)


def test_a_tied_head_is_not_missing(tmp_path: Path) -> None:
    saved(tmp_path, tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    assert load(tmp_path).vocab_size == 96


def test_code_in_a_model_folder_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path)
    edit_config(tmp_path, model_type="own", auto_map={"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"})
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.setattr("builtins.input", lambda *question: "y")
    refused(lambda: load(tmp_path), "custom code")
    assert not (tmp_path / "ran").exists()


def test_the_revision_reaches_every_file_and_code_is_never_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, asked = tiny_model(), []

    def answering(answer: Any) -> Callable[..., Any]:
        def from_pretrained(source: str, **options: Any) -> Any:
            asked.append((source, options["revision"], options["trust_remote_code"]))
            return answer

        return from_pretrained

    found = (model, {"missing_keys": set()})
    for loader, answer in [
        ("Config", model.config),
        ("ModelForCausalLM", found),
        ("Tokenizer", byte_tokenizer()),
    ]:
        monkeypatch.setattr(getattr(loading, f"Auto{loader}"), "from_pretrained", answering(answer))
    assert load("some/model", revision="abc123").revision == "abc123"
    assert asked == [("some/model", "abc123", False)] * 3


def test_the_embedded_targets_id_is_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "ensure", lambda: saved(tmp_path))
    target = load(loading.EMBEDDED_ID)
    assert (target.id, target.tokenizer) == (loading.EMBEDDED_ID, None)


def test_a_hybrid_target_is_refused_by_name_before_its_weights_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "_model", lambda *args: pytest.fail("the weights were read"))
    refused(
        lambda: load(HYBRID), "qwen3_5_text", "linear_attention", "cannot be rolled back", "dense attention"
    )


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("mamba", "linear_attention"),
        ("jamba", "linear_attention"),
        ("recurrent_gemma", "linear_attention"),
        ("falcon_h1", "hybrid"),
        ("qwen3_next", "linear_attention"),
        ("minimax", "linear_attention"),
        ("llama4_text", "chunked_attention"),
    ],
)
def test_states_that_cannot_be_rolled_back_are_refused_by_name(family: str, reason: str) -> None:
    config = AutoConfig.for_model(family)
    refused(lambda: refuse_uncuttable(config, 64), family, reason, "cannot be rolled back")


def test_a_recurrent_model_that_its_configuration_does_not_betray_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, "rwkv", context_length=64, attention_hidden_size=32)
    refused(lambda: load(tmp_path), "rwkv", "keeps a recurrent state")


@pytest.mark.parametrize("family", ["gemma2", "bloom"])
def test_a_dense_model_without_the_usual_attention_kernel_loads(tmp_path: Path, family: str) -> None:
    assert load(saved(tmp_path, family, sliding_window=256)).forward.name == "module"


def test_the_language_part_of_a_composite_model_is_what_is_judged(tmp_path: Path) -> None:
    AutoConfig.for_model("qwen3_5").save_pretrained(tmp_path)
    refused(lambda: load(tmp_path), "qwen3_5_text", "linear_attention")
    AutoConfig.for_model("gemma3").save_pretrained(tmp_path)
    refused(lambda: load(tmp_path, max_context=5000), "gemma3_text", "sliding window of 4096")


def test_the_language_part_of_a_composite_model_is_what_runs(tmp_path: Path) -> None:
    eye = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}
    config = AutoConfig.for_model(
        "gemma3", text_config=SIZES, vision_config={**eye, "image_size": 32, "patch_size": 16}
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    said = load(tmp_path, max_context=64).reference()
    assert (said.layers, said.hidden_size, said.vocab_size, said.forward) == (3, 32, 96, "module")


@pytest.mark.parametrize(
    ("family", "changes", "slides"),
    [
        ("mistral", {"sliding_window": 32}, True),
        ("phi3", {"sliding_window": 32, "pad_token_id": 0}, True),
        ("gemma2", {"sliding_window": 32}, True),
        ("qwen2", {"sliding_window": 32, "use_sliding_window": True, "max_window_layers": 1}, True),
        ("qwen2", {"sliding_window": 32, "use_sliding_window": False}, False),
        ("mistral", {"sliding_window": None}, False),
        ("llama", {}, False),
    ],
)
def test_a_window_narrower_than_the_context_is_refused_with_the_way_out(
    family: str, changes: dict[str, Any], slides: bool
) -> None:
    config = AutoConfig.for_model(family, **changes)
    refuse_uncuttable(config, 32)
    if slides:
        refused(lambda: refuse_uncuttable(config, 33), family, "sliding window of 32", "may need 33")
    else:
        refuse_uncuttable(config, 33)


def test_a_windowed_model_loads_within_its_window(tmp_path: Path) -> None:
    saved(tmp_path, "mistral", sliding_window=32)
    refused(lambda: load(tmp_path), "mistral", "sliding window of 32")
    assert load(tmp_path, max_context=32).max_context == 32


class IgnoresCuts(TargetModel):
    def truncate(self, length: int) -> None:
        pass


class CutsOneTooFew(TargetModel):
    def truncate(self, length: int) -> None:
        super().truncate(min(length + 1, self.length))


@pytest.mark.parametrize("broken", [IgnoresCuts, CutsOneTooFew])
@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
@pytest.mark.parametrize("spread", [0.02, 0.3])
def test_a_cache_whose_cut_leaves_a_trace_is_caught(
    broken: type[TargetModel], family: str, spread: float
) -> None:
    model = tiny_model(family, initializer_range=spread)
    check_rewind(TargetModel(model, id="sound", max_context=64))
    faulty = broken(model, id="broken", max_context=64)
    refused(lambda: check_rewind(faulty), family, "after a roll-back its logits differ by")


def test_a_model_that_ignores_the_cache_it_is_given_is_caught() -> None:
    model = tiny_model("gpt_neox")
    inner = model.gpt_neox.forward
    model.gpt_neox.forward = lambda input_ids, **options: inner(input_ids)
    target = TargetModel(model, id="forgetful", max_context=64)
    refused(lambda: check_rewind(target), "gpt_neox", "does not keep its past in the cache it is given")


def test_the_check_of_the_rewind_leaves_an_empty_cache() -> None:
    target = tiny_target()
    check_rewind(target)
    assert target.length == 0


@pytest.mark.parametrize("name", ["float12", "", "int8", "FLOAT32"])
def test_a_nonsense_dtype_is_refused_with_the_choices(name: str) -> None:
    refused(lambda: resolve_dtype(name, CPU), repr(name), "auto, float32, bfloat16, float16")


def test_dtypes_by_name_and_by_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("float32", "bfloat16", "float16"):
        assert dtype_name(resolve_dtype(name, CPU)) == name
    for fast, expected in [(True, torch.bfloat16), (False, torch.float32)]:
        monkeypatch.setattr(loading, "native_bfloat16", lambda fast=fast: fast)
        assert resolve_dtype("auto", CPU) is expected
        assert resolve_dtype("auto", torch.device("cuda")) is torch.bfloat16


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert resolve_device() == resolve_device("cuda:0") == torch.device("cuda", 0)
    refused(lambda: resolve_device("cuda:1"), "'cuda:1'", "sees 1 GPUs")
    refused(lambda: resolve_device("gpu"), "'gpu'", "choose auto, cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert resolve_device("auto") == resolve_device("cpu") == CPU
    refused(lambda: resolve_device("cuda"), "'cuda'", "sees 0 GPUs")
