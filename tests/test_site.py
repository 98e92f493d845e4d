"""The page: its figures recomputed from rounds, its self-sufficiency, and names that try to break it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from draftboard.errors import UserError
from draftboard.judge.metrics import METRICS
from draftboard.judge.terms import Terms
from draftboard.record.records import Generation, Training, Weights
from draftboard.record.store import Store
from draftboard.show import site
from draftboard.show.collect import read_all
from draftboard.show.web import charts
from draftboard.show.web.boards import make_front
from draftboard.show.web.page import Board
from record_factory import ENVIRONMENT, GUESSING, PLAIN, random_arms
from site_factory import HOSTILE, ROOT, Elements, write, write_methods


def boards_of(store: Store) -> tuple[Board, ...]:
    return make_front(read_all(store)).boards


def everything(out: Path) -> Elements:
    """All pages of a site, read as one."""
    return Elements("".join(file.read_text() for file in sorted(out.rglob("*.html"))))


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Store, Path]:
    root = tmp_path_factory.mktemp("site")
    store = Store(root / "results")
    for seed, task in enumerate(("chat", "code", "copy")):
        write(store, seed, task, indicative=task == "copy")
    return store, site.build(store, root / "public", ROOT)


def test_the_figures_equal_plain_loops_over_the_files(built):
    store, page = built
    found, front = everything(page.parent), Elements(page.read_text())
    checked = sizes = 0
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
            share = draft / milliseconds
            assert found.values[f"{key}/draft_share"] == pytest.approx(share, rel=1e-9, abs=1e-9), key
            assert found.texts[f"{key}/draft_share"] == f"{share:.1%}"
            if f"{key}/weight_bytes" in front.texts:
                size = arm["weights"]["bytes"]
                assert front.values[f"{key}/weight_bytes"] == size
                assert front.texts[f"{key}/weight_bytes"] == f"{size / 1e6:.1f} MB"
                sizes += 1
        for arm_id, own in pace.items():
            speedup = pace[run["baseline"]] / own
            assert found.values[f"{run['id']}/{arm_id}/speedup"] == pytest.approx(speedup)
            slower = " slower" if speedup < 1 else ""
            assert front.texts[f"{run['id']}/{arm_id}/speedup"] == f"{speedup:.2f}x{slower}"
            checked += 1
    assert checked == 3 * 3 * 6 and sizes == 2 * 3


def test_a_negative_rest_is_drawn_back_from_the_end():
    drawn = str(charts.terms_bars(Terms(2.0, 10.0, 1.0, 9.0, -2.0)))
    assert "take 20.0 ms by plain decoding and 8.0 ms in a round" in drawn and "other -2.00 ms" in drawn
    boxes = re.findall(r'class="(draft|verify|other)" x="([\d.]+)" y="42" width="([\d.]+)"', drawn)
    found = {name: (float(x), float(width)) for name, x, width in boxes}
    end = sum(found["verify"])
    assert found["other"][1] == pytest.approx(2 * found["draft"][1], abs=0.01)
    assert sum(found["other"]) == pytest.approx(end, abs=0.01)


def test_a_figure_without_an_interval_says_why(built):
    html = next(built[1].parent.rglob("guess-k4-guess4-chat.html")).read_text()
    lines = re.findall(r'</span></td><td>([^<]*)</td><td class="left">([^<]*)</td></tr>', html)
    assert len(lines) == len(METRICS) and all(interval or remark for interval, remark in lines)


def test_pages_need_nothing_from_outside(built):
    for file in built[1].parent.rglob("*.html"):
        for tag, given in Elements(file.read_text()).all:
            assert tag not in ("iframe", "object"), tag
            for name in ("src", "href"):
                target = (given.get(name) or "#").split("#")[0]
                if tag == "a" and target.startswith("https://"):
                    continue
                if not target.startswith("data:") and target:
                    assert ":" not in target and (file.parent / target).is_file(), (file, target)
    style = (built[1].parent / "static" / "style.css").read_text()
    assert "url(" not in style and "@import" not in style


def test_lines_stand_in_the_cards_order_then_by_k_with_the_baseline_marked(built):
    board = boards_of(built[0])[0]
    assert [(line.name.text, line.baseline) for line in board.lines] == [
        ("Plain decoding", True),
        ("Guessing K=4", False),
        ("Guessing K=8", False),
        ("Guessing K=16", False),
    ]
    assert [task.text for _, task in board.tasks] == ["The chat task", "The code task"]


def test_a_failed_arm_shows_its_error_and_the_others_are_whole(built):
    texts = Elements(built[1].read_text()).texts
    assert texts["run-chat/guess16-chat/error"] == "failed: out of <memory>"
    assert "run-chat/guess16-chat/speedup" not in texts
    assert texts["run-chat/guess4-chat/speedup"].endswith("x")


def test_an_arm_without_rounds_has_dashes_with_their_reason(tmp_path):
    base, arm = random_arms(1, prompts=8)
    traces = tuple(replace(t, rounds=None, rounds_missing="a server") for t in arm.traces)
    write(Store(tmp_path), 1, "chat", arms=[base, arm, replace(arm, id="hidden", k=2, traces=traces)])
    page = site.build(Store(tmp_path), tmp_path / "out", ROOT)
    texts = Elements(page.read_text()).texts
    assert texts["run-chat/hidden-chat/t_draft_ms"] == "–"
    key = 'data-key="run-chat/hidden-chat/acceptance_length" title="a server">–<'
    assert key in page.read_text()
    assert texts["run-chat/hidden-chat/speedup"] == texts["run-chat/arm00001-chat/speedup"]
    assert float(texts["run-chat/arm00001-chat/t_draft_ms"]) > 0
    for file in (page, *(page.parent / "runs").rglob("*.html")):
        html = file.read_text()
        body = re.sub(r"<script.*?</script>", "", html[html.index("<body") :], flags=re.S)
        assert not re.search(r"\b([Nn]a[Nn]|-?inf|None)\b", body), file


def test_origin_stamp_losses_and_reasons_are_shown(built):
    texts = [text.strip() for text in Elements(built[1].read_text()).said]
    assert "random weights" in texts and "indicative" in texts
    assert any(text.endswith("x slower") for text in texts)
    assert any("failed: out of <memory>" in text and text.startswith("chat, ") for text in texts)
    assert "no training" in texts and "long copies" in texts and "2026-01-31" in texts
    assert not any("second-hand)" in text for text in texts)


def test_second_hand_claims_are_marked(tmp_path):
    base, arm = random_arms(1, prompts=3)
    cost = replace(GUESSING.training_cost, second_hand=True)
    write(Store(tmp_path), 1, "chat", arms=[base, replace(arm, card=replace(GUESSING, training_cost=cost))])
    lines = boards_of(Store(tmp_path))[0].lines
    assert [fact.text for fact in lines[1].training] == ["no training (second-hand)"]
    assert lines[0].training == ()


def test_what_is_trained_here_says_so_and_that_its_cost_is_unknown(tmp_path):
    write_methods(Store(tmp_path), ("chat",))
    (board,) = boards_of(Store(tmp_path))
    line = next(line for line in board.lines if line.name.text == "Method 2 K=4")
    assert line.origin.text == "trained here, after the target"
    assert [fact.text for fact in line.training][1:] == ["ours: trained here, cost not recorded"]


def test_the_origin_of_weights_is_a_badge_beside_the_name(tmp_path):
    base, arm = random_arms(1, prompts=3)
    kinds = {"random": "random weights", "trained here": "trained here, after the target"}
    kinds |= {"published": "published weights", None: None}
    arms = [base]
    for k, origin in enumerate(kinds, 1):
        arms.append(replace(arm, id=f"arm{k}", k=k, weights=Weights(10 * k, f"{k}" * 64, origin)))
    write(Store(tmp_path), 1, "chat", arms=arms)
    html = site.build(Store(tmp_path), tmp_path / "out", ROOT).read_text()
    heads = re.findall(r'<th scope="row" class="method".*?</th>', html, flags=re.S)
    badges = [re.findall(r'<small class="badge ([a-z]+)">([^<]*)<', head) for head in heads]
    expected = [
        [("bad" if origin == "random" else "plain", text)] * bool(text) for origin, text in kinds.items()
    ]
    assert badges == [[], *expected]


def test_what_training_cost_here_stands_beside_what_is_published(tmp_path):
    base, arm = random_arms(1, prompts=3)
    cost = Training(2_500_000, 40_000_000, 5400.0, 9000.0, "Tiny CPU")
    arm = replace(arm, weights=Weights(10, "ab" * 32, "trained here", cost))
    write(Store(tmp_path), 1, "chat", arms=[base, arm])
    (board,) = boards_of(Store(tmp_path))
    assert [fact.text for fact in board.lines[1].training] == [
        "no training",
        "ours: 2.50 M tokens of text, 40.00 M visits, 90 min (150 min of processor) on Tiny CPU",
    ]


def test_the_best_k_of_each_method_is_marked_and_the_fastest_arm_named(tmp_path):
    write_methods(Store(tmp_path))
    (board,) = boards_of(Store(tmp_path))
    assert [line.name.text for line in board.lines if line.best] == [
        "Plain decoding",
        *(f"Method {number} K=4" for number in range(6)),
    ]
    assert len(board.lines) == 13
    assert [answer.text.split(":")[0] for answer in board.answers] == ["Method 0 K=4"] * 3


def test_where_nothing_pays_plain_decoding_is_the_answer(tmp_path):
    base, arm = random_arms(1, prompts=20)
    slow = tuple(replace(t, decode_ms=t.decode_ms * 9, wall_ms=t.wall_ms * 9) for t in arm.traces)
    write(Store(tmp_path), 1, "chat", arms=[base, replace(arm, traces=slow)], prompts=20)
    (board,) = boards_of(Store(tmp_path))
    assert board.answers[0].text == "plain decoding: nothing measured here pays"
    assert board.lines[1].worth.text.startswith("costs on chat 0.") and board.lines[1].worth.tone == "loss"


def test_figures_without_intervals_answer_nothing(tmp_path):
    base, arm = random_arms(1, prompts=2)
    write(Store(tmp_path), 1, "chat", arms=[base, arm], prompts=2)
    (board,) = boards_of(Store(tmp_path))
    assert board.answers[0].text == "no answer yet: too few prompts for intervals"


def test_every_metric_is_defined_once_and_linked(built):
    found = Elements((built[1].parent / "definitions.html").read_text())
    ids = [given["id"] for _, given in found.all if "id" in given]
    assert len(ids) == len(set(ids)) and {metric.name for metric in METRICS} <= set(ids)
    for metric in METRICS:
        assert metric.definition in found.said
    links = [given.get("href") or "" for _, given in everything(built[1].parent).all]
    anchors = {link.split("definitions.html#")[1] for link in links if "definitions.html#" in link}
    assert {"acceptance_length", "speedup", "worth", "tpot_ms_p99"} <= anchors <= set(ids)


def test_two_builds_are_equal(built, tmp_path):
    store, page = built
    assert site.build(store, tmp_path, ROOT).read_text() == page.read_text()


def test_machines_and_settings_do_not_share_a_table(tmp_path):
    store = Store(tmp_path)
    write(store, 1, "chat")
    write(store, 1, "code", fingerprint="e" * 12, testbed="other")
    write(store, 1, "copy", dtype="bfloat16")
    assert len(boards_of(store)) == 3


QUICK = Generation(96, 1, "target", None, None, (0,))
FEBRUARY = "2026-02-01T00:00:00Z"


def cells_of(board) -> list[tuple[str, str]]:
    """(line, run) of every cell of a board."""
    return [
        (line.name.text, cell.length.key.split("/")[0])
        for line in board.lines
        for cell in line.cells
        if cell is not None
    ]


@pytest.mark.parametrize("kind", ["a shorter cap", "the same arms"])
def test_a_quick_run_does_not_touch_the_standard_figures(tmp_path, kind):
    store, mark = Store(tmp_path), "-quick" if kind == "a shorter cap" else ""
    for seed, task in enumerate(("chat", "code", "copy")):
        write(store, seed, task, prompts=32)
    before = boards_of(store)
    changes = {"generation": QUICK} if mark else {}
    for seed, task in enumerate(("chat", "code", "copy")):
        quick = {"prompts": 6, "run": "quick", "mark": mark, "created_utc": FEBRUARY, "indicative": True}
        write(store, seed + 9, task, **quick, **changes)
    first, *below = boards_of(store)
    assert len(before) == 1 and first.lines == before[0].lines and first.title == before[0].title
    assert [board.title.endswith("at most 96 tokens, indicative") for board in below] == [True] * bool(mark)
    assert {run for board in below for _, run in cells_of(board)} == (
        {"quick-chat", "quick-code", "quick-copy"} if mark else set()
    )
    late = [note for note in first.notes if "a later run, quick-chat, is passed over" in note]
    assert bool(late) is not bool(mark)


def test_each_line_has_one_row_of_a_task(tmp_path):
    store = Store(tmp_path)
    for number in range(3):
        for seed, task in enumerate(("chat", "code")):
            month = f"2026-0{number + 1}-01T00:00:00Z"
            write(store, seed + number, task, run=f"run{number}", mark=f"-{number}", created_utc=month)
    (board,) = boards_of(store)
    found = cells_of(board)
    assert len(found) == 8 and {run for _, run in found} == {"run2-chat", "run2-code"}
    keys = [cell.length.key for line in board.lines for cell in line.cells if cell is not None]
    assert len(keys) == len(set(keys))


def test_a_failed_rerun_is_passed_over_with_a_note(tmp_path):
    store = Store(tmp_path)
    write(store, 1, "chat", prompts=32)
    base, arm = random_arms(1, prompts=32)
    failed = replace(arm, id="guess4", traces=(), error="out of memory", losslessness=None)
    write(store, 1, "chat", arms=[base, failed], prompts=32, run="rerun", created_utc=FEBRUARY)
    (board,) = boards_of(store)
    assert ("Guessing K=4", "run-chat") in cells_of(board)
    note = "chat, Guessing K=4: a later run, rerun-chat, is passed over: failed: out of memory"
    assert note in board.notes


def test_own_prompts_under_a_tasks_name_have_a_column_of_their_own(tmp_path):
    store = Store(tmp_path)
    write(store, 1, "chat", prompts=32)
    write(store, 2, "chat", prompts=32, mark="-own", run="own", sha256="c0ffee00" * 8, created_utc=FEBRUARY)
    (board,) = boards_of(store)
    assert [task.text for _, task in board.tasks] == [
        "The chat task (version 1, chatchat)",
        "The chat task (version 1, c0ffee00)",
    ]
    assert {run for _, run in cells_of(board)} == {"run-chat", "own-chat"}


@pytest.mark.parametrize("name", ["accepted.toml", "machine/run/run.json"])
def test_a_folder_of_something_else_is_not_written_into(name: str, tmp_path):
    (tmp_path / "out" / name).parent.mkdir(parents=True)
    (tmp_path / "out" / name).touch()
    with pytest.raises(
        UserError, match=rf"out holds {name.partition('/')[0]}, which no site has; name an empty"
    ):
        site.build(Store(tmp_path / "none"), tmp_path / "out", ROOT)


def test_a_site_whose_first_build_was_cut_short_is_built_again(tmp_path):
    """What a build leaves for the next one comes last; a file of a person's own beside a built site stays."""
    front = site.build(Store(tmp_path / "none"), tmp_path / "out", ROOT)
    (front.parent / ".build.json").unlink()
    site.build(Store(tmp_path / "none"), tmp_path / "out", ROOT)
    (front.parent / "CNAME").write_text("example.org")
    site.build(Store(tmp_path / "none"), tmp_path / "out", ROOT)
    assert (front.parent / "CNAME").exists()


