"""Trends, badges, telemetry and the pages made of documents."""

from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from draftboard.errors import UserError
from draftboard.record.accepted import Accepted, Ledger, write_ledger
from draftboard.record.store import Store
from draftboard.record.telemetry import DeviceWindow, Series, Telemetry, Window
from draftboard.show import site
from draftboard.show.collect import read_all
from draftboard.show.trace import arm_record
from draftboard.show.web import badges, documents, trends
from draftboard.show.web.documents import DOCUMENTS, Document
from record_factory import ENVIRONMENT, TARGET, make_run, random_arms
from site_factory import HOSTILE, ROOT, Elements, write


def months(store: Store, count: int = 4, **changes) -> None:
    """The same arms measured on several commits, the last but one of which failed."""
    for number in range(count):
        base, arm = random_arms(number, 20)
        broken = {"traces": (), "error": "out of memory", "losslessness": None} if number == count - 2 else {}
        made = [base, replace(arm, **broken)]
        where = replace(ENVIRONMENT, git_sha=f"{number}" * 40, git_dirty=number == 0)
        when = f"2026-0{number + 1}-01T00:00:00Z"
        write(
            store,
            number,
            "chat",
            arms=made,
            prompts=20,
            run=f"m{number}",
            created_utc=when,
            environment=where,
            **changes,
        )


# Trends


def test_a_trend_follows_the_commits_in_the_order_of_time(tmp_path):
    months(Store(tmp_path))
    (arm,) = trends.make_trends(read_all(Store(tmp_path)), {("m1-chat", "arm00001-chat")})
    assert arm.title == "Guessing K=4, The chat task"
    assert [line[1] for line in arm.lines] == ["0000000*", "1111111", "2222222", "3333333"]
    assert [line[-1] for line in arm.lines] == ["", "accepted", "failed: out of memory", ""]
    rows = [one.rows[1] for one in read_all(Store(tmp_path))]
    for row, line in zip(rows, arm.lines, strict=True):
        assert line[2].startswith(f"{row.speedup:.2f}x" if row.speedup else "–")
    chart = str(arm.charts[0])
    assert chart.count("<circle") == 3 and chart.count("dot marked") == 1 and 'class="band"' in chart


def marked(out: Path) -> list[str]:
    """Days of the runs that the trends page calls accepted; each has a marked point for both metrics."""
    html = (out / "trends.html").read_text()
    days = re.findall(r'">([\d-]+)</a></th>(?:<td>[^<]*</td>)*<td class="left">accepted<', html)
    assert html.count("dot marked") == 2 * len(days)
    return days


def accept(store: Store, run: str, arm: str = "arm00001-chat") -> None:
    entry = Accepted("tiny-target", "chat", "guess-k4", "f" * 12, arm, run, "2026-05-01T00:00:00Z", "a base")
    write_ledger(store.root, Ledger((entry,)))


def test_the_accepted_run_is_marked_and_the_mark_moves_with_the_ledger(tmp_path):
    store, out = Store(tmp_path / "results"), tmp_path / "out"
    months(store)
    site.build(store, out, ROOT)
    assert marked(out) == []
    accept(store, "m1-chat")
    with pytest.raises(UserError, match=r"trends\.html, line .* build the page again"):
        site.verify(store, out, ROOT)
    site.build(store, out, ROOT)
    assert marked(out) == ["2026-02-01"] and site.verify(store, out, ROOT)
    accept(store, "m3-chat")
    site.build(store, out, ROOT)
    assert marked(out) == ["2026-04-01"]
    accept(store, "m3-chat", arm="another-arm")
    site.build(store, out, ROOT)
    assert marked(out) == []


def test_other_machines_and_settings_are_other_trends(tmp_path):
    store = Store(tmp_path)
    months(store, 2)
    write(store, 9, "chat", arms=list(random_arms(9, 20)), prompts=20, run="other", fingerprint="e" * 12)
    write(store, 9, "chat", arms=list(random_arms(9, 20)), prompts=20, run="quick", indicative=True)
    assert [len(trend.lines) for trend in trends.make_trends(read_all(store), ())] == [2]


