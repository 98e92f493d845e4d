"""Builds side by side: whose turn it is, which code a build runs, and what happens when a run ends badly."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from draftboard.cli import app
from draftboard.errors import CandidateFailed, UserError
from draftboard.measure import builds, runner, versus
from draftboard.measure.builds import Build, at_commit, packages_key, this_checkout
from draftboard.measure.referee import Contender, take_turns
from draftboard.measure.turns import ADDRESS, ASK, GO, TurnClock, Turnstile
from draftboard.record.sides import read_runs
from draftboard.record.store import Store
from tiny_folder import save_task, small_plan

ROOT = Path(__file__).resolve().parents[1]
FAKE_RUN = """
import sys
sys.path.insert(0, {harness!r})
from draftboard.measure.turns import Turnstile
name, log, workers, turns = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
def note(word):
    with open(log, "a") as file:
        file.write(f"{{name}} {{word}}\\n")
for worker in range(workers):
    turnstile = Turnstile()
    for turn in range(turns):
        turnstile.wait()
        note("begin")
        note("end")
    turnstile.wait()
    note("close")
    turnstile._line.close()
"""


def fake_run(name: str, log: Path, workers: int, turns: int) -> Callable[[str], subprocess.Popen[bytes]]:
    script = FAKE_RUN.format(harness=str(ROOT / "harness"))
    command = [sys.executable, "-c", script, name, str(log), str(workers), str(turns)]
    return lambda address: subprocess.Popen(command, env={**os.environ, ADDRESS: address})


@pytest.mark.parametrize(("workers", "turns"), [((1, 1), (5, 5)), ((2, 2), (3, 3)), ((1, 1), (2, 6))])
def test_turns_never_overlap_and_nobody_runs_ahead(
    workers: tuple[int, int], turns: tuple[int, int], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    both = [
        Contender(tmp_path / name, fake_run(name, log, workers[i], turns[i])) for i, name in enumerate("ab")
    ]
    take_turns(both, seed=3)
    assert [one.process.wait() for one in both] == [0, 0]
    for one in both:
        one.stop()
    lines = log.read_text().split("\n")[:-1]
    begun = {"a": 0, "b": 0}
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        name, word = line.split()
        if word == "begin":
            assert following == f"{name} end"
            begun[name] += 1
            if max(begun.values()) <= min(turns):
                assert abs(begun["a"] - begun["b"]) <= 1
    assert begun == {"a": workers[0] * turns[0], "b": workers[1] * turns[1]}


def test_the_order_within_a_round_is_drawn(tmp_path: Path) -> None:
    log = tmp_path / "log"
    both = [Contender(tmp_path / name, fake_run(name, log, 1, 12)) for name in "ab"]
    take_turns(both, seed=0)
    for one in both:
        one.stop()
    first = [line[0] for line in log.read_text().splitlines() if line.endswith("begin")][::2]
    assert set(first) == {"a", "b"}


def test_a_run_that_dies_ends_the_waiting(tmp_path: Path) -> None:
    log = tmp_path / "log"
    dead = Contender(tmp_path / "dead", lambda address: subprocess.Popen(["false"]))
    alive = Contender(tmp_path / "alive", fake_run("a", log, 1, 2))
    take_turns([dead, alive], seed=0)
    assert log.read_text().count("begin") == 2
    assert (dead.process.wait(), alive.process.wait()) == (1, 0)
    for one in (dead, alive):
        one.stop()


def test_without_a_referee_the_turnstile_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS, raising=False)
    Turnstile().wait()


def test_a_referee_that_is_gone_stops_the_run(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "line"))
        server.listen()
        turnstile = Turnstile(str(tmp_path / "line"))
        server.accept()[0].close()
    with pytest.raises(UserError, match="start the gate again"):
        turnstile.wait()


def test_a_run_asks_before_each_prefill_and_round_and_after_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_task(tmp_path, prompts=2)
    asked: list[bytes] = []
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "line"))
    server.listen()

    def answer() -> None:
        line, _ = server.accept()
        while word := line.recv(1):
            asked.append(word)
            line.sendall(GO)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    monkeypatch.setenv(ADDRESS, str(tmp_path / "line"))
    plan = small_plan(tmp_path, max_new_tokens=4, warmup=0, limit=None, repeats=2)
    store = Store(tmp_path / "results")
    runner.run_plan(plan, store, lambda event: None, start_method="fork")
    thread.join(10)
    server.close()
    replies = [trace for _, arms in read_runs(store.root) for arm in arms for trace in arm.traces]
    assert len(replies) == 2 * 2 * 2 * 2
    assert asked == [ASK] * (sum(1 + len(trace.rounds or ()) for trace in replies) + 1)


def test_waiting_for_a_turn_is_in_nobodys_times(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    class Slow(Turnstile):
        def wait(self) -> None:
            now[0] += 5.0

    clock = TurnClock(torch.device("cpu"), Slow())
    began = clock.now_ms()
    for name in ("prefill", "draft_prefill", "draft", "verify", "commit"):
        with clock.span(name) as span:
            now[0] += 0.25
        assert span.ms == pytest.approx(250)
    assert clock.now_ms() - began == pytest.approx(5 * 250)
    assert now[0] == pytest.approx(100 + 5 * 0.25 + 2 * 5)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository of two commits; the second pins other packages."""
    root = tmp_path / "checkout"
    (root / "harness/draftboard").mkdir(parents=True)
    (root / "harness/draftboard/__init__.py").write_text("WHO = 'first'\n")
    (root / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1"\ndependencies = ["torch"]\n')
    (root / "constraints.txt").write_text("torch==1\n")
    for word in ("first", "second"):
        (root / "harness/draftboard/__init__.py").write_text(f"WHO = {word!r}\n")
        for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", word], ["tag", word]):
            own = ["-c", "user.name=a", "-c", "user.email=a@b"]
            subprocess.run(["git", "-C", str(root), *own, *command], check=True)
    return root


def test_a_commit_is_built_once_in_a_worktree_of_its_own(checkout: Path, tmp_path: Path) -> None:
    base = at_commit("first", checkout, tmp_path / "cache")
    assert base == at_commit("first", checkout, tmp_path / "cache")
    assert base.python == Path(sys.executable)
    assert (base.root / "harness/draftboard/__init__.py").read_text() == "WHO = 'first'\n"
    assert base.root.is_relative_to(tmp_path / "cache")


def test_a_builds_own_code_is_imported(checkout: Path, tmp_path: Path) -> None:
    base, own = at_commit("first", checkout, tmp_path / "cache"), this_checkout(checkout)
    script = "import draftboard; print(draftboard.WHO)"
    said = [
        subprocess.run([b.python, "-c", script], env=b.environment(), capture_output=True, text=True).stdout
        for b in (base, own)
    ]
    assert said == ["first\n", "second\n"]


def installed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The environments that are made from now on, with nothing in them but a file for their Python."""
    made: list[Path] = []

    def install(build: Path, folder: Path) -> None:
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        (folder / "bin/python").touch()
        made.append(folder)

    monkeypatch.setattr(builds, "_install", install)
    return made


def test_other_pins_need_an_environment_of_their_own(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = installed(monkeypatch)
    before = packages_key(checkout)
    (checkout / "constraints.txt").write_text("torch==2\n")
    assert packages_key(checkout) != before
    found = [at_commit("first", checkout, tmp_path / "cache").python for _ in range(2)]
    assert found == [tmp_path / "cache/environments" / before / "bin/python"] * 2
    assert len(made) == 1


@pytest.mark.parametrize(
    "ref",
    ["nothing", "", "-h", "--all", "a b", "first..second", "first^{tree}", "$(id)", "ü", "first:x"],
)
def test_a_commit_that_is_not_there(checkout: Path, tmp_path: Path, ref: str) -> None:
    with pytest.raises(UserError, match=r"no commit .*fetch it first"):
        at_commit(ref, checkout, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_shallow_clone_names_what_it_lacks(checkout: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    command = ["git", "clone", "-q", "--depth", "1", "--no-tags", f"file://{checkout}", str(clone)]
    subprocess.run(command, check=True)
    assert at_commit("HEAD", clone, tmp_path / "cache").name == "base"
    with pytest.raises(UserError, match="a shallow clone may lack it: fetch it first"):
        at_commit("HEAD^", clone, tmp_path / "cache")


def test_without_git_no_commit_is_found(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(UserError, match="no commit 'first'"):
        at_commit("first", checkout, tmp_path / "cache")


def changed_file(folder: Path) -> None:
    (folder / "harness/draftboard/__init__.py").write_text("WHO = 'changed'\n")


def half_made(folder: Path) -> None:
    (folder / "harness/draftboard/__init__.py").unlink()


def other_commit(folder: Path) -> None:
    subprocess.run(["git", "-C", str(folder), "checkout", "-q", "second"], check=True)


def lost_repository(folder: Path) -> None:
    (folder / ".git").write_text("gitdir: /nowhere\n")


@pytest.mark.parametrize("harm", [changed_file, half_made, other_commit, lost_repository])
def test_a_build_that_is_not_its_commit_is_made_anew(
    checkout: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    base = at_commit("first", checkout, tmp_path / "cache")
    harm(base.root)
    assert at_commit("first", checkout, tmp_path / "cache") == base
    assert (base.root / "harness/draftboard/__init__.py").read_text() == "WHO = 'first'\n"


@pytest.mark.parametrize("text", ["<<<<<<< ours\n", "[tool.x]\n", "[project]\nname = 'x'\n", None])
def test_a_commit_that_cannot_be_built_is_one_line(checkout: Path, tmp_path: Path, text: str | None) -> None:
    file = checkout / "pyproject.toml"
    sound = file.read_text()
    file.write_text(text) if text is not None else file.unlink()
    own = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(checkout), *own, "commit", "-q", "-a", "-m", "broken"], check=True)
    file.write_text(sound)
    with pytest.raises(UserError, match=r"pyproject\.toml: no list of packages .*name a commit"):
        at_commit("HEAD", checkout, tmp_path / "cache")


def test_packages_that_cannot_be_installed_are_one_line(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / "constraints.txt").write_text("torch==2\n")
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no room >&2; exit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(UserError, match=r"could not be installed into .*: no room"):
        at_commit("first", checkout, tmp_path / "cache")
    assert not list((tmp_path / "cache/environments").glob("*/.ready"))


def test_a_folder_of_an_earlier_gate_is_refused(tmp_path: Path) -> None:
    pair = Build("base", ROOT, Path("python")), Build("candidate", ROOT, Path("python"))
    (tmp_path / "work/session-0").mkdir(parents=True)
    with pytest.raises(UserError, match="holds a session of an earlier gate"):
        versus.measure_session(pair, "gate", tmp_path / "work/session-0", "cpu", 0)


def test_a_worker_that_dies_while_it_waits_ends_its_turn(tmp_path: Path) -> None:
    script = (
        "import socket, sys, time; line = socket.socket(socket.AF_UNIX); line.connect(sys.argv[1]);"
        "line.sendall(b'?'); time.sleep(600)"
    )
    one = Contender(tmp_path / "a", lambda address: subprocess.Popen([sys.executable, "-c", script, address]))
    assert one.ready()
    one.process.kill()
    one.process.wait()
    one.take_turn()
    assert not one.ready()
    one.stop()


def test_a_build_without_a_turnstile_is_refused(checkout: Path, tmp_path: Path) -> None:
    one = this_checkout(checkout)
    with pytest.raises(UserError, match="cannot take turns"):
        next(versus.sessions(one, one, "gate", tmp_path / "work"))


def shell(path: Path, text: str) -> Path:
    """A program that runs `text`."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_run_that_ends_badly_is_told_with_its_last_line(tmp_path: Path) -> None:
    script = shell(tmp_path / "python", "echo first; echo no such suite; exit 2")
    pair = Build("base", ROOT, script), Build("candidate", ROOT, script)
    with pytest.raises(UserError, match=r"base build's run ended with code 2: no such suite \(log: "):
        versus.measure_session(pair, "gate", tmp_path / "work", "cpu", 0)


def test_a_candidate_alone_that_ends_badly_is_no_mistake_of_a_command(tmp_path: Path) -> None:
    codes = {"base": 0, "candidate": 2}
    base, own = (
        Build(name, ROOT, shell(tmp_path / name, f"echo boom; exit {code}")) for name, code in codes.items()
    )
    pair = base, own
    with pytest.raises(CandidateFailed, match="candidate build's run ended with code 2: boom") as caught:
        versus.measure_session(pair, "gate", tmp_path / "work", "cpu", 0)
    assert caught.value.exit_code == 1


def test_a_base_that_lost_a_task_judges_nothing(tmp_path: Path) -> None:
    """What it measured of other tasks would make the lost one a new one, which passes."""
    script = shell(tmp_path / "python", "echo the task failed; exit 6")
    pair = Build("base", ROOT, script), Build("candidate", ROOT, script)
    with pytest.raises(UserError, match=r"base build has no run of task gate: the task failed \(log: "):
        versus.measure_session(pair, "gate", tmp_path / "work", "cpu", 0)


def test_a_suite_file_that_the_base_lacks_is_the_candidates(tmp_path: Path) -> None:
    script = shell(tmp_path / "python", 'pwd; echo "$@"; exit 2')
    for name in ("base", "candidate"):
        (tmp_path / name).mkdir()
    (tmp_path / "candidate/mine.toml").touch()
    pair = Build("base", tmp_path / "base", script), Build("candidate", tmp_path / "candidate", script)
    with pytest.raises(UserError):
        versus.measure_session(pair, "mine.toml", tmp_path / "work", "cpu", 0)
    logs = {name: (tmp_path / f"work/{name}.log").read_text() for name in ("base", "candidate")}
    assert f"--suite {tmp_path}/candidate/mine.toml --root {tmp_path}/candidate" in logs["base"]
    assert f"--suite mine.toml --root {tmp_path}/candidate" in logs["candidate"]


def test_a_build_that_nobody_used_for_weeks_goes(checkout: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = at_commit("first", checkout, cache).root
    os.utime(first, (0, 0))
    assert at_commit("first", checkout, cache).root == first and first.exists(), "its use counts"
    os.utime(first, (0, 0))
    second = at_commit("HEAD", checkout, cache).root
    assert second.exists() and (second == first or not first.exists())


def test_an_environment_whose_python_is_gone_is_made_anew(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = installed(monkeypatch)
    (checkout / "constraints.txt").write_text("torch==2\n")
    python = at_commit("first", checkout, tmp_path / "cache").python
    python.unlink()
    assert at_commit("first", checkout, tmp_path / "cache").python == python
    assert len(made) == 2


FAKE_DRAFTBOARD = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from draftboard.record.store import Store
from sides import side
out = Path(sys.argv[sys.argv.index("--out") + 1])
seed = sum(out.parent.name.encode()) + {seed}
Store(out).write_run(*side(seed, slow={slow}, id="r" + str(seed)))
"""


def fake_build(name: str, folder: Path, slow: float) -> Build:
    """A build whose `draftboard run` stores a made run at once."""
    script, paths = folder / f"{name}.py", [str(ROOT / "harness"), str(ROOT / "tests")]
    script.write_text(FAKE_DRAFTBOARD.format(paths=paths, slow=slow, seed=len(name)))
    python = shell(folder / f"{name}-python", f'exec "{sys.executable}" "{script}" "$@"')
    return Build(name, ROOT, python)


@pytest.mark.parametrize(("slow", "code", "sessions"), [(1.0, 0, 1), (1.3, 1, 2)])
def test_a_gate_beside_a_commit_goes_from_the_builds_to_the_exit_code(
    slow: float, code: int, sessions: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "at_commit", lambda ref, root: fake_build("base", tmp_path, 1.0))
    monkeypatch.setattr(builds, "this_checkout", lambda root: fake_build("candidate", tmp_path, slow))
    words = ["gate", "--against", "HEAD", "--root", str(ROOT), "--work", str(tmp_path / "work")]
    shown = CliRunner().invoke(app, [*words, "--format", "json"])
    assert shown.exit_code == code, shown.output
    assert json.loads(shown.stdout)["sessions"] == sessions == len(list((tmp_path / "work").iterdir()))


def test_only_a_run_that_another_waits_for_forks_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert runner.start_method() == "spawn"
    monkeypatch.setenv(ADDRESS, "/a/line")
    assert runner.start_method() == "fork"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert runner.start_method() == "spawn"
