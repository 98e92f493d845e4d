"""The viewer shows what was asked, from the checkout's task where it is the very one that was run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from draftboard.record.store import Store
from draftboard.show import site
from draftboard.show.web.asked import asked
from record_factory import make_run, random_arms
from site_factory import HOSTILE, ROOT, write
from task_factory import as_lines, make_task

QUESTIONS = [f"first line of {number}\nwith <b>marks</b> & more {HOSTILE}" for number in range(3)]
UNASKED = "What was asked is not shown"


def save_task(root: Path, questions: list[str]) -> str:
    """Writes the task `mine` with the prompts of `random_arms`; its hash."""
    rows = [
        {"id": f"p{i}", "category": "x", "turns": [text, f"more of {i}"]} for i, text in enumerate(questions)
    ]
    return make_task(root, rows=as_lines(rows)).sha256


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """This checkout, with tasks of its own."""
    made = tmp_path / "checkout"
    made.mkdir()
    for path in ROOT.iterdir():
        if path.name != "tasks":
            (made / path.name).symlink_to(path)
    (made / "tasks").mkdir()
    (made / "tasks" / "README.md").symlink_to(ROOT / "tasks" / "README.md")
    return made


def replies(out: Path) -> str:
    (page,) = out.rglob("guess-k4-*-replies.html")
    return page.read_text(encoding="utf-8")


def test_every_reply_has_its_question_above_it(root: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    write(store, 1, "mine", prompts=3, sha256=save_task(root, QUESTIONS))
    site.build(store, tmp_path / "out", root)
    page = replies(tmp_path / "out")
    shown = r'<h2 [^>]*>p(\d), turn (\d).*?<div class="text asked">(.*?)</div>'
    found = re.findall(shown, page, re.DOTALL)
    assert len(found) == page.count('<section class="reply"') == 4
    for prompt, turn, text in found:
        first = f"first line of {prompt}⏎\nwith &lt;b&gt;marks&lt;/b&gt; &amp; more"
        assert text.startswith(first if turn == "1" else f"more of {prompt}")
    assert "<script>alert" not in page and "\u202e" not in page and UNASKED not in page


def test_another_tasks_prompts_are_not_shown_and_that_is_said(root: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    write(store, 1, "mine", prompts=3, sha256=save_task(root, QUESTIONS))
    save_task(root, [*QUESTIONS[:2], "changed"])
    site.build(store, tmp_path / "out", root)
    assert "first line" not in replies(tmp_path / "out") and UNASKED in replies(tmp_path / "out")


def test_a_task_that_comes_back_renews_the_pages(root: Path, tmp_path: Path) -> None:
    """What a build keeps depends on the tasks, too; a verified site shows what they are now."""
    store, out = Store(tmp_path / "results"), tmp_path / "out"
    sha256 = save_task(root, QUESTIONS)
    save_task(root, ["changed"])
    write(store, 1, "mine", prompts=3, sha256=sha256)
    site.build(store, out, root)
    assert UNASKED in replies(out)
    save_task(root, QUESTIONS)
    site.build(store, out, root)
    assert "first line of 2" in replies(out)
    assert "files equal the records" in site.verify(store, out, root)


def test_a_file_in_the_working_directory_is_no_task(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records name a user's own prompts by their file's name; the site does not go and look for it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.jsonl").write_text(as_lines([{"prompt": "secret"}]))
    about = make_run(random_arms(1, prompts=1)).task
    for name in ("own.jsonl", "./tasks/mine", "hf:a/b", "nothing"):
        assert asked(type(about)(name, "t", 1, about.sha256, "l", 1), root) == {}
    assert asked(about, tmp_path / "nowhere") == {}
