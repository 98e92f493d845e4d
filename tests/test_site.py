"""The page: its figures recomputed from rounds, its self-sufficiency, and names that try to break it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from draftboard.errors import UserError
from draftboard.judge.metrics import METRICS
from draftboard.record.records import Generation, TaskRef, Weights
from draftboard.record.store import Store
from draftboard.show import site
from draftboard.show.boards import make_page
from draftboard.show.collect import read_all
from draftboard.show.page import facts
from record_factory import ENVIRONMENT, GUESSING, PLAIN, make_run, random_arms

TEMPLATES = Path(__file__).resolve().parents[1] / "site" / "templates"
HOSTILE = 'a" onmouseover="x <b>&</script><script>alert(1)</script>\u202e' + "w" * 200


def write(store: Store, seed: int, task: str, *, arms=None, prompts=8, mark="", run="run", **changes) -> None:
    """A run of one task with a sound arm, a slow one and a failed one; ids differ by task and `mark`."""
    base, arm = random_arms(seed, prompts)
    slow = tuple(replace(t, decode_ms=t.decode_ms * 3, wall_ms=t.wall_ms * 3) for t in arm.traces)
    made = [
        base,
        replace(arm, id="guess4"),
        replace(arm, id="guess8", k=8, traces=slow, weights=Weights(10, "ab", "random")),
        replace(arm, id="guess16", k=16, traces=(), error="out of <memory>", losslessness=None),
    ]
    made = [
        replace(a, id=f"{a.id}-{task}{mark}", baseline=f"{base.id}-{task}{mark}", run=f"{run}-{task}")
        for a in arms or made
    ]
    title, sha256 = changes.pop("title", f"The {task} task"), changes.pop("sha256", task * 8)
    about = TaskRef(task, title, 1, sha256, "Apache-2.0", prompts)
    store.write_run(make_run(made, id=f"{run}-{task}", task=about, **changes), made)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Store, Path]:
    root = tmp_path_factory.mktemp("site")
    store = Store(root / "results")
    for seed, task in enumerate(("chat", "code", "copy")):
        write(store, seed, task, indicative=task == "copy")
    return store, site.build(store, root / "public", TEMPLATES)


class Elements(HTMLParser):
    """All elements with their attributes, and the text of those with a data-key."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.all: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.values: dict[str, float] = {}
        self._key: str | None = None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.all.append((tag, given))
        if "data-key" in given:
            self._key = given["data-key"]
            self.texts[self._key] = ""
            if re.fullmatch(r"[\d.e+-]+", given.get("data-value") or ""):
                self.values[self._key] = float(given["data-value"])

    def handle_data(self, data):
        if self._key:
            self.texts[self._key] += data

    def handle_endtag(self, tag):
        self._key = None


def test_the_figures_equal_plain_loops_over_the_files(built):
    store, page = built
    found = Elements(page.read_text())
    checked = 0
    for folder in store.root.glob("*/run-*"):
        run = json.loads((folder / "run.json").read_text())
        arms = {a["id"]: a for a in (json.loads(p.read_text()) for p in folder.glob("*-*.json"))}
        pace = {}
        for arm in arms.values():
            milliseconds = tokens = rounds = emitted = 0
            draft = verify = 0.0
            for trace in arm["traces"]:
                milliseconds += trace["decode_ms"]
                tokens += len(trace["token_ids"]) - 1
                for i, count in enumerate(trace["rounds"]["emitted"]):
                    rounds += 1
                    emitted += count
                    draft += trace["rounds"]["draft_ms"][i] + trace["rounds"]["commit_ms"][i]
                    verify += trace["rounds"]["verify_ms"][i]
            if arm["error"]:
                continue
            pace[arm["id"]] = milliseconds / tokens
            key = f"{run['id']}/{arm['id']}"
            expected = {
                "acceptance_length": emitted / rounds,
                "t_draft_ms": draft / rounds,
                "t_verify_ms": verify / rounds,
                "t_other_ms": (milliseconds - draft - verify) / rounds,
                "tokens_per_s": 1000 * tokens / milliseconds,
            }
            for name, value in expected.items():
                assert found.values[f"{key}/{name}"] == pytest.approx(value, rel=1e-9, abs=1e-9), key
                assert float(found.texts[f"{key}/{name}"]) == pytest.approx(value, abs=0.051), key
                checked += 1
        for arm_id, own in pace.items():
            speedup = pace[run["baseline"]] / own
            assert found.values[f"{run['id']}/{arm_id}/speedup"] == pytest.approx(speedup)
            slower = " slower" if speedup < 1 else ""
            assert found.texts[f"{run['id']}/{arm_id}/speedup"] == f"{speedup:.2f}x{slower}"
            checked += 1
    assert checked == 3 * 3 * 6


