"""The site: pages that open from a folder without a server, and the check that they are the records'."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path

from draftboard.errors import UserError, make_folder
from draftboard.record.accepted import read_ledger
from draftboard.record.history import read
from draftboard.record.store import Store, load
from draftboard.show.collect import RunRows, summarise
from draftboard.show.web import cache, shared
from draftboard.show.web.cache import KeptRun
from draftboard.show.web.renderer import Renderer
from draftboard.show.web.runs import run_pages

FRONT = "index.html"

FOLDERS = frozenset({"badges", "runs", "static"})
"""What a site consists of besides its pages."""

MANY = 8
"""Runs to make from which on it pays to start processes."""


def build(store: Store, out: Path, root: Path, base_url: str = "") -> Path:
    """Writes the site of all runs into `out` and returns its front page. `root` is the checkout with the
    templates, `base_url` where the site will be served. The pages of a run that did not change stay."""
    renderer = Renderer(root, base_url)
    make_folder(out, "name another place with --out")
    _refuse_others(out)
    last = cache.load(out, renderer.stamp)
    runs = _runs(renderer, dict(_folders(store)), last)
    written = [name for run in runs.values() for name in run.pages]
    rows, history = [run.rows for run in runs.values()], read(store.root)
    for name, text in shared.pages(renderer, rows, _accepted(store), history):
        cache.write(out / name, text)
        written.append(name)
    for name in set(last.written) - set(written):
        (out / name).unlink(missing_ok=True)
    cache.save(out, renderer.stamp, runs, written)
    return out / FRONT


def _refuse_others(out: Path) -> None:
    """Raises UserError for a folder in which no site was built and something else lies, such as results."""
    if (out / cache.FILE).exists():
        return
    others = [path.name for path in out.iterdir() if path.name not in FOLDERS and path.suffix != ".html"]
    if files := sorted(name for name in others if name[0] != "."):
        raise UserError(
            f"--out {out} holds {files[0]}, which no site has; name an empty folder, or one that a site was"
            " built in"
        )


def _accepted(store: Store) -> set[tuple[str, str]]:
    """Run and arm of everything that changes are compared with."""
    return {(one.run, one.arm_id) for one in read_ledger(store.root).accepted}


def _folders(store: Store) -> Iterator[tuple[str, Path]]:
    """Where the pages of each run go and where its records lie, oldest run first."""
    return ((f"runs/{run.path.parent.name}/{run.path.name}", run.path) for run in store.runs())


def _runs(renderer: Renderer, folders: dict[str, Path], last: cache.Cache) -> dict[str, KeptRun]:
    """Every run, those that changed made anew: many of them by as many processes as there are processors."""
    kept = {folder: last.find(folder, records) for folder, records in folders.items()}
    work = [
        (renderer.root, renderer.base_url, name, folders[name], last.out)
        for name, run in kept.items()
        if run is None
    ]
    if len(work) < MANY:
        made = dict(map(_make, work))
    else:
        with ProcessPoolExecutor() as pool:
            made = dict(pool.map(_make, work))
    return {folder: run or made[folder] for folder, run in kept.items()}


def _make(work: tuple[Path, str, str, Path, Path]) -> tuple[str, KeptRun]:
    """Writes the pages of one run: (root, base URL, its folder, its records, the site's folder)."""
    root, base_url, folder, records, out = work
    digest = cache.digest_of(records)
    run, arms = load(records)
    rows, pages = summarise(folder, run, arms), {}
    for name, text in run_pages(_renderer(root, base_url), folder, rows, arms):
        cache.write(out / name, text)
        pages[name] = cache.state(out / name) or (0, 0)
    return folder, KeptRun(digest, rows, pages)


_renderer = lru_cache(maxsize=1)(Renderer)
"""One for each process: it holds the templates."""


def verify(store: Store, out: Path, root: Path, base_url: str = "") -> str:
    """One line on a site whose every page is what `store` gives now, to the letter. Raises UserError at the
    first that differs, is missing or comes from no record."""
    renderer = Renderer(root, base_url)
    if not (out / FRONT).is_file():
        raise UserError(f"{out / FRONT}: no such page; build it with: draftboard site")
    seen: set[Path] = set()
    for name, expected in _all_pages(renderer, store):
        _compare(out / name, expected)
        seen.add(out / name)
    for file in sorted(out.rglob("*.html")):
        if file not in seen:
            raise UserError(f"{file}: comes from no record; remove it or build into an empty folder")
    return f"{out}: all {len(seen)} files equal the records"


def _all_pages(renderer: Renderer, store: Store) -> Iterator[tuple[str, str]]:
    found: list[RunRows] = []
    for folder, records in _folders(store):
        run, arms = load(records)
        found.append(summarise(folder, run, arms))
        yield from run_pages(renderer, folder, found[-1], arms)
    yield from shared.pages(renderer, found, _accepted(store), read(store.root))


def _compare(file: Path, expected: str) -> None:
    if not file.is_file():
        raise UserError(f"{file}: is missing; build the page again")
    shown = file.read_text(encoding="utf-8")
    if shown == expected:
        return
    at = next((i for i, (a, b) in enumerate(zip(shown, expected, strict=False)) if a != b), -1)
    line, start = shown.count("\n", 0, at) + 1, max(at - 40, 0)
    there, here = shown[start : at + 40].split("\n"), expected[start : at + 40].split("\n")
    raise UserError(
        f"{file}, line {line}: shows {' '.join(there)!r}, the records give {' '.join(here)!r}; "
        "build the page again"
    )
