"""A tiny target as a user would have it: a folder with weights, a byte tokenizer and a chat template."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from draftboard.measure.plan import Plan
from draftboard.record.records import Sampling
from draftboard.record.suites import ArmSpec
from tiny import tiny_model

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, 256 in all."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = TEMPLATE
    return fast


def save_tiny_folder(folder: Path, seed: int = 0) -> Path:
    """Writes the target; its vocabulary of 260 is padded past the tokenizer's 256."""
    tiny_model("llama", seed, vocab_size=260, max_position_embeddings=1024).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def save_task(root: Path, name: str = "small", prompts: int = 3) -> None:
    """Writes a task of two-turn prompts under root/tasks."""
    folder = root / "tasks" / name
    folder.mkdir(parents=True)
    rows = [
        f'{{"id": "p{i}", "category": "c{i % 2}", "turns": ["abcabcab {i}", "more"]}}' for i in range(prompts)
    ]
    (folder / "prompts.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "task.toml").write_text(
        'title = "Small"\nversion = 1\nlicence = "CC0-1.0"\norigin = "made for a test"\n'
        'analysis = "nothing"\ntemplate = "target"\nturns = 2\n'
    )


def small_plan(
    root: Path, *, max_new_tokens: int, warmup: int, target: str | None = None, **changes: Any
) -> Plan:
    """One prompt of the task below `root` for plain decoding and look-up, on `target` or one made there;
    `changes` are other fields of the plan."""
    plan = Plan(
        suite="test", indicative=False, target=target or str(save_tiny_folder(root / "target")),
        revision=None, dtype="float32", device="cpu", plugins="draftboard_drafters", baseline="none",
        task="small", root=str(root), limit=1, max_new_tokens=max_new_tokens, repeats=1, warmup=warmup,
        sampling=Sampling(), arms=(ArmSpec("none"), ArmSpec("ngram", 3)),
    )  # fmt: skip
    return replace(plan, **changes)