def test_the_page_needs_nothing_from_outside(built):
    html = built[1].read_text()
    found = Elements(html)
    for tag, given in found.all:
        assert tag not in ("script", "img", "iframe", "object"), tag
        for name in ("src", "href"):
            assert (given.get(name) or "#").startswith(("#", "data:")), given
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style and "@import" not in style


def test_light_dark_and_phone(built):
    html = built[1].read_text()
    assert "prefers-color-scheme: dark" in html
    assert '<meta name="viewport" content="width=device-width' in html


def test_lines_stand_in_the_cards_order_then_by_k_with_the_baseline_marked(built):
    board = make_page(read_all(built[0])).boards[0]
    assert [(line.name.text, line.baseline) for line in board.lines] == [
        ("Plain decoding", True),
        ("Guessing K=4", False),
        ("Guessing K=8", False),
        ("Guessing K=16", False),
    ]
    assert [task.text for task in board.tasks] == ["The chat task", "The code task"]


def test_a_failed_arm_shows_its_error_and_the_others_are_whole(built):
    texts = Elements(built[1].read_text()).texts
    assert texts["run-chat/guess16-chat/error"] == "failed: out of <memory>"
    assert "run-chat/guess16-chat/speedup" not in texts
    assert texts["run-chat/guess4-chat/speedup"].endswith("x")


def test_an_arm_without_rounds_has_dashes_with_their_reason(tmp_path):
    base, arm = random_arms(1, prompts=8)
    traces = tuple(replace(t, rounds=None, rounds_missing="a server") for t in arm.traces)
    write(Store(tmp_path), 1, "chat", arms=[base, arm, replace(arm, id="hidden", k=2, traces=traces)])
    html = site.build(Store(tmp_path), tmp_path / "out", TEMPLATES).read_text()
    texts = Elements(html).texts
    assert texts["run-chat/hidden-chat/t_verify_ms"] == "–"
    assert 'data-key="run-chat/hidden-chat/acceptance_length" title="a server">–<' in html
    assert texts["run-chat/hidden-chat/speedup"] == texts["run-chat/arm00001-chat/speedup"]
    assert float(texts["run-chat/arm00001-chat/t_verify_ms"]) > 0
    assert not re.search(r"\b(nan|inf|None)\b", html[html.index("<body") :], re.I)


def test_origin_stamp_losses_and_reasons_are_shown(built):
    texts = Elements(built[1].read_text()).texts
    said = list(texts.values())
    assert "random" in said and "indicative" in said
    assert any(text.endswith("x slower") for text in said)
    assert any("failed: out of <memory>" in text and text.startswith("chat, ") for text in said)
    assert any("second-hand" in text for text in said) is False
    assert "no training" in said and "long copies" in said and "2026-01-31" in said


def test_second_hand_claims_are_marked(tmp_path):
    base, arm = random_arms(1, prompts=3)
    cost = replace(GUESSING.training_cost, second_hand=True)
    write(Store(tmp_path), 1, "chat", arms=[base, replace(arm, card=replace(GUESSING, training_cost=cost))])
    lines = make_page(read_all(Store(tmp_path))).boards[0].lines
    assert lines[1].training_cost.text == "no training (second-hand)"
    assert lines[0].training_cost.text == "–"


def test_every_metric_is_defined_once_and_linked(built):
    found = Elements(built[1].read_text())
    ids = [given["id"] for _, given in found.all if "id" in given]
    assert len(ids) == len(set(ids))
    for metric in METRICS:
        assert metric.name in ids
        assert found.texts[f"definition/{metric.name}"] == metric.definition
    for _, given in found.all:
        if (given.get("href") or "").startswith("#"):
            assert given["href"][1:] in ids