def test_what_was_measured_once_is_counted_and_not_drawn(tmp_path):
    store = Store(tmp_path / "results")
    write(store, 1, "chat")
    site.build(store, tmp_path / "out", ROOT)
    html = (tmp_path / "out" / "trends.html").read_text()
    assert "3 arms were measured once" in html and "<svg" not in html


# Badges


def test_badges_say_what_the_table_says(tmp_path):
    store = Store(tmp_path / "results")
    write(store, 1, "chat", prompts=20)
    site.build(store, tmp_path / "out", ROOT)
    found = {}
    for row in read_all(store)[0].rows:
        data = json.loads((tmp_path / "out" / f"{badges.path(row)}.json").read_text())
        picture = ET.fromstring((tmp_path / "out" / f"{badges.path(row)}.svg").read_text())
        assert data["schemaVersion"] == 1 and set(data) == {"schemaVersion", "label", "message", "color"}
        assert picture.get("aria-label") == f"{data['label']}: {data['message']}"
        found[row.arm] = data
    row = read_all(store)[0].rows[1]
    sound = found["guess4-chat"]
    assert sound["message"] == f"{row.speedup:.2f}x ({row.speedup_lo:.2f}–{row.speedup_hi:.2f})"
    assert sound["label"] == "Guessing K=4 on chat" and sound["color"] == "1a6b3a"
    assert found["guess16-chat"]["message"] == "failed" and found["guess16-chat"]["color"] == "a8321f"
    assert "slower" in found["guess8-chat"]["message"] and found["guess8-chat"]["color"] == "a8321f"


def test_a_badge_of_a_doubtful_row_says_so(tmp_path):
    store = Store(tmp_path)
    write(store, 1, "chat", prompts=4)
    write(store, 1, "code", prompts=20, indicative=True)
    few, quick = (found.rows[1] for found in read_all(store))
    assert badges.message_of(few).startswith("not valid ") and badges.message_of(quick).startswith(
        "indicative "
    )


def test_a_badge_of_a_hostile_name_is_sound_xml():
    picture = ET.fromstring(badges.draw(HOSTILE, "1.00x", "#000"))
    assert picture.get("onmouseover") is None and "onmouseover" in (picture.get("aria-label") or "")


def test_the_address_of_the_site_goes_into_badges_and_links(tmp_path):
    store = Store(tmp_path / "results")
    write(store, 1, "chat")
    site.build(store, tmp_path / "out", ROOT, "https://example.org/board/")
    html = next((tmp_path / "out").rglob("guess-k4-guess4-chat.html")).read_text()
    assert "![draftboard](https://example.org/board/badges/" in html
    assert '<link rel="canonical" href="https://example.org/board/runs/' in html
    assert site.verify(store, tmp_path / "out", ROOT, "https://example.org/board")
    with pytest.raises(UserError, match="build the page again"):
        site.verify(store, tmp_path / "out", ROOT)


# Telemetry


def gpu(busy: float, watts: float) -> Telemetry:
    def gauge(value: float, unit: str) -> Series:
        return Series(unit, "gauge", "ok", at_s=tuple(i / 2 for i in range(20)), values=(value,) * 20)

    series = {
        "gpu_busy_pct": gauge(busy, "%"),
        "power_w": gauge(watts, "W"),
        "energy_j": Series("J", "counter", "unsupported", detail="no counter"),
        "sm_util_pct": Series("%", "mean", "ok", at_s=(10.0,), values=(12.5,)),
        "dram_bandwidth_pct": Series("% of peak", "mean", "no_permission"),
        "foreign_processes": Series("processes", "gauge", "ok", at_s=(0.0,), values=(0.0,)),
        "clock_reasons": Series("bits", "gauge", "ok", at_s=(1, 2, 3, 4), values=(0, 0, 0, 4)),
        "sm_clock_mhz": gauge(1500, "MHz"),
    }
    own = {
        "process_cpu_pct": gauge(99, "%"),
        "process_rss_bytes": gauge(2.5e9, "bytes"),
    }
    devices = (DeviceWindow("Tiny CPU", "cpu", None, own), DeviceWindow("Tiny GPU", "gpu", None, series))
    window = Window(10.0, 0.5, devices)
    return Telemetry(
        window, replies=7, tokens=1000, software={"driver": "570.1"}, torch_allocated_peak_bytes=3_000_000
    )


