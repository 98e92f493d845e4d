"""How the files in tasks/ were made, and what the target does with the copy task.

    python harness/bench/make_tasks.py SOURCE            write the three prompts.jsonl, copy rows as chosen
    python harness/bench/make_tasks.py SOURCE --choose   choose the copy rows anew with the target, then write
    python harness/bench/make_tasks.py --measure         how much of the target's copy replies is copied

SOURCE is a folder with chat/mt_bench.jsonl, code/humaneval.jsonl and, in copy/, pep_copy.jsonl,
commit_edits_bench.jsonl and quixbugs_python.jsonl: JSON lines with `id`, `turns` and `source`, and where
known `category`, `reference` and `licence`.

Rows are chosen by one property, `copied`, of the target's own greedy replies; no drafter takes part.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import copy_rows
import torch
from copy_rows import Row

from draftboard.measure import loading, plugins
from draftboard.measure.clock import Clock
from draftboard.measure.decode import decode
from draftboard.measure.embedded import EMBEDDED_ID
from draftboard.measure.prompts import Template
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.record.records import Sampling
from draftboard.record.tasks import load_task

ROOT = Path(__file__).resolve().parents[2]
MAX_NEW_TOKENS = 128
LEAST_SHARE = 0.7
LEAST_TOKENS = 32

PROSE, CODE, RECORDS, COMMITS, REPAIRS = 16, 8, 8, 16, 8
PER_REFORMAT, CANDIDATES = 2, 6

ADDRESS = re.compile(r"\w@[\w-]+\.[a-z]{2,}\b")
COPY_TEXT = (
    "Copy the following text exactly, word for word:\n\n{}",
    'Repeat this text without changing anything:\n\n"{}"',
    "Text:\n{}\n\nPrint the text again, unchanged.",
    "Copy the text between the markers exactly. Print only the text.\n\n<<<\n{}\n>>>",
)
COPY_CODE = "Copy this code exactly.\n\n```python\n{}\n```"

Answer = Callable[[str], tuple[list[int], list[int]]]
"""Ids of the prompt as the target reads it and of its greedy reply, without the stop token."""


def common_subsequence(one: list[int], other: list[int]) -> int:
    """Length of the longest common subsequence."""
    above = [0] * (len(other) + 1)
    for left in one:
        row = [0]
        for j, right in enumerate(other):
            row.append(above[j] + 1 if left == right else max(above[j + 1], row[j]))
        above = row
    return above[-1]


def copied(prompt: list[int], reply: list[int]) -> float:
    """Share of the reply's tokens that stand in the prompt in the same order, gaps allowed: the length of the
    longest common subsequence of both over the reply's length. A repeated phrase counts once per occurrence
    in the prompt, so a reply that goes in circles scores low."""
    return common_subsequence(reply, prompt) / len(reply) if reply else 0.0


def is_copy(prompt: list[int], reply: list[int]) -> bool:
    """Whether a reply is long enough to judge and mostly copied."""
    return len(reply) >= LEAST_TOKENS and copied(prompt, reply) >= LEAST_SHARE


def make_answer(target_name: str, dtype: str, drafter: str) -> Answer:
    """Greedy decoding of one turn under the copy task's prompt format. Every drafter gives the same reply."""
    device = loading.resolve_device("auto")
    target = loading.load_target(target_name, dtype=loading.resolve_dtype(dtype, device), device=device)
    template = Template(target.tokenizer, load_task("copy", ROOT))
    sampler, clock = Sampler(Sampling(), Randomness(0, device)), Clock(device)
    built = plugins.load(drafter, "draftboard_drafters").build(target, sampler)

    def answer(turn: str) -> tuple[list[int], list[int]]:
        ids = template.ids([turn], [])
        prompt = torch.tensor(ids, device=device)
        reply = decode(target, built, prompt, sampler, clock, max_new_tokens=MAX_NEW_TOKENS).token_ids
        return ids, [token for token in reply if token not in target.stop_ids]

    return answer


def read(file: Path) -> list[Row]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]