def test_an_empty_store_gives_a_page_that_says_so(tmp_path):
    page = site.build(Store(tmp_path / "none"), tmp_path / "out", ROOT)
    assert "No results yet" in page.read_text()
    assert "files equal" in site.verify(Store(tmp_path / "none"), tmp_path / "out", ROOT)


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
    site.build(store, tmp_path / "out", ROOT)
    for file in (tmp_path / "out").rglob("*.html"):
        found = Elements(file.read_text())
        assert "b" not in {tag for tag, _ in found.all}
        assert not any("onmouseover" in given for _, given in found.all)
        assert "alert(1)" not in "".join(re.findall(r"<script[^>]*>", file.read_text()))
        assert "\u202e" not in file.read_text()
    front = (tmp_path / "out" / "index.html").read_text()
    assert front.count("</script>") == 3
    assert json.loads(front.split('id="records">')[1].split("</script>")[0])["rows"]
    assert site.verify(store, tmp_path / "out", ROOT)


# Verification


def test_an_untouched_site_verifies(built):
    store, page = built
    count = sum(1 for file in page.parent.rglob("*") if file.is_file() and not file.name.startswith("."))
    assert site.verify(store, page.parent, ROOT) == f"{page.parent}: all {count} files equal the records"


@pytest.mark.parametrize(
    "name", ["index", "definitions", "guess-k4-guess4-chat", "guess-k8-guess8-chat-replies"]
)
def test_an_edited_digit_is_noticed_wherever_it_stands(tmp_path, name):
    """In a text, in an attribute, in a picture and in the records to take away."""
    store, out = Store(tmp_path / "results"), tmp_path / "out"
    write(store, 1, "chat", prompts=3)
    site.build(store, out, ROOT)
    file = next(out.rglob(f"{name}.html"))
    html = file.read_text()
    digits = [m.start() for m in re.finditer(r"\d", html)]
    assert len(digits) > 20
    for at in digits[:: len(digits) // 2]:
        file.write_text(html[:at] + str((int(html[at]) + 1) % 10) + html[at + 1 :])
        with pytest.raises(UserError, match=rf"{name}.html, line \d+: shows .* build the page again"):
            site.verify(store, out, ROOT)
    site.build(store, out, ROOT)
    assert file.read_text() == html and site.verify(store, out, ROOT)


def test_a_removed_and_an_invented_page_are_noticed(tmp_path):
    store, out = Store(tmp_path / "results"), tmp_path / "out"
    write(store, 1, "chat")
    site.build(store, out, ROOT)
    (page,) = out.rglob("guess-k4-guess4-chat.html")
    invented = page.with_name("guess-k5.html")
    invented.write_text(page.read_text())
    with pytest.raises(UserError, match=r"guess-k5.html: comes from no record"):
        site.verify(store, out, ROOT)
    invented.unlink()
    page.unlink()
    with pytest.raises(UserError, match=r"guess-k4-guess4-chat.html: is missing; build the page again"):
        site.verify(store, out, ROOT)
    site.build(store, out, ROOT)
    assert site.verify(store, out, ROOT)


def test_a_site_older_than_the_records_is_noticed(tmp_path):
    store = Store(tmp_path / "results")
    write(store, 1, "chat")
    site.build(store, tmp_path / "out", ROOT)
    write(store, 2, "code")
    with pytest.raises(UserError, match="is missing; build the page again"):
        site.verify(store, tmp_path / "out", ROOT)


def test_a_missing_site_is_one_line(tmp_path):
    with pytest.raises(UserError, match="no such page; build it with: draftboard site"):
        site.verify(Store(tmp_path), tmp_path, ROOT)


# Building again


def test_the_front_page_of_500_arms_is_below_2_megabytes(tmp_path):
    """Its size goes with its arms: what one more costs tells what 500 do."""
    sizes = {}
    for tasks in (("chat",), ("chat", "code", "copy")):
        store, out = Store(tmp_path / f"{len(tasks)}"), tmp_path / f"out{len(tasks)}"
        write_methods(store, tasks, prompts=2)
        arms = sum(len(one.entries) for one in read_all(store))
        sizes[arms] = len(site.build(store, out, ROOT).read_bytes())
    (few, small), (many, large) = sorted(sizes.items())
    assert (few, many) == (13, 39)
    assert small + (500 - few) * max(small / few, (large - small) / (many - few)) < 2e6


def test_only_the_pages_of_new_runs_are_made_again(tmp_path, monkeypatch):
    store, out = Store(tmp_path / "results"), tmp_path / "out"
    write(store, 1, "chat")
    site.build(store, out, ROOT)
    made = []
    genuine = site.run_pages
    monkeypatch.setattr(
        site, "run_pages", lambda r, folder, *rest: made.append(folder) or genuine(r, folder, *rest)
    )
    site.build(store, out, ROOT)
    assert made == []
    write(store, 2, "code")
    site.build(store, out, ROOT)
    assert made == ["runs/tiny-cpu-2t-float32/run-code"]
    assert site.verify(store, out, ROOT)


def test_many_runs_are_made_by_several_processes_and_come_out_alike(tmp_path):
    """Verification makes every page in this process."""
    store, out = Store(tmp_path / "results"), tmp_path / "out"
    for number in range(site.MANY):
        write(store, number, "chat", prompts=1, mark=f"-{number}", run=f"run{number}")
    site.build(store, out, ROOT)
    assert len(list(out.glob("runs/*/*/index.html"))) == site.MANY
    assert site.verify(store, out, ROOT)


def test_pages_of_a_removed_run_go_and_other_files_stay(tmp_path):
    store, out = Store(tmp_path / "results"), tmp_path / "out"
    write(store, 1, "chat")
    write(store, 2, "code")
    site.build(store, out, ROOT)
    (out / "CNAME").write_text("example.org")
    for file in (store.root / "tiny-cpu-2t-float32" / "run-code").iterdir():
        file.unlink()
    site.build(store, out, ROOT)
    assert not list(out.rglob("*code*.html")) and (out / "CNAME").exists()
    assert site.verify(store, out, ROOT)


@pytest.mark.parametrize("text", ["", "[]", '{"stamp": 1}', "{"])
def test_a_spoilt_memory_of_the_last_build_costs_only_time(tmp_path, text):
    store, out = Store(tmp_path / "results"), tmp_path / "out"
    write(store, 1, "chat")
    site.build(store, out, ROOT)
    (out / ".build.json").write_text(text)
    site.build(store, out, ROOT)
    assert site.verify(store, out, ROOT)