def html_of(out: Path) -> str:
    return next(out.rglob("guess-k4-arm00001-chat.html")).read_text()


def test_telemetry_stands_in_the_table_and_on_the_arms_page(tmp_path):
    store = Store(tmp_path / "results")
    base, arm = random_arms(1, 20)
    arms = [
        replace(base, telemetry=gpu(90, 200), telemetry_missing=None),
        replace(arm, telemetry=gpu(60, 100), telemetry_missing=None),
        replace(arm, id="unread", k=2, telemetry_missing="the pass was cut short"),
    ]
    write(store, 1, "chat", arms=arms, prompts=20, environment=replace(ENVIRONMENT, device_type="cuda"))
    out = site.build(store, tmp_path / "out", ROOT).parent
    front = Elements((out / "index.html").read_text())
    html = (out / "index.html").read_text()
    pattern = r'<td data-c="6">(.*?)</td>\n<td class="number" data-c="7">(.*?)</td>'
    cell = re.findall(pattern, html, re.S)[-1]
    assert '<div data-task="chat"><small>chat</small>' in cell[0] and 'data-value="60.0"' in cell[0]
    assert "busy 60 %, SM 12.5 %, DRAM –" in cell[0] and 'title="DRAM: no permission"' in cell[0]
    assert '<div data-task="chat"><small>chat</small>' in cell[1] and 'data-value="1.0"' in cell[1]
    assert ">1 J<" in cell[1]
    heads = {
        given["href"]: given.get("title") or "" for tag, given in front.all if given.get("class") == "what"
    }
    assert "it is not load" in heads["definitions.html#gpu_busy"]
    assert heads["definitions.html#weights"] and heads["definitions.html#energy"]
    assert ("span", "the pass was cut short") in [(tag, given.get("title")) for tag, given in front.all]
    page = Elements(next(out.rglob("guess-k4-arm00001-chat.html")).read_text())
    assert {"Tiny GPU: gpu_busy_pct", "90 %", "60 %", "2 J/token", "1 J/token"} <= set(page.said)
    assert "– (no permission)" in page.said
    bands = [
        given["class"] for tag, given in page.all if tag == "rect" and "arm" in (given.get("class") or "")
    ]
    assert bands == ["arm0", "arm1"]
    assert "Tiny GPU: of 4 samples its clocks were held back by power cap in 25%." in page.said
    assert "driver 570.1." in page.said
    lines = {
        name: re.findall(r"<td>(.*?)</td>", rest)
        for name, rest in re.findall(r'<tr><th scope="row">([^<]*)</th>((?:<td>[^<]*</td>)+)', html_of(out))
    }
    assert lines["Tiny CPU: process_rss_bytes (peak)"] == ["2,500.0 MB", "2,500.0 MB", "20"]
    assert lines["memory allocated by torch (peak)"][:2] == ["3.0 MB", "3.0 MB"]
    assert lines["memory reserved by torch (peak)"][1] == "– (not recorded)"
    assert lines["energy by the counter"][1] == "– (unsupported: no counter)"
    assert lines["energy by power over time"] == ["2,000 J", "1,000 J", "20"]
    labels = [given.get("aria-label") for tag, given in page.all if tag == "svg"]
    assert "Tiny GPU: gpu_busy_pct over time, arm by arm" in labels
    other = Elements(next(out.rglob("guess-k2-unread-chat.html")).read_text())
    assert "Not known: the pass was cut short." in other.said