def write(task: str, rows: Iterable[Row]) -> None:
    keys = ("id", "category", "turns", "reference", "licence", "source")
    lines = [json.dumps({key: row[key] for key in keys if key in row}, ensure_ascii=False) for row in rows]
    (ROOT / "tasks" / task / "prompts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def verbatim(name: str, text: str, asked: str, licence: str, source: str) -> Row:
    row = {"id": f"verbatim-{name}", "category": "verbatim", "turns": [asked.format(text)]}
    return {**row, "reference": text, "licence": licence, "source": source}


def opening(text: str, most_words: int = 75) -> str:
    """The first sentences of a text's first paragraph, as many as fit."""
    kept: list[str] = []
    for sentence in re.split(r"(?<=[.?!]) ", text.split("\n\n")[0]):
        if kept and len(" ".join([*kept, sentence]).split()) > most_words:
            break
        kept.append(sentence)
    return " ".join(kept)


def prose_rows(source: Path) -> Iterator[Row]:
    """Openings of Python Enhancement Proposals of 30 to 90 words, without mail addresses."""
    for i, row in enumerate(read(source / "copy" / "pep_copy.jsonl")):
        text = opening(row["turns"][0].partition("<<<\n")[2].removesuffix("\n>>>"))
        if 30 <= len(text.split()) <= 90 and text[0].isalpha() and not ADDRESS.search(text):
            name = row["id"].replace("pepcopy-", "pep-")
            asked = COPY_TEXT[i % len(COPY_TEXT)]
            yield verbatim(name, text, asked, "public domain or CC0-1.0", row["source"])


def excerpt(row: Row) -> str:
    return str(row["turns"][0].partition("```python\n")[2].removesuffix("\n```"))


def code_rows(source: Path) -> Iterator[Row]:
    """One block of code, between blank lines, from each excerpt that the edit rows do not use."""
    for row in commits(source)[COMMITS:]:
        blocks = [textwrap.dedent(block) for block in excerpt(row).split("\n\n")]
        fitting = [b for b in blocks if 6 <= len(b.split("\n")) <= 14 and 180 <= len(b) <= 420]
        if fitting:
            name = f"code-{row['id']}"
            yield verbatim(name, fitting[0].strip("\n"), COPY_CODE, row["licence"], row["source"])


def record_rows() -> Iterator[Row]:
    for i, (name, text) in enumerate(copy_rows.record_texts(2 * RECORDS)):
        asked = COPY_TEXT[i // 2 % len(COPY_TEXT)]
        yield verbatim(name, text, asked, copy_rows.LICENCE, copy_rows.ORIGIN)


def size(row: Row) -> tuple[int, str]:
    return len(row["turns"][0]), row["id"]


def commits(source: Path) -> list[Row]:
    """Commits that keep at least four fifths of their excerpt's lines, the shortest prompts first. Those with
    somebody's mail address are left out."""

    def kept(row: Row) -> float:
        before, after = excerpt(row).split("\n"), row["reference"].split("\n")
        return difflib.SequenceMatcher(None, before, after).ratio()

    rows = read(source / "copy" / "commit_edits_bench.jsonl")
    return sorted(
        (row for row in rows if 0.8 <= kept(row) < 1 and not ADDRESS.search(row["turns"][0])), key=size
    )


def edit_rows(source: Path) -> list[Row]:
    """The shortest commits and the shortest programs with a defect. No target has a say in these."""
    repairs = sorted(read(source / "copy" / "quixbugs_python.jsonl"), key=size)
    chosen = [*commits(source)[:COMMITS], *({**row, "licence": "MIT"} for row in repairs[:REPAIRS])]
    return [{**row, "category": "edit"} for row in chosen]


def groups(source: Path) -> Iterator[tuple[int, Iterator[Row]]]:
    """The candidates the target is asked for, in groups, each with the number of rows to keep of it."""
    yield PROSE, prose_rows(source)
    yield CODE, code_rows(source)
    yield RECORDS, record_rows()
    for kind in copy_rows.REFORMATS:
        yield PER_REFORMAT, copy_rows.reformat_rows(kind, CANDIDATES)


def choose(count: int, candidates: Iterator[Row], answer: Answer) -> list[Row]:
    """The first `count` candidates that the target copies; where they are too few, the first others too."""
    tried: list[Row] = []
    copies: list[str] = []
    for row in candidates:
        tried.append(row)
        if is_copy(*answer(row["turns"][0])):
            copies.append(row["id"])
        print(f"{row['id']}: {'copied' if row['id'] in copies else 'not copied'}", flush=True)
        if len(copies) == count:
            break
    others = [row["id"] for row in tried if row["id"] not in copies]
    kept = [*copies, *others[: count - len(copies)]]
    return [row for row in tried if row["id"] in kept]


def copy_task(source: Path, answer: Answer | None) -> list[Row]:
    """The copy task's rows: chosen with `answer`, or without it those whose ids the file holds now."""
    edits = edit_rows(source)
    if answer is not None:
        return [row for group in groups(source) for row in choose(*group, answer)] + edits
    ids = {row["id"] for row in read(ROOT / "tasks" / "copy" / "prompts.jsonl")}
    return [row for _, group in groups(source) for row in group if row["id"] in ids] + edits


def measure(answer: Answer) -> dict[str, Any]:
    """Prints every row's share and returns, by category, rows, rows that are copies and tokens."""
    totals: dict[str, Any] = {}
    for prompt in load_task("copy", ROOT).prompts:
        asked, reply = answer(prompt.turns[0])
        total = totals.setdefault(prompt.category, {"rows": 0, "copies": 0, "reply_tokens": 0})
        total["rows"] += 1
        total["copies"] += is_copy(asked, reply)
        total["reply_tokens"] += len(reply)
        print(f"{copied(asked, reply):5.2f} {len(asked):5} {len(reply):4}  {prompt.id}", flush=True)
    return totals


def main() -> None:
    """Writes the tasks or measures the copy task; the last line of a measurement is one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?")
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--target", default=EMBEDDED_ID)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--drafter", default="none", help="changes the time it takes, not the replies")
    given = parser.parse_args()
    target = (given.target, given.dtype, given.drafter)
    if given.source:
        answer = make_answer(*target) if given.choose else None
        chat, code = read(given.source / "chat/mt_bench.jsonl"), read(given.source / "code/humaneval.jsonl")
        write("chat", ({**row, "licence": "Apache-2.0"} for row in chat))
        write("code", ({**row, "licence": "MIT"} for row in code))
        write("copy", copy_task(given.source, answer))
    if given.measure:
        print("share prompt reply id")
        print(json.dumps({"target": given.target, **measure(make_answer(*target))}))


if __name__ == "__main__":
    main()