def test_two_builds_are_equal(built, tmp_path):
    store, page = built
    assert site.build(store, tmp_path, TEMPLATES).read_text() == page.read_text()


def test_machines_and_settings_do_not_share_a_table(tmp_path):
    store = Store(tmp_path)
    write(store, 1, "chat")
    write(store, 1, "code", fingerprint="e" * 12, testbed="other")
    write(store, 1, "copy", dtype="bfloat16")
    assert len(make_page(read_all(store)).boards) == 3


QUICK = Generation(96, 1, "target", None, None, (0,))
FEBRUARY = "2026-02-01T00:00:00Z"


def cells_of(board) -> list[tuple[str, str]]:
    """(line, run) of every cell of a board."""
    return [
        (line.name.text, fact.key.split("/")[0])
        for line in board.lines
        for cell in line.cells
        if cell is not None
        for fact in [next(facts(cell))]
    ]


@pytest.mark.parametrize("kind", ["a shorter cap", "the same arms"])
def test_a_quick_run_does_not_touch_the_standard_figures(tmp_path, kind):
    store, mark = Store(tmp_path), "-quick" if kind == "a shorter cap" else ""
    for seed, task in enumerate(("chat", "code", "copy")):
        write(store, seed, task, prompts=32)
    before = make_page(read_all(store)).boards
    changes = {"generation": QUICK} if mark else {}
    for seed, task in enumerate(("chat", "code", "copy")):
        quick = {"prompts": 6, "run": "quick", "mark": mark, "created_utc": FEBRUARY, "indicative": True}
        write(store, seed + 9, task, **quick, **changes)
    first, *below = make_page(read_all(store)).boards
    assert len(before) == 1 and first.lines == before[0].lines and first.title == before[0].title
    assert [board.title.text.endswith("at most 96 tokens, indicative") for board in below] == [True] * bool(
        mark
    )
    assert {run for board in below for _, run in cells_of(board)} == (
        {"quick-chat", "quick-code", "quick-copy"} if mark else set()
    )
    late = [note.text for note in first.notes if "a later run, quick-chat, is passed over" in note.text]
    assert bool(late) is not bool(mark)


def test_each_line_has_one_row_of_a_task(tmp_path):
    store = Store(tmp_path)
    for number in range(3):
        for seed, task in enumerate(("chat", "code")):
            month = f"2026-0{number + 1}-01T00:00:00Z"
            write(store, seed + number, task, run=f"run{number}", mark=f"-{number}", created_utc=month)
    (board,) = make_page(read_all(store)).boards
    found = cells_of(board)
    assert len(found) == 8 and {run for _, run in found} == {"run2-chat", "run2-code"}
    keys = [fact.key for fact in facts(make_page(read_all(store)))]
    assert len(keys) == len(set(keys))


def test_a_failed_rerun_is_passed_over_with_a_note(tmp_path):
    store = Store(tmp_path)
    write(store, 1, "chat", prompts=32)
    base, arm = random_arms(1, prompts=32)
    failed = replace(arm, id="guess4", traces=(), error="out of memory", losslessness=None)
    write(store, 1, "chat", arms=[base, failed], prompts=32, run="rerun", created_utc=FEBRUARY)
    (board,) = make_page(read_all(store)).boards
    assert ("Guessing K=4", "run-chat") in cells_of(board)
    note = "chat, Guessing K=4: a later run, rerun-chat, is passed over: failed: out of memory"
    assert note in [one.text for one in board.notes]


def test_own_prompts_under_a_tasks_name_have_a_column_of_their_own(tmp_path):
    store = Store(tmp_path)
    write(store, 1, "chat", prompts=32)
    write(store, 2, "chat", prompts=32, mark="-own", run="own", sha256="c0ffee00" * 8, created_utc=FEBRUARY)
    (board,) = make_page(read_all(store)).boards
    assert [task.text for task in board.tasks] == [
        "The chat task (version 1, chatchat)",
        "The chat task (version 1, c0ffee00)",
    ]
    assert {run for _, run in cells_of(board)} == {"run-chat", "own-chat"}


