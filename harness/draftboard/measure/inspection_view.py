"""A checkpoint's inspection and self-test on the terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from draftboard.errors import UserError
from draftboard.measure import loading, self_test
from draftboard.measure.inspection import Inspection, TensorFact, inspect
from draftboard.measure.prompts import Template
from draftboard.measure.target import TargetModel
from draftboard.record.tasks import Task, load_task


@dataclass(frozen=True, slots=True)
class Texts:
    """What a self-test drafts: the greedy replies to some prompts of a task."""

    task: str
    root: Path
    thinking: bool | None
    prompts: int
    tokens: int


def run(
    path: str,
    revision: str | None,
    target: Mapping[str, str | None],
    plugins: str,
    dtype: str,
    device: str,
    texts: Texts | None,
    console: Console,
) -> bool:
    """Prints what a checkpoint holds and, with `texts`, its self-test; False where the self-test failed.

    `target` has the keys `target` and `revision`. Raises UserError, also for a self-test without a target.
    """
    if texts is not None and target["target"] is None:
        raise UserError("--self-test compares with the target's own replies; name the target with --target")
    model = _open(target, dtype, device)
    found = inspect(path, revision, model, plugins)
    show(found, console)
    return texts is None or model is None or show_self_test(found, model, texts, console)


def _open(target: Mapping[str, str | None], dtype: str, device: str) -> TargetModel | None:
    if target["target"] is None:
        return None
    where = loading.resolve_device(device)
    kind = loading.resolve_dtype(dtype, where)
    return loading.load_target(target["target"], dtype=kind, device=where, revision=target.get("revision"))


def show(found: Inspection, console: Console) -> None:
    """Prints an inspection: one line, the conventions, every tensor, memory when served."""
    _print(console, found.summary)
    width = max(map(len, found.facts))
    _print(console, *(f"{name:>{width}}  {text}" for name, text in found.facts.items()))
    _print(console, *_aligned(3, _TENSOR_HEAD, *map(_tensor_cells, found.tensors)))
    numbers = sum(tensor.parameters for tensor in found.tensors)
    served = sum(tensor.served_bytes or 0 for tensor in found.tensors)
    _print(console, f"{numbers / 1e6:.3f} M numbers stored, {_megabytes(served)} MB served {found.served}")
    for warning in found.warnings:
        _print(console, f"warning: {warning}", style="yellow")


_TENSOR_HEAD = ("tensor", "role", "dtype", "shape", "numbers", "MB served")


def _tensor_cells(one: TensorFact) -> tuple[str, ...]:
    shape, size = " x ".join(map(str, one.shape)), one.served_bytes
    return (
        one.name,
        one.role,
        one.dtype,
        shape,
        str(one.parameters),
        "–" if size is None else _megabytes(size),
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.4f}"


def _aligned(texts: int, *rows: Sequence[str]) -> Iterator[str]:
    """Lines of columns, the first `texts` to the left and the figures to the right; no cell is cut."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, strict=True)
        yield "  ".join(
            cell.ljust(width) if i < texts else cell.rjust(width) for i, (cell, width) in enumerate(cells)
        )


def _print(console: Console, *lines: str, style: str | None = None) -> None:
    for line in lines:
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


_READING_HEAD = ("reading", "verdict", "E[L]", "behind the shipped one", "standard errors")


def show_self_test(found: Inspection, target: TargetModel, texts: Texts, console: Console) -> bool:
    """Drafts by every reading of the checkpoint and prints its acceptance; whether the shipped one wins."""
    task = _task(texts)
    template = Template(target.tokenizer, task)
    prompts = [template.ids(prompt.turns[:1], []) for prompt in task.sample(texts.prompts, 0)]
    outcomes = self_test.run(target, found.variations, prompts, texts.tokens)
    cells = ((one.name, one.verdict, f"{one.length:.3f}", *one.distance) for one in outcomes)
    _print(console, *_aligned(2, _READING_HEAD, *cells), _conclusion(outcomes))
    return self_test.passed(outcomes)


def _conclusion(outcomes: Sequence[self_test.Outcome]) -> str:
    if self_test.passed(outcomes):
        return "self-test passed: the shipped reading leads every other clearly"
    rest = "; ".join(self_test.unbeaten(outcomes)) or "nothing, for no reading drafts otherwise"
    return (
        f"self-test FAILED: no clear lead over {rest}; where none is better, more prompts (--limit) may tell"
    )


def _task(texts: Texts) -> Task:
    task = load_task(texts.task, texts.root)
    return task if texts.thinking is None else dataclasses.replace(task, thinking=texts.thinking)
