"""Files are written whole or not at all, read strictly, and ordered by time."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from draftboard.errors import UserError
from draftboard.record import store as store_module
from draftboard.record.journal import Entry, Journal
from draftboard.record.store import Store, arm_file_name, file_schemas, load, parse_utc, read_run
from record_factory import make_arm, make_baseline, make_run, make_trace, random_arms

ROOT = Path(__file__).resolve().parents[1]


def a_run(run_id="run1", seed=1, **changes):
    arms = random_arms(seed, prompts=3)
    return make_run(arms, id=run_id, **changes), list(arms)


# Runs


def test_a_run_comes_back_as_it_was_written(tmp_path):
    run, arms = a_run()
    folder = Store(tmp_path).write_run(run, arms)
    assert folder == tmp_path / "tiny-cpu-2t-float32" / "run1"
    assert load(folder) == load(folder / "run.json") == (run, arms)
    assert sorted(p.name for p in folder.iterdir()) == [
        "guess-k4-arm00001.json",
        "plain-base0001.json",
        "run.json",
    ]


def test_arms_come_back_in_the_runs_order(tmp_path):
    base, arm = random_arms(1, prompts=2)
    arms = [base, *(replace(arm, id=f"arm{n}", drafter=f"d{9 - n}") for n in range(5))]
    assert load(Store(tmp_path).write_run(make_run(arms), arms))[1] == arms


def test_file_names_hold_no_path(tmp_path):
    hostile = make_arm([], drafter="../../etc/my.drafter", k=None, id="a/b")
    assert arm_file_name(hostile) == "-..-etc-my.drafter-a-b.json"
    base = make_baseline([])
    run = make_run([base], testbed="../up", id="../../run")
    assert Store(tmp_path / "results").write_run(run, [base]).is_relative_to(tmp_path / "results")


def test_every_trace_is_one_line_of_a_readable_file(tmp_path):
    run, arms = a_run()
    text = (Store(tmp_path).write_run(run, arms) / "guess-k4-arm00001.json").read_text()
    lines = [line for line in text.splitlines() if '"prompt_id"' in line]
    assert len(lines) == len(arms[1].traces)
    assert text.startswith('{\n "schema": 1,\n "id": "arm00001",\n')


def test_a_subset_does_not_throw_earlier_results_away(tmp_path):
    store = Store(tmp_path)
    store.write_run(*a_run("first"))
    store.write_run(*a_run("second"))
    assert {found.record.id for found in store.runs()} == {"first", "second"}


def test_a_run_is_never_overwritten(tmp_path):
    store = Store(tmp_path)
    store.write_run(*a_run(seed=1))
    with pytest.raises(UserError, match="there already"):
        store.write_run(*a_run(seed=2))
    assert load(store.runs()[0].path) == (a_run(seed=1)[0], a_run(seed=1)[1])


def test_a_run_that_stopped_before_its_last_file_is_not_seen(tmp_path, monkeypatch):
    store, real = Store(tmp_path), store_module._write

    def dies_at_the_end(path, text):
        if path.name == "run.json":
            raise OSError("disk full")
        real(path, text)

    monkeypatch.setattr(store_module, "_write", dies_at_the_end)
    with pytest.raises(OSError):
        store.write_run(*a_run())
    assert store.runs() == []
    monkeypatch.undo()
    store.write_run(*a_run())
    assert len(store.runs()) == 1


def test_a_file_that_stopped_half_way_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    store_module._write(path, "old")
    monkeypatch.setattr(store_module.os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError):
        store_module._write(path, "new")
    assert path.read_text() == "old"


def test_a_run_must_match_its_arms(tmp_path):
    run, arms = a_run()
    with pytest.raises(UserError, match="lists the arms arm00001, base0001"):
        Store(tmp_path).write_run(run, arms[:1])
    folder = Store(tmp_path).write_run(run, arms)
    (folder / "guess-k4-arm00001.json").unlink()
    with pytest.raises(UserError, match="found base0001"):
        load(folder)


def test_nan_is_refused_before_anything_is_written(tmp_path):
    base = make_baseline([make_trace("p", [], prefill_ms=float("nan"))])
    with pytest.raises(ValueError, match="cannot hold nan"):
        Store(tmp_path).write_run(make_run([base]), [base])
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_nan_in_a_file_is_not_json(tmp_path, constant):
    folder = Store(tmp_path).write_run(*a_run())
    file = folder / "run.json"
    file.write_text(file.read_text().replace('"concurrency": 1', f'"concurrency": {constant}'))
    with pytest.raises(UserError, match=rf"run\.json: not valid JSON \({constant} is not JSON\)"):
        read_run(folder)


def test_files_are_strict_json(tmp_path):
    for file in Store(tmp_path).write_run(*a_run()).iterdir():
        json.loads(file.read_text(), parse_constant=pytest.fail)


def test_conflict_markers_are_reported_with_the_file(tmp_path):
    store = Store(tmp_path)
    file = store.write_run(*a_run()) / "run.json"
    file.write_text(f"<<<<<<< ours\n{file.read_text()}")
    with pytest.raises(UserError, match=r"run1/run\.json: not valid JSON"):
        store.runs()


def test_another_format_number_is_refused(tmp_path):
    folder = Store(tmp_path).write_run(*a_run())
    for name in ("run.json", "guess-k4-arm00001.json"):
        file, text = folder / name, (folder / name).read_text()
        file.write_text(text.replace('"schema": 1', '"schema": 2'))
        with pytest.raises(
            UserError, match=rf"{name}: record format 2 is unknown; this version reads format 1"
        ):
            load(folder)
        file.write_text(text)


def test_an_unknown_key_is_refused_with_its_file(tmp_path):
    folder = Store(tmp_path).write_run(*a_run())
    file = folder / "run.json"
    file.write_text(file.read_text().replace('"engine"', '"motor"'))
    with pytest.raises(UserError, match=r"run\.json: expected a RunRecord without the unknown key 'motor'"):
        read_run(folder)


def test_columns_of_different_lengths_are_refused(tmp_path):
    folder = Store(tmp_path).write_run(*a_run())
    file = folder / "guess-k4-arm00001.json"
    file.write_text(file.read_text().replace('"hits":[', '"hits":[0,', 1))
    with pytest.raises(UserError, match="the rounds of p0 have columns of different lengths"):
        load(folder)


def test_a_missing_run_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"nowhere: no such record"):
        load(tmp_path / "nowhere")


def test_an_empty_store_has_no_runs(tmp_path):
    assert Store(tmp_path / "nothing").runs() == []


def test_find_takes_a_beginning_and_suggests(tmp_path):
    store = Store(tmp_path)
    for name in ("20260101-aa", "20260102-bb"):
        store.write_run(*a_run(name))
    assert store.find("20260102").record.id == "20260102-bb"
    with pytest.raises(UserError, match="not unique"):
        store.find("2026")
    with pytest.raises(UserError, match="did you mean '20260102-bb'"):
        store.find("20260102-bc")


# Time


def test_runs_are_ordered_by_the_moment_and_not_by_the_text(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    times = {
        "third": "2026-01-31T12:00:00Z",
        "second": "2026-01-31T16:30:00+05:30",
        "first": "2026-01-31T10:00:00.5+00:00",
        "fourth": "2026-01-31T08:00:00-05:00",
    }
    for run_id, created in times.items():
        Store(tmp_path).write_run(*a_run(run_id, created_utc=created))
    assert [found.record.id for found in Store(tmp_path).runs()] == ["first", "second", "third", "fourth"]


@pytest.mark.parametrize("text", ["2026-01-31T12:00:00", "yesterday", ""])
def test_a_time_without_a_zone_is_refused(tmp_path, text):
    with pytest.raises(UserError, match="a time with its zone"):
        parse_utc(text, "here")
    with pytest.raises(UserError, match="run1: expected a time with its zone"):
        Store(tmp_path).write_run(*a_run(created_utc=text))
    assert not list(tmp_path.rglob("*.json"))


# Journal


def test_a_journal_gives_back_what_it_was_given(tmp_path):
    journal = Store(tmp_path).journal("run1")
    assert journal.path == tmp_path / ".partial" / "run1.jsonl"
    assert journal.read() == []
    trace = make_trace("p\u2028ü\n", [])
    journal.append("trace", trace)
    journal.append("note", {"text": "a\r\nb"})
    again = Journal(journal.path).read()
    assert [entry.kind for entry in again] == ["trace", "note"]
    assert again[0].data["prompt_id"] == "p\u2028ü\n"
    assert again[1] == Entry("note", {"text": "a\r\nb"})
    assert len(journal.path.read_bytes().splitlines()) == 2


@pytest.mark.parametrize(
    "torn", ['{"kind": "b", "da', '{"kind": "b", "data": 2}', '{"kind": "b"\n', "\0\0\0"]
)
def test_one_torn_last_line_is_ignored_and_cut_off(tmp_path, torn):
    path = tmp_path / "run.jsonl"
    Journal(path).append("a", 1)
    with path.open("a") as file:
        file.write(torn)
    assert Journal(path).read() == [Entry("a", 1)]
    assert path.read_text().endswith(torn), "reading must not change a file that is being written"
    Journal(path).append("c", 3)
    assert Journal(path).read() == [Entry("a", 1), Entry("c", 3)]


def test_a_broken_line_before_the_last_names_file_and_line(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text('{"kind": "a", "data": 1}\n<<<<<<< ours\n{"kind": "b", "data": 2}\n')
    with pytest.raises(UserError, match=r"run\.jsonl:2: a broken line"):
        Journal(path).read()


def test_a_journal_refuses_nan_and_stays_whole(tmp_path):
    journal = Journal(tmp_path / "run.jsonl")
    journal.append("a", 1.5)
    for bad in (float("nan"), [float("inf")]):
        with pytest.raises(ValueError):
            journal.append("b", bad)
    assert journal.read() == [Entry("a", 1.5)]


def test_each_event_is_on_disk_before_the_next(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("draftboard.record.journal.os.fsync", lambda fd: synced.append(fd))
    journal = Journal(tmp_path / "run.jsonl")
    for n in range(3):
        journal.append("n", n)
        assert len(synced) == n + 1


def _write_a_run(root: str, run_id: str) -> None:
    store = Store(Path(root))
    for n in range(30):
        store.journal(run_id).append("n", n)
    store.write_run(*a_run(run_id))


def test_two_processes_with_different_runs_do_not_meet(tmp_path):
    names = ["one", "two"]
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write_a_run, args=(str(tmp_path), name)) for name in names]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    store = Store(tmp_path)
    assert sorted(found.record.id for found in store.runs()) == names
    for name in names:
        assert [entry.data for entry in store.journal(name).read()] == list(range(30))


# Schemas


def test_the_published_schemas_are_current():
    for name, data in file_schemas().items():
        published = json.loads((ROOT / "results" / "schema" / name).read_text())
        assert published == data, f"results/schema/{name} is stale; write it anew with store.write_schemas"


def test_written_files_follow_the_schemas(tmp_path):
    folder = Store(tmp_path).write_run(*a_run())
    for name in ("run.json", "guess-k4-arm00001.json"):
        data, kind = json.loads((folder / name).read_text()), "run.json" if name == "run.json" else "arm.json"
        validator = jsonschema.Draft202012Validator(file_schemas()[kind])
        validator.validate(data)
        assert not validator.is_valid({**data, "extra": 1})
        assert not validator.is_valid({key: item for key, item in data.items() if key != "schema"})
        assert not validator.is_valid({**data, "id": 7})
