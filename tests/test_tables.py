"""Rows and replies in the terminal and in files: nothing hidden, nothing clipped, nothing that steers."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from draftboard.errors import UserError
from draftboard.judge.positions import CONDITIONAL, UNCONDITIONAL
from draftboard.judge.summary import Row, rows
from draftboard.record.records import Generation, Sampling
from draftboard.record.store import Store
from draftboard.show import explanation, layout, reply, settings, tables, trace, words
from draftboard.show.collect import choose, current
from draftboard.show.export import FIELDS
from record_factory import (
    BASELINE,
    GUESSING,
    TARGET,
    make_arm,
    make_baseline,
    make_round,
    make_run,
    make_trace,
    plain_trace,
    random_arms,
)

CONTRACT = (
    *(
        "target",
        "task",
        "drafter",
        "k",
        "temperature",
        "engine",
        "concurrency",
        "acceptance_length",
        "speedup",
    ),
    *("speedup_lo", "speedup_hi", "tokens_per_s", "ttft_ms", "tpot_ms_p50", "tpot_ms_p90", "tpot_ms_p99"),
    *("lossless", "device", "valid", "run"),
)


@cache
def a_run(**changes):
    """A baseline, a sound arm, a slow one and a failed one."""
    base, arm = random_arms(1)
    slow_traces = tuple(replace(t, decode_ms=t.decode_ms * 3, wall_ms=t.wall_ms * 3) for t in arm.traces)
    slow = replace(arm, id="slow0001", k=8, traces=slow_traces)
    failed = replace(arm, id="fail0001", k=16, traces=(), error="out of memory", losslessness=None)
    arms = [base, arm, slow, failed]
    return make_run(arms, **changes), arms


@cache
def some_rows(**changes) -> list[Row]:
    return rows(*a_run(**changes))


def terminal(renderable, width=150) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(renderable)
    return console.file.getvalue()


# Rows


def test_json_has_the_promised_fields_and_null_for_unknown():
    found = json.loads(tables.render(some_rows(), "json"), parse_constant=pytest.fail)
    assert all(set(CONTRACT) <= set(one) for one in found)
    assert list(found[0])[: len(CONTRACT)] == list(CONTRACT)
    failed = found[3]
    assert failed["error"] == "out of memory" and failed["speedup"] is None
    assert failed["missing"]["speedup"] == "the arm failed: out of memory"


def test_the_formats_agree():
    made = some_rows()
    plain = json.loads(tables.render(made, "json"))
    by_csv = list(csv.DictReader(io.StringIO(tables.render(made, "csv"))))
    assert list(by_csv[0]) == list(FIELDS)
    by_parquet = pq.read_table(io.BytesIO(tables.FORMATS["parquet"](made))).to_pylist()
    for one, flat, typed in zip(plain, by_csv, by_parquet, strict=True):
        for name in ("speedup", "acceptance_length", "k", "tpot_ms_p99"):
            assert typed[name] == one[name], name
            assert flat[name] == ("" if one[name] is None else str(one[name])), name
        assert typed["valid"] is one["valid"]


def test_parquet_needs_a_file(tmp_path):
    with pytest.raises(UserError, match="give a file to write with --out"):
        tables.render(some_rows(), "parquet")
    assert tables.render(some_rows(), "parquet", tmp_path / "x.parquet") == ""
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 4


def test_an_unknown_format_is_refused_with_a_suggestion():
    with pytest.raises(UserError, match="did you mean 'json'"):
        tables.render([], "jsn")


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_a_failed_arm_is_a_row_with_its_error(form):
    text = tables.render(some_rows(), form)
    line = next(line for line in text.splitlines() if "K=16" in line)
    assert "failed" in line and words.DASH in line
    assert "chat, Guessing K=16: failed: out of memory" in text


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_a_loss_reads_as_a_loss(form):
    text = tables.render(some_rows(), form)
    slow = next(line for line in text.splitlines() if "K=8" in line)
    fast = next(line for line in text.splitlines() if "K=4" in line)
    row = some_rows()[2]
    assert row.speedup < 1 and f"{row.speedup:.2f}x slower" in slow
    assert "slower" not in fast


def test_a_barely_slower_arm_is_a_loss_and_an_uncertain_one_no_gain():
    row = some_rows()[1]
    assert words.speedup_tone(row) == "gain"
    assert words.speedup_tone(replace(row, speedup=0.999, speedup_lo=0.9)) == "loss"
    assert words.speedup_words(replace(row, speedup=0.9964)) == "0.996x slower"
    assert words.speedup_tone(replace(row, speedup=1.2, speedup_lo=0.99)) == "plain"
    assert words.speedup_tone(replace(row, baseline=True)) == "plain"


def test_a_dash_comes_with_its_reason():
    hidden = [
        make_trace(f"p{i}", None, tokens=9, decode_ms=50.0, rounds_missing="a server") for i in range(20)
    ]
    arms = [make_baseline([plain_trace(f"p{i}", 9) for i in range(20)]), make_arm(hidden)]
    text = tables.render(rows(make_run(arms), arms), "markdown")
    assert f"- chat, Guessing K=4: {words.DASH} a server" in text


def test_prompts_that_were_left_out_are_told():
    arms = [make_baseline([plain_trace()]), make_arm([make_trace()])]
    found = rows(make_run(arms, left_out={"long-one": 9000}), arms)
    (note,) = [one for one in tables.notes(found) if "left out" in one]
    assert note.endswith("left out, longer than the caches may be: long-one")


def test_a_figure_without_an_interval_says_why():
    arms = [make_baseline([plain_trace("p", 9)]), make_arm([make_trace("p", [make_round(1)] * 4)])]
    row = rows(make_run(arms), arms)[1]
    assert row.speedup is not None and row.speedup_lo is None
    assert row.missing["speedup_lo"] == row.missing["speedup_hi"] == "too few prompts for an interval"
    assert "speedup" not in row.missing
    assert "chat, Guessing K=4: – too few prompts for an interval" in tables.notes([row])


def test_a_tie_is_listed_with_its_gap():
    row = replace(
        some_rows()[1], lossless="tie", lossless_reason="1 of 27 replies part at a tie, 1 ulp apart"
    )
    assert "chat, Guessing K=4: tie: 1 of 27 replies part at a tie, 1 ulp apart" in tables.notes([row])


def test_arms_that_share_a_note_share_its_line():
    notes = tables.notes(some_rows(indicative=True))
    assert notes[0].startswith("chat, Plain decoding; Guessing K=4; Guessing K=8; Guessing K=16: indicative")


def test_arms_that_differ_in_an_option_are_told_apart():
    _, arms = a_run()
    twins = [replace(arms[1], id=f"twin{n}", options={"n": n, "same": 1}) for n in (2, 3)]
    made = rows(make_run([arms[0], *twins]), [arms[0], *twins])
    assert list(words.names(made).values())[1:] == ["Guessing K=4 (n=2)", "Guessing K=4 (n=3)"]


def test_arms_that_differ_in_their_module_or_weights_are_told_apart():
    plain = some_rows()[1]
    other = [replace(plain, arm="m", drafter="other"), replace(plain, arm="w", weights_sha256="ab" * 32)]
    names = words.names([plain, *other])
    assert names["m"] == "Guessing K=4 (module=other, weights=–)"
    assert names["w"] == "Guessing K=4 (module=guess, weights=abababab)"


UNLIKE = {
    "top-k 20": {"sampling": Sampling(top_k=20)},
    "top-p 0.9": {"sampling": Sampling(top_p=0.9)},
    "temperature 0.7": {"sampling": Sampling(0.7)},
    "seed 3": {"sampling": Sampling(seed=3)},
    "at most 96 tokens": {"generation": Generation(96, 1, "target", None, None, (0,))},
    "thinking on": {"generation": Generation(128, 1, "target", None, True, (0,))},
    "thinking off": {"generation": Generation(128, 1, "target", None, False, (0,))},
    "raw prompts": {"generation": Generation(128, 1, "raw", None, None, (0,))},
    "tiny-target@abc in": {"target": replace(TARGET, revision="abc")},
    "4 at once": {"concurrency": 4},
    "a server": {"engine": "a server"},
    "bfloat16": {"dtype": "bfloat16"},
    "machine eeeeeeee": {"fingerprint": "e" * 12},
    "indicative": {"indicative": True},
}


@pytest.mark.parametrize("form", ["table", "markdown"])
@pytest.mark.parametrize("said", UNLIKE)
def test_rows_of_unlike_runs_stand_apart_under_headings_that_say_so(said, form):
    """The changed runs come first and last, so that no order hides a mixture."""
    run, arms = a_run()
    unlike = rows(replace(run, **UNLIKE[said]), arms)
    made = [*unlike, *some_rows(), *unlike]
    groups = settings.grouped(made)
    assert sorted(len(found) for _, found in groups) == [4, 8]
    assert sum(said in title for title, _ in groups) == 1
    text = " ".join(tables.render(made, form).split())
    assert [text.count(title) >= 1 for title, _ in groups] == [True, True]
    assert text.count("tiny-target") == 2


def test_tables_to_quote_come_before_those_without_a_valid_row_and_indicative_ones():
    def capped(tokens: int, **changes) -> list[Row]:
        return some_rows(generation=Generation(tokens, 1, "target", None, None, (0,)), **changes)

    broken = [replace(row, valid=False, reasons=("disturbed",)) for row in capped(32)]
    found = settings.grouped([*capped(16, indicative=True), *broken, *capped(64)])
    assert [rows[0].generation.max_new_tokens for _, rows in found] == [64, 32, 16]
    assert [title.endswith(", indicative") for title, _ in found] == [False, False, True]


def test_machine_formats_hold_what_decides_whether_rows_compare():
    unlike = some_rows(sampling=Sampling(0.7, 20, 0.9, 3), indicative=True)
    found = json.loads(tables.render(unlike, "json"))[1]
    assert [found[name] for name in ("temperature", "top_k", "top_p", "seed")] == [0.7, 20, 0.9, 3]
    assert [found[name] for name in ("max_new_tokens", "thinking", "template")] == [128, None, "target"]
    assert found["options"] == {"num_speculative_tokens": 4} and found["fingerprint"] == "f" * 12
    assert found["draft_prefill_ms"] == 2 and found["ttft_ms"] == 20
    assert "num_speculative_tokens=4" in tables.render(unlike, "csv")


def test_runs_on_two_machines_are_two_tables():
    made = [*some_rows(), *some_rows(fingerprint="e" * 12)]
    assert tables.render(made, "markdown").count("tiny-target in float32 on Tiny CPU") == 2


HOSTILE = 'a" onmouseover="x |<b>&`*\x1b[31m\u202e'


def test_hostile_names_stay_text():
    row = replace(some_rows()[1], card=replace(GUESSING, label=HOSTILE), task="[red]x[/red]")
    text = tables.render([row], "markdown")
    line = next(line for line in text.splitlines() if "onmouseover" in line)
    assert "<b>" not in text and "\x1b" not in text and "\u202e" not in text
    assert line.replace("\\|", "").count("|") == len(tables.columns([row])) + 1
    shown = tables.render([row], "table")
    assert "\x1b[31m" not in shown and "[red]x[/red]" in shown


def test_no_results_say_how_to_make_some():
    assert "draftboard run" in tables.render([], "table")
    with pytest.raises(UserError, match="no runs to verify"):
        tables.verify(Store(Path("nowhere")))
    assert json.loads(tables.render([], "json")) == []


def test_the_newest_run_that_is_not_indicative_wins():
    def at(day: int, **changes) -> list[Row]:
        return some_rows(id=f"run{day}", created_utc=f"2026-01-{day:02}T00:00:00Z", **changes)

    quick, old, new = at(9, indicative=True), at(1), at(2)
    assert {row.run for row in current([*quick, *new, *old])} == {"run2"}
    assert {row.run for row in current([*at(3, indicative=True), *quick])} == {"run9"}
    elsewhere = at(5, fingerprint="e" * 12)
    assert {row.run for row in current([*new, *elsewhere])} == {"run2", "run5"}


def later(**changes) -> list[Row]:
    """The same arms measured once more, a month later."""
    run, arms = a_run()
    return rows(replace(run, id="run2", created_utc="2026-02-28T00:00:00Z", **changes), arms)


def worse(rows: list[Row]) -> dict[str, list[Row]]:
    return {
        "failed": [replace(r, valid=False, error="no", prompts=0, reasons=("failed: no",)) for r in rows],
        "disturbed": [replace(r, valid=False, reasons=("busy",)) for r in rows],
        "one prompt": [replace(r, valid=False, prompts=1, reasons=("1 prompts",)) for r in rows],
        "indicative": [replace(r, valid=False, indicative=True, reasons=("short",)) for r in rows],
        "fewer prompts": [replace(r, prompts=16) for r in rows],
    }


@pytest.mark.parametrize("kind", worse([]))
def test_a_later_row_that_is_worse_does_not_displace_a_good_one(kind):
    good, bad = some_rows()[:3], worse(later()[:3])[kind]
    assert {row.run for row in current([*bad, *good])} == {"run1"}
    assert [[row.run for row in choice.passed_over] for choice in choose([*bad, *good])] == [["run2"]] * 3


def test_a_later_row_that_is_as_good_or_better_does():
    assert {row.run for row in current([*later(), *some_rows()])} == {"run2"}
    more = [replace(row, prompts=row.prompts + 1, created_utc="2026-01-01T00:00:00Z") for row in later()[:3]]
    assert {row.run for row in current([*some_rows()[:3], *more])} == {"run2"}
    assert all(not choice.passed_over for choice in choose([*later(), *some_rows()]))


def test_an_arm_that_failed_before_it_read_its_weights_is_a_try_at_the_same_arm():
    good = replace(some_rows()[1], weights_sha256="ab" * 32)
    failed = replace(later()[1], arm="other-id", error="no", valid=False, prompts=0)
    (choice,) = choose([good, failed])
    assert choice.row is good and choice.passed_over == (failed,)
    assert [choice.row for choice in choose([failed])] == [failed]
    retrained = replace(later()[1], arm="third-id", weights_sha256="cd" * 32)
    assert current([good, retrained, failed]) == [good, retrained]


def test_other_prompts_under_a_tasks_name_are_another_task():
    own = [replace(row, arm=f"own-{row.arm}", task_sha256="cd" * 32) for row in later()]
    kept = current([*some_rows(), *own])
    assert {row.run for row in kept} == {"run1", "run2"}
    text = tables.render(kept, "markdown")
    assert text.count("chat (version 1, abababab) |") == text.count("chat (version 1, cdcdcdcd) |") == 4


# Replies


def test_a_reply_is_split_by_rounds():
    rounds = [make_round(2), make_round(0, proposed=0), make_round(1, emitted=1, hits=3)]
    found = reply.text_rounds(make_trace("p", rounds, stop="stop_token"), {"12": " no", "13": " nay"})
    assert [one.accepted for one in found] == [(" w1", " w2"), (), (" w5",)]
    assert [one.own for one in found] == [" w3", " w4", None]
    assert [one.rejected for one in found] == [(" no", " nay"), (), (" nay",)]


def test_a_coloured_reply_is_the_whole_reply():
    _, arm = random_arms(2, prompts=3)
    for one in arm.traces:
        found = reply.text_rounds(one, arm.guess_pieces)
        assert reply.coloured(one, found).plain == "".join(one.pieces)


def test_pieces_cannot_steer_the_terminal():
    rounds = [make_round(1)]
    one = replace(make_trace("p", rounds), pieces=("a\n", "\x1b[2J", "[bold]"))
    shown = reply.coloured(one, reply.text_rounds(one, {}))
    assert shown.plain == "a⏎\n\\x1b[2J[bold]"
    assert terminal(shown) == "a⏎\n\\x1b[2J[bold]\n"


def shown_in(tmp_path, *arguments) -> str:
    run, arms = a_run()
    store = Store(tmp_path)
    store.write_run(run, arms)
    console = Console(file=io.StringIO(), width=150, force_terminal=False)
    trace.show(store, *arguments, console)
    return console.file.getvalue()


def test_show_lists_a_runs_arms(tmp_path):
    text = shown_in(tmp_path, "run1", None, None)
    assert "draftboard run --suite standard" in text and "Guessing K=16" in text


@pytest.mark.parametrize("name", ["arm00001", "arm0", "guess-k4"])
def test_show_prints_one_arm(tmp_path, name):
    text = shown_in(tmp_path, "run1", name, None)
    row = some_rows()[1]
    assert f"{row.speedup:.2f}x" in text and f"{row.speedup_lo:.2f}x{words.DASH}" in text
    assert line_of(text, "TTFT, ms")[1] == "20.00" and line_of(text, "draft prefill, ms")[1] == "2.00"
    folded = " ".join(text.split())
    assert f"of all drafts: {UNCONDITIONAL}" in folded and f"of those tested: {CONDITIONAL}" in folded
    assert "lossless: exact, all 27 replies identical" in text
    assert "formula on unseen prompts: predicted" in text and "half the draft cost" in text
    assert "p0, turn 1" in text and " w1" in text


def test_show_prints_the_reply_asked_for(tmp_path):
    assert "p7, turn 1" in shown_in(tmp_path, str(tmp_path / "tiny-cpu-2t-float32" / "run1"), None, "p7")
    with pytest.raises(UserError, match="did you mean 'p19'"):
        shown_in(tmp_path / "again", "run1", "guess-k4", "p199")


def test_show_prints_a_failed_arm_and_an_arm_without_rounds(tmp_path):
    text = shown_in(tmp_path, "run1", "guess-k16", None)
    assert "not valid: failed: out of memory" in text and "no reply is recorded" in text
    hidden = replace(make_trace("p", None, tokens=3, rounds_missing="a server"), pieces=("x", "y", "z"))
    arms = [make_baseline([plain_trace("p", 3)]), make_arm([hidden])]
    text = terminal(trace.arm_record(make_run(arms), arms, arms[1], None))
    assert "xyz" in text and "a server" in text


def test_show_refuses_a_name_that_is_not_one_arm(tmp_path):
    with pytest.raises(UserError, match="not unique; give one of: guess-k4, guess-k8, guess-k16"):
        shown_in(tmp_path / "a", "run1", "guess", None)
    with pytest.raises(UserError, match="did you mean 'guess-k4'"):
        shown_in(tmp_path / "b", "run1", "guss-k4", None)


# Explanations


def explained(tmp_path, target=None, g=None, ks=()) -> str:
    run, arms = a_run()
    run = replace(run, verify_ms={"1": 10.0, "5": 12.0})
    store = Store(tmp_path)
    store.write_run(run, arms)
    console = Console(file=io.StringIO(), width=170, force_terminal=False)
    explanation.show(store, target, g, ks, 128, console)
    return console.file.getvalue()


def line_of(text: str, *begin: str) -> list[str]:
    """The cells of the line whose first cells are these."""
    lines = (re.split(r"\s{2,}", line.strip()) for line in text.splitlines())
    return next(cells for cells in lines if tuple(cells[: len(begin)]) == begin)


def test_explain_shows_terms_and_the_tile_rule_of_the_target(tmp_path):
    text = explained(tmp_path)
    arm = line_of(text, "chat", "Guessing K=4")
    row = some_rows()[1]
    assert arm[2:8] == [
        f"{x:.2f}" for x in (row.acceptance_length, row.t_target_ms, row.t_draft_ms, row.t_verify_ms)
    ] + [f"{row.t_other_ms:.2f}", f"{row.speedup:.2f}x"]
    assert "begin at D = 41" in text
    assert line_of(text, "4") == [*("4", "15", "1", "11.7%", "1.20x", "below a tile")]
    assert "Plain decoding" not in text and "K=16" not in text


def test_no_figure_is_cut_in_a_narrow_terminal(monkeypatch):
    """Lines may be longer than the terminal; it wraps them, nothing is replaced by an ellipsis."""
    monkeypatch.setenv("COLUMNS", "30")
    wide, narrow = terminal(tables.table(some_rows()), 300), io.StringIO()
    layout.show(Console(file=narrow, width=30), tables.table(some_rows()))
    assert narrow.getvalue().splitlines()[2:8] == wide.splitlines()[2:8]
    assert "…" not in narrow.getvalue()


def test_explain_for_a_given_g(tmp_path):
    text = explained(tmp_path, g=8, ks=(31,))
    assert "begin at D = 15" in text
    assert line_of(text, "31") == [*("31", "256", "2", "100.0%", words.DASH, "on a tile boundary")]


def test_explain_without_drafts_is_plain_decoding(tmp_path):
    assert line_of(explained(tmp_path / "a", g=8, ks=(0,)), "0")[-1] == "below a tile, plain decoding"
    begin = line_of(explained(tmp_path / "b", g=100, ks=()), "0")
    assert begin[-1] == "below a tile, plain decoding, begin here"


def test_explain_keeps_unlike_runs_apart(tmp_path):
    short = Generation(96, 1, "target", None, None, (0,))
    _, arms = a_run()
    other = [replace(arm, id=f"x{arm.id}", run="run2", baseline=f"x{arm.baseline}") for arm in arms]
    Store(tmp_path).write_run(make_run(other, id="run2", generation=short, verify_ms={}), other)
    text = explained(tmp_path)
    heads = [line for line in text.splitlines() if line.startswith("tiny-target")]
    assert ["128 tokens" in heads[0], "96 tokens" in heads[1], len(heads)] == [True, True, 2]
    assert text.count("Guessing K=4") == 2


def test_explain_knows_its_targets(tmp_path):
    with pytest.raises(UserError, match="did you mean 'tiny-target'"):
        explained(tmp_path, target="tiny-targt")


# Soundness of a store


def test_verify_reads_everything_and_names_the_first_fault(tmp_path):
    store = Store(tmp_path)
    store.write_run(*a_run())
    assert tables.verify(store) == f"{tmp_path}: 1 runs with 4 arms read; none contradicts itself"
    file = next(tmp_path.glob("*/run1/guess-k4-*.json"))
    file.write_text(file.read_text().replace('"hits":[', '"hits":[99,', 1))
    with pytest.raises(UserError, match="columns of different lengths"):
        tables.verify(store)


def test_verify_finds_counts_that_do_not_add_up(tmp_path):
    base, arm = random_arms(1)
    bad = replace(arm, traces=(replace(arm.traces[0], pieces=()), *arm.traces[1:]))
    Store(tmp_path).write_run(make_run([base, bad]), [base, bad])
    with pytest.raises(UserError, match="run run1, arm arm00001: p0 turn 0 repeat 0: 0 pieces for"):
        tables.verify(Store(tmp_path))


def test_rows_of_a_store_are_all_its_arms(tmp_path):
    Store(tmp_path).write_run(*a_run())
    assert [row.arm for row in tables.rows_of(Store(tmp_path))] == [
        BASELINE,
        *("arm00001", "slow0001", "fail0001"),
    ]
