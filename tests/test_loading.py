"""From a name to a target: names, files, tokenizers, dtypes and devices; mistakes in one line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from draftboard.measure import loading
from draftboard.measure.compiled import kernels
from draftboard.measure.loading import dtype_name, resolve_device, resolve_dtype
from loaded import load, refused, saved
from tiny import tiny_model
from tiny_folder import byte_tokenizer, save_tiny_folder

CPU = torch.device("cpu")


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_folder_with_everything_loads(tmp_path: Path) -> None:
    target = load(save_tiny_folder(tmp_path))
    sha256 = hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    assert (target.id, target.forward.name) == (tmp_path.name, "fused" if kernels() is None else "compiled")
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
        monkeypatch.setattr(getattr(transformers, f"Auto{loader}"), "from_pretrained", answering(answer))
    assert load("some/model", revision="abc123").revision == "abc123"
    assert asked == [("some/model", "abc123", False)] * 3


def test_the_embedded_targets_id_is_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "ensure", lambda: saved(tmp_path))
    target = load(loading.EMBEDDED_ID)
    assert (target.id, target.tokenizer) == (loading.EMBEDDED_ID, None)


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
