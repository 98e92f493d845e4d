"""The site in a real browser: opened from its folder with the network off, by mouse, keyboard and phone."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftboard.record.store import Store
from draftboard.record.telemetry import DeviceWindow, Series, Telemetry, Window
from draftboard.show import export, site
from draftboard.show.collect import read_all
from draftboard.show.web import shared
from draftboard.show.web.boards import make_front
from record_factory import ENVIRONMENT, GUESSING, random_arms
from site_factory import HOSTILE, ROOT, write, write_methods, write_rulings

PATIENCE_MS = 120_000
"""A busy machine may take its time; nothing is asserted about it."""

FORMULA = "=1+1" + HOSTILE

pytestmark = pytest.mark.needs("chromium", "playwright", "axe_playwright_python")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tool:
        opened = tool.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Path]:
    """Six methods on three tasks; on another machine a hostile arm, a failed one and one without rounds."""
    root = tmp_path_factory.mktemp("browser")
    store = Store(root / "results")
    write_methods(store, prompts=6)
    base, arm = random_arms(7, prompts=6)
    card = replace(GUESSING, label=HOSTILE, mechanism=HOSTILE, order=5)
    hidden = tuple(replace(t, rounds=None, rounds_missing="a server") for t in arm.traces)
    odd = [
        base,
        replace(arm, id="hostile", card=card),
        replace(arm, id="failed", k=16, traces=(), error=FORMULA, losslessness=None),
        replace(arm, id="hidden", k=2, traces=hidden),
    ]
    other = {"fingerprint": "e" * 12, "testbed": "other", "environment": replace(ENVIRONMENT, device=HOSTILE)}
    write(store, 7, "chat", arms=odd, prompts=6, mark="-odd", run="odd", **other)
    site.build(store, root / "public", ROOT)
    return store, root / "public"


@contextmanager
def opened(browser: Any, file: Path, hash_: str = "", **options: Any) -> Iterator[Any]:
    """A page with the network off. Whatever it asked for outside, printed to its console or threw fails."""
    context = browser.new_context(offline=True, accept_downloads=True, **options)
    context.set_default_timeout(PATIENCE_MS)
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.on(
        "request",
        lambda r: wrong.append(r.url) if not r.url.startswith(("file:", "data:", "blob:")) else None,
    )
    page.goto(f"file://{file}{hash_}")
    yield page
    context.close()
    assert wrong == []


def rows(page: Any, board: int = 0) -> list[str]:
    """Names in the shown rows of a table."""
    found = page.locator(".board:not([hidden])").nth(board).locator("tbody tr:not([hidden]) .method > span")
    return [name.strip() for name in found.all_inner_texts()]


def arm_page(out: Path, name: str) -> Path:
    return next(out.rglob(name))


def test_every_page_opens_without_a_word_on_the_console(browser, built):
    pages = sorted(built[1].rglob("*.html"))
    assert len(pages) > 70
    seen: set[tuple[str, ...]] = set()
    for file in pages:
        kind = (*file.parts[-4:-2], "replies" if file.name.endswith("-replies.html") else file.name[:5])
        if kind not in seen:
            seen.add(kind)
            with opened(browser, file) as page:
                assert page.locator("h1").count() == 1


def test_sorting_goes_by_value_and_says_so(browser, built):
    with opened(browser, built[1] / "index.html", "#k=all") as page:
        original = rows(page)
        head = page.locator("th[data-col='memory']").first
        shown = page.locator(".board").first.locator("tbody tr td.first.number:last-of-type")
        assert head.get_attribute("aria-sort") is None
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "ascending"
        found = (
            page.locator(".board")
            .first.locator("tbody tr")
            .evaluate_all(
                "rows => rows.map(r => r.querySelectorAll('td.first.number'))"
                ".map(cells => cells[cells.length - 1].innerText)"
            )
        )
        values = [float(text.split()[0]) for text in found]
        assert values == sorted(values) and "9.0 MB" in found and "12.0 MB" in found, shown
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "descending"
        head.locator("button").click()
        assert head.get_attribute("aria-sort") is None and rows(page) == original


def test_verdicts_sort_by_what_they_say(browser, built):
    with opened(browser, built[1] / "index.html", "#k=all&sort=verdict:up") as page:
        cells = page.locator(".board").nth(1).locator("tbody td.verdict > span")
        ranks = [int(rank) for rank in cells.evaluate_all("all => all.map(e => e.dataset.value)")]
        tones = cells.evaluate_all("all => all.map(e => e.className)")
    assert ranks == sorted(ranks) and tones == ["bad", "plain", "plain", "plain"]


def test_speedups_sort_largest_first_and_rows_without_one_come_last(browser, built):
    with opened(browser, built[1] / "index.html", "#k=all") as page:
        head = page.locator(".board").nth(1).locator("th[data-col='chat/speedup']")
        for direction in ("descending", "ascending"):
            head.locator("button").click()
            assert head.get_attribute("aria-sort") == direction
            assert rows(page, 1)[-1] == "Guessing K=16"
        first = page.locator(".board").first.locator("tbody tr:not([hidden]) [data-key$='/speedup']")
        values = [float(v) for v in first.evaluate_all("all => all.map(e => e.dataset.value)")]
        assert len(values) == 39


def test_a_view_is_an_address(browser, built):
    with opened(browser, built[1] / "index.html") as page:
        assert rows(page) == ["Plain decoding", *(f"Method {n} K=4" for n in range(6))]
        page.select_option("select[name=k]", "8")
        page.select_option("select[name=task]", "code")
        page.locator(".board").first.locator("th[data-col='code/speedup'] button").click()
        view, address = rows(page), page.url
        assert page.locator(".board:not([hidden])").count() == 1
        assert page.locator("#shown").inner_text() == "7 of 17 rows in 1 of 2 tables"
        assert page.locator("th[data-col='chat/speedup']").first.is_hidden()
    assert "#task=code&k=8&sort=code%2Fspeedup%3Adown" in address
    assert view == [*(f"Method {n} K=8" for n in range(6)), "Plain decoding"]
    with opened(browser, built[1] / "index.html", "#" + address.split("#")[1]) as page:
        assert rows(page) == view
        page.locator("button[type=reset]").click()
        page.wait_for_function("!location.hash")
        assert page.locator(".board:not([hidden])").count() == 2


def test_a_filter_by_a_hostile_name_works_and_an_unknown_one_is_dropped(browser, built):
    with opened(browser, built[1] / "index.html") as page:
        page.select_option("select[name=hardware]", index=2)
        assert page.locator(".board:not([hidden])").count() == 1
        address = page.url
    with opened(browser, built[1] / "index.html", "#" + address.split("#")[1]) as page:
        assert page.locator(".board:not([hidden])").count() == 1 and "Guessing" in " ".join(rows(page))
    with opened(browser, built[1] / "index.html", "#hardware=nothing&k=nine&sort=x:down") as page:
        assert page.locator(".board:not([hidden])").count() == 2
        page.select_option("select[name=k]", "8")
        assert page.url.endswith("#k=8")


def take(page: Any, kind: str) -> str:
    with page.expect_download() as download:
        page.locator(f"[data-take={kind}]").click()
    assert download.value.suggested_filename.startswith("draftboard.")
    return Path(download.value.path()).read_text()


def test_the_shown_rows_can_be_taken_away(browser, built):
    store, out = built
    front = make_front(read_all(store))
    expected = [
        {name: record[name] for name in shared.TAKEN}
        for record in export.records(front.records)
        if record["task"] == "copy" and record["k"] in (None, 8)
    ]
    assert len(expected) == 7
    with opened(browser, out / "index.html", "#task=copy&k=8") as page:
        found = json.loads(take(page, "json"))
        table = list(csv.DictReader(io.StringIO(take(page, "csv"))))
        markdown = take(page, "markdown").splitlines()
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert [row["arm"] for row in table] == [row["arm"] for row in found]
    assert [float(row["speedup"]) for row in table] == [row["speedup"] for row in found]
    assert len(markdown) == 2 + 7 and len({line.count(" | ") for line in markdown}) == 1


def test_a_hostile_row_survives_being_taken_away(browser, built):
    with opened(browser, built[1] / "index.html", "#k=all") as page:
        page.select_option("select[name=hardware]", index=2)
        table = list(csv.DictReader(io.StringIO(take(page, "csv"))))
        whole = json.loads(take(page, "json"))
    assert len(table) == 4 and {row["device"] for row in table} == {HOSTILE}
    assert {row["error"] for row in table} == {"", f"'{FORMULA}"}
    assert {row["error"] for row in whole} == {None, FORMULA}


def test_hostile_names_are_inert(browser, built):
    out = built[1]
    for file in (
        out / "index.html",
        arm_page(out, "guess-k4-hostile*odd.html"),
        arm_page(out, "guess-k16-failed*.html"),
    ):
        with opened(browser, file) as page:
            assert page.locator("[onmouseover]").count() == 0 and page.locator("b").count() == 0
            page.mouse.move(400, 400)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), file


CONTRAST = ["color-contrast"]


def serious(page: Any, rules: list[str] | None = None) -> list[tuple[str, str, str]]:
    """What axe-core finds serious: (rule, element, why). It sends no requests of its own."""
    from axe_playwright_python.sync_playwright import Axe

    only = {"runOnly": rules} if rules else {}
    return [
        (found["id"], node["html"][:120], node["failureSummary"][:300])
        for found in Axe().run(page, options={"preload": False, **only}).response["violations"]
        if found["impact"] in ("serious", "critical")
        for node in found["nodes"][:3]
    ]


@pytest.mark.parametrize(("scheme", "rules"), [("light", None), ("dark", CONTRAST)])
def test_axe_finds_nothing_serious(browser, built, scheme, rules):
    """In the dark only colours differ."""
    out, found = built[1], []
    names = ("guess-k4-hostile*odd.html", "*m1k4-chat-replies.html", "run-chat/index.html")
    for file in (*sorted(out.glob("*.html")), *(arm_page(out, name) for name in names)):
        with opened(browser, file, color_scheme=scheme) as page:
            found += [(file.name, *one) for one in serious(page, rules)]
    assert found == []


def sampled(watts: float) -> Telemetry:
    at, values = tuple(i / 2 for i in range(20)), tuple(watts + i for i in range(20))
    series = {
        "gpu_busy_pct": Series("%", "gauge", "ok", at_s=at, values=values),
        "power_w": Series("W", "gauge", "ok", at_s=at, values=values),
    }
    window = Window(10.0, 0.5, (DeviceWindow("Tiny GPU", "gpu", None, series),))
    return Telemetry(window, replies=7, tokens=1000, software={})


@pytest.mark.parametrize(("scheme", "rules"), [("light", None), ("dark", CONTRAST)])
def test_axe_finds_nothing_serious_in_telemetry_and_trends(browser, tmp_path, scheme, rules):
    store, out, found = Store(tmp_path / "results"), tmp_path / "out", []
    for number in range(2):
        base, arm = (
            replace(one, telemetry=sampled(30 + number), telemetry_missing=None)
            for one in random_arms(number, 6)
        )
        gpu = replace(ENVIRONMENT, device_type="cuda")
        when = f"2026-0{number + 1}-01T00:00:00Z"
        more = {"run": f"m{number}", "created_utc": when, "environment": gpu}
        write(store, number, "chat", arms=[base, arm], prompts=6, **more)
    write_rulings(store.root, (4.0, 4.0, 4.0, 3.6, 3.6, 3.6))
    site.build(store, out, ROOT)
    assert "gpu_busy_pct over time" in arm_page(out, "guess-k4-arm00001-chat.html").read_text()
    for file in (out / "index.html", out / "trends.html", arm_page(out, "guess-k4-arm00001-chat.html")):
        with opened(browser, file, color_scheme=scheme) as page:
            assert file.name == "index.html" or page.locator("svg.plot").count() > 0
            found += [(file.name, *one) for one in serious(page, rules)]
    assert found == []


def contrast(page: Any, element: str, colour: str) -> float:
    """WCAG 2.1's contrast of an element's colour with the page's."""

    def luminance(text: str) -> float:
        parts = [float(part) / 255 for part in re.findall(r"[\d.]+", text)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    own = page.locator(element).first.evaluate(f"e => getComputedStyle(e).{colour}")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    dark, light = sorted((luminance(own), luminance(paper)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_step_can_be_seen_and_read(browser, tmp_path, scheme):
    store = Store(tmp_path / "results")
    write_rulings(store.root, (4.0, 4.0, 4.0, 3.6, 3.6, 3.6))
    site.build(store, tmp_path / "out", ROOT)
    with opened(browser, tmp_path / "out" / "trends.html", color_scheme=scheme) as page:
        heights = page.locator("svg .step").evaluate_all(
            "all => all.map(e => e.getBoundingClientRect().height)"
        )
        assert len(heights) == 2 and min(heights) > 50
        assert page.locator("svg text", has_text="-10.0%").count() == 2
        assert page.get_by_text("E[L]: a step at 3333333", exact=False).is_visible()
        assert contrast(page, "svg .step", "stroke") > 4.5 and contrast(page, "svg text", "fill") > 4.5
        assert contrast(page, "svg .line", "stroke") > 3


def test_axe_would_find_a_fault(browser, built):
    with opened(browser, built[1] / "definitions.html") as page:
        page.evaluate("document.documentElement.removeAttribute('lang')")
        page.evaluate("document.querySelector('h1').style.color = '#ccc'")
        assert {rule for rule, *_ in serious(page)} == {"html-has-lang", "color-contrast"}


def test_the_tables_read_without_javascript(browser, built):
    with opened(browser, built[1] / "index.html", java_script_enabled=False) as page:
        assert page.locator(".board tbody tr:visible").count() == 17
        assert page.locator("#filters").is_hidden() and page.locator("#theme").is_hidden()
        assert page.get_by_text("best K", exact=True).count() == 7
    with opened(browser, arm_page(built[1], "*m1k4-chat-replies.html"), java_script_enabled=False) as page:
        assert page.locator(".reply:visible").count() == 8


def test_the_viewer_shows_a_reply_and_what_was_rejected(browser, built):
    with opened(browser, arm_page(built[1], "*m1k4-chat-replies.html")) as page:
        assert page.locator(".reply:visible").count() == 1
        page.locator("nav.replies a").nth(3).click()
        reply = page.locator(".reply:visible")
        assert page.url.endswith("#r3") and reply.get_attribute("id") == "r3"
        first = reply.locator(".round").first
        assert "guesses accepted" in first.get_attribute("aria-label")
        said = "e => getComputedStyle(e, '::after').content"
        assert first.evaluate(said) == "none"
        first.focus()
        assert "round 1:" in first.evaluate(said) and " ms" in first.evaluate(said)
        page.keyboard.press("ArrowRight")
        second = reply.locator(".round").nth(1)
        assert second.evaluate("e => e === document.activeElement") and "round 2:" in second.evaluate(said)
        page.keyboard.press("Tab")
        assert not page.evaluate("document.activeElement.classList.contains('round')")
        labels = reply.locator(".round").evaluate_all("all => all.map(e => e.ariaLabel)")
        assert any("rejected: " in label for label in labels)
    with opened(browser, arm_page(built[1], "*m1k4-chat-replies.html"), "#r5") as page:
        assert page.locator(".reply:visible").get_attribute("id") == "r5"


def test_a_prompt_of_the_distribution_leads_to_its_reply(browser, built):
    with opened(browser, arm_page(built[1], "*m1k4-chat.html")) as page:
        link = page.locator("ol a").first
        name = link.inner_text()
        link.click()
        page.wait_for_url("**-replies.html#r*")
        assert page.locator(".reply:visible h2").inner_text().startswith(f"{name}, turn 1")


def test_the_theme_follows_the_system_until_it_is_chosen(browser, built):
    paper = "getComputedStyle(document.body).backgroundColor"
    with opened(browser, built[1] / "index.html", color_scheme="dark") as page:
        dark = page.evaluate(paper)
        page.locator("#theme").click()
        light = page.evaluate(paper)
        assert page.locator("#theme").inner_text() == "Theme: light" and light != dark
        page.goto(f"file://{built[1] / 'definitions.html'}")
        assert page.evaluate(paper) == light
        page.locator("#theme").click()
        assert page.evaluate(paper) == dark


def test_the_keyboard_reaches_content_and_sorts(browser, built):
    with opened(browser, built[1] / "index.html") as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        button = page.locator("th[data-col='chat/speedup'] button").first
        button.focus()
        page.keyboard.press("Enter")
        assert page.locator("th[data-col='chat/speedup']").first.get_attribute("aria-sort") == "descending"


def test_a_phone_scrolls_tables_and_not_the_page(browser, built):
    out = built[1]
    names = ("*m1k4-chat.html", "*m1k4-chat-replies.html", "run-chat/index.html")
    for file in (*sorted(out.glob("*.html")), *(arm_page(out, name) for name in names)):
        with opened(browser, file, viewport={"width": 390, "height": 844}) as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, file
            for copy in page.locator("[data-copy]").all():
                height = "e => (e.hidden = false, e.clientHeight / parseFloat(getComputedStyle(e).fontSize))"
                assert copy.evaluate(height) < 2.5, file


def test_paper_gets_the_tables_without_controls(browser, built):
    with opened(browser, built[1] / "index.html") as page:
        page.emulate_media(media="print")
        assert page.locator("#filters").is_hidden() and page.locator("table.main").first.is_visible()