def test_joules_a_token_equal_a_plain_loop_over_the_file(tmp_path):
    store = Store(tmp_path / "results")
    base, arm = random_arms(1, 4)
    told, watts = gpu(60, 100), tuple(100.0 + 7 * i for i in range(20))
    cpu, card = told.window.devices
    card = replace(card, series={**card.series, "power_w": replace(card.series["power_w"], values=watts)})
    told = replace(told, window=replace(told.window, devices=(cpu, card)))
    arms = [base, replace(arm, telemetry=told, telemetry_missing=None)]
    write(store, 1, "chat", arms=arms, prompts=4, environment=replace(ENVIRONMENT, device_type="cuda"))
    html = site.build(store, tmp_path / "out", ROOT).read_text()
    record = json.loads(next(store.root.rglob("guess-k4-*.json")).read_text())["telemetry"]
    power = record["window"]["devices"][1]["series"]["power_w"]
    joules, before, at = 0.0, power["values"][0], 0.0
    for moment, value in zip(power["at_s"], power["values"], strict=True):
        joules, before, at = joules + (moment - at) * (before + value) / 2, value, moment
    joules += (record["window"]["seconds"] - at) * before
    shown = re.findall(r'data-value="([\d.]+)">([\d.]+) J<', html)
    assert len(shown) == 1 and float(shown[0][0]) == pytest.approx(joules / record["tokens"])
    assert shown[0][1] == f"{joules / record['tokens']:.3g}"


def test_a_run_without_a_gpu_says_so(tmp_path):
    store = Store(tmp_path / "results")
    write(store, 1, "chat")
    assert "CPU run" in Elements(site.build(store, tmp_path / "out", ROOT).read_text()).said


def test_an_arms_page_and_its_record_in_the_terminal_tell_the_graphs(tmp_path):
    base, arm = random_arms(1, 8)
    target = replace(TARGET, graphs=30, graphs_missing=None)
    store = Store(tmp_path / "results")
    for found, missing, words in ((12, None, "12"), (None, "capture failed: x", "capture failed: x")):
        shown = replace(arm, graphs=found, graphs_missing=missing)
        write(store, 1, "chat", arms=[base, shown], run=f"run{found}", target=target)
        site.build(store, tmp_path / "out", ROOT)
        page = next((tmp_path / "out").rglob(f"run{found}-chat/guess-k4-arm00001-chat.html"))
        told = " ".join(" ".join(Elements(page.read_text()).said).split())
        assert f"CUDA graphs of the drafter {words} " in told
        assert "CUDA graphs of the target 30 " in told
        console = Console(record=True, width=100, file=io.StringIO())
        console.print(arm_record(make_run([base, shown], target=target), [base, shown], shown, None))
        assert f"CUDA graphs: of the drafter {words}; of the target 30" in console.export_text()


# Documents


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda one: one.path)
def test_each_document_becomes_a_page_that_keeps_its_words(document):
    found = Elements(documents.render(document, ROOT))
    assert len(" ".join(found.said).split()) > 120
    assert {tag for tag, _ in found.all}.isdisjoint({"h1", "script"})


def test_links_between_documents_become_links_between_pages(tmp_path):
    (tmp_path / "harness").mkdir()
    (tmp_path / "a.md").write_text(
        "# Title\n\n## Wanted\n\n[how](harness/README.md#counting) [no page](x/y.py) [out](https://example.org)"
        " <script>x</script>\n\n### Part\n\ninner\n\n## Other\n\nunwanted\n"
    )
    html = documents.render(Document("x.html", "X", "X", (("a.md", "Wanted"),)), tmp_path)
    found = Elements(html)
    assert [given["href"] for tag, given in found.all if tag == "a"] == ["method.html", "https://example.org"]
    assert "no page" in html and "inner" in html and "unwanted" not in html and "<script>" not in html


@pytest.mark.parametrize("part", [("missing.md", None), ("README.md", "No such heading")])
def test_a_document_that_is_not_there_is_one_line(part):
    with pytest.raises(UserError, match="a page of the site is made"):
        documents.render(Document("x.html", "X", "X", (part,)), Path(ROOT))
