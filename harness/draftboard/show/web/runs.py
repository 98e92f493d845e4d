"""The pages of one run: its own, and two for each arm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftboard.record.records import Arm
from draftboard.show import words
from draftboard.show.collect import RunRows
from draftboard.show.web import arms as arm_pages
from draftboard.show.web import viewer
from draftboard.show.web.asked import asked
from draftboard.show.web.boards import environment, run_words
from draftboard.show.web.page import make_cell
from draftboard.show.web.renderer import Renderer


def run_pages(
    renderer: Renderer, folder: str, found: RunRows, arms: Sequence[Arm]
) -> Iterator[tuple[str, str]]:
    """Paths and texts of the pages of a run and of its arms."""
    run = found.run
    prompts = asked(run.task, renderer.root)
    yield _index(renderer, folder, found)
    for entry, arm in zip(found.entries, arms, strict=True):
        made = arm_pages.make_page(run, arms, arm, entry)
        name = f"{entry.page}.html"
        yield name, renderer.page("arm.html.j2", name, page=made, run=run)
        if made.replies:
            name = f"{entry.page}-replies.html"
            shown = {"replies": viewer.replies(arm, prompts), "depth": viewer.depth(arm)}
            yield name, renderer.page("replies.html.j2", name, page=made, unasked=not prompts, **shown)


def _index(renderer: Renderer, folder: str, found: RunRows) -> tuple[str, str]:
    run, name = found.run, f"{folder}/index.html"
    names = words.names(found.rows)
    top = max((row.speedup_hi or row.speedup or 1.0 for row in found.rows), default=1.0)
    lines = [(names[entry.row.arm], make_cell(entry.row.task, 0, entry, top)) for entry in found.entries]
    data = {
        "title": f"Run {run.id}",
        "about": run_words(run),
        "command": run.command,
        "environment": environment(run),
        "lines": lines,
    }
    return name, renderer.page("run.html.j2", name, **data)