def test_an_empty_store_gives_a_page_that_says_so(tmp_path):
    page = site.build(Store(tmp_path / "none"), tmp_path / "out", TEMPLATES)
    assert "No results yet" in page.read_text()
    assert "facts equal" in site.verify(Store(tmp_path / "none"), tmp_path / "out")


def test_missing_templates_are_one_line(tmp_path):
    with pytest.raises(UserError, match="run in the checkout"):
        site.build(Store(tmp_path), tmp_path, tmp_path)


def test_hostile_names_are_inert(tmp_path):
    store = Store(tmp_path / "results")
    base, arm = random_arms(1, prompts=3)
    card = replace(GUESSING, label=HOSTILE, mechanism=HOSTILE, when_to_use=HOSTILE)
    arms = [
        replace(base, card=replace(PLAIN, label="plain")),
        replace(arm, card=card, options={HOSTILE: HOSTILE}),
        replace(arm, id="failed", k=9, card=card, error=HOSTILE, traces=()),
    ]
    environment = replace(ENVIRONMENT, device=HOSTILE)
    write(store, 1, "chat", arms=arms, environment=environment, title=HOSTILE, command=HOSTILE)
    html = site.build(store, tmp_path / "out", TEMPLATES).read_text()
    found = Elements(html)
    assert {tag for tag, _ in found.all}.isdisjoint({"b", "script"})
    assert not any("onmouseover" in given for _, given in found.all)
    assert sum("onmouseover" in text for text in found.texts.values()) > 5
    assert "\u202e" not in html
    assert site.verify(store, tmp_path / "out")


# Verification


def edited(built, tmp_path, html: str) -> tuple[Store, Path]:
    (tmp_path / "index.html").write_text(html)
    return built[0], tmp_path


def test_an_untouched_page_verifies(built):
    store, page = built
    count = len({fact.key for fact in facts(make_page(read_all(store)))})
    assert site.verify(store, page.parent) == f"{page}: all {count} facts equal the records"


def test_every_digit_that_can_be_read_is_verified(built, monkeypatch, tmp_path):
    """Each digit of the body's text and of every data-value, changed on its own, is noticed."""
    store, page = built
    html, whole = page.read_text(), make_page(read_all(store))
    monkeypatch.setattr(site, "make_page", lambda found: whole)
    monkeypatch.setattr(site, "read_all", lambda store: [])
    values = {i for m in re.finditer(r'data-value="([^"]*)"', html) for i in range(m.start(1), m.end(1))}
    text = {
        i for m in re.finditer(r">([^<]*)<", html[html.index("<body") :]) for i in range(m.start(1), m.end(1))
    }
    places = values | {i + html.index("<body") for i in text}
    digits = sorted(i for i in places if html[i].isdigit() and html[i - 1] not in "&#")
    assert len(digits) > 500
    for i in digits[::23]:
        changed = html[:i] + str((int(html[i]) + 1) % 10) + html[i + 1 :]
        with pytest.raises(UserError, match="build the page again"):
            site.verify(*edited(built, tmp_path, changed))


def test_a_removed_and_an_invented_figure_are_noticed(built, tmp_path):
    html = built[1].read_text()
    cell = re.search(r'<strong [^>]*data-key="run-code/guess4-code/speedup".*?</strong>', html)
    with pytest.raises(UserError, match="run-code/guess4-code/speedup is missing"):
        site.verify(*edited(built, tmp_path, html.replace(cell[0], "")))
    invented = html.replace(cell[0], cell[0] + cell[0].replace("guess4", "guess5"))
    with pytest.raises(UserError, match=r"run-code/guess5-code/speedup shows .*which no record gives"):
        site.verify(*edited(built, tmp_path, invented))


def test_a_page_older_than_the_records_is_noticed(built, tmp_path):
    store = Store(tmp_path / "results")
    write(store, 1, "chat")
    site.build(store, tmp_path / "out", TEMPLATES)
    write(store, 2, "code")
    with pytest.raises(UserError, match="is missing; build the page again"):
        site.verify(store, tmp_path / "out")


def test_a_missing_page_is_one_line(tmp_path):
    with pytest.raises(UserError, match="no such page; build it with: draftboard site"):
        site.verify(Store(tmp_path), tmp_path)
