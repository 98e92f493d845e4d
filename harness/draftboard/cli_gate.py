"""The commands `compare` and `gate`: they parse, import what they need and call."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from draftboard.errors import INTERRUPTED, CandidateFailed, UserError, unknown

WORK, KEPT_WORK = "gate-", 5
"""The beginning of the folders in results/.partial/ that hold a gate's runs, and how many of them stay."""
ACCEPTED = "accepted"
"""What `--against` says for the accepted runs; anything else is a commit."""

FIRST = (
    "draftboard: no accepted run of these arms on this machine; `draftboard gate --accept ARM"
    " --because '...'` makes the newest run of one in results/ the base"
)

Root = Annotated[Path, typer.Option(help="The checkout: where tasks/, results/ and site/ lie.")]
Format = Annotated[str, typer.Option(help="table, markdown, json, junit or benchmark-action.")]
Out = Annotated[Path | None, typer.Option(help="File for --format, instead of the screen.")]
Against = Annotated[str, typer.Option(help="`accepted`, or a commit to build and run beside this checkout.")]
Suite = Annotated[
    str | None, typer.Option(help="What to measure (default: gate beside a commit, else standard).")
]
Candidate = Annotated[
    str | None, typer.Option(help="Runs to judge by the accepted ones, instead of measuring now.")
]
Limit = Annotated[float, typer.Option(help="How much longer a token may take, as a share.")]
AcceptanceLimit = Annotated[
    float, typer.Option(help="How much shorter the acceptance length may be, as a share.")
]
Accept = Annotated[
    str | None, typer.Option(metavar="ARM", help="Make the newest run of this arm the accepted one.")
]
AcceptedRun = Annotated[
    str | None,
    typer.Option("--run", help="The run that --accept means: an older one, or one of another setting."),
]
Because = Annotated[str, typer.Option(help="Why it is accepted; kept beside it.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Sessions = Annotated[int, typer.Option(help="At most so many measurements of an undecided time.")]
Work = Annotated[
    Path | None, typer.Option(help="Folder for the runs (default: in results/.partial/, the last five stay).")
]
History = Annotated[bool, typer.Option(help="Add the ruling to results/history/.")]


def add_to(app: typer.Typer) -> None:
    """Adds the commands to the command line."""
    app.command()(compare)
    app.command()(gate)


def compare(
    base: Annotated[str, typer.Argument(help="A run's id, a folder of runs, or a git ref.")],
    candidate: Annotated[str, typer.Argument(help="The same, for the other side.")],
    format: Format = "table",
    out: Out = None,
    root: Root = Path(),
) -> None:
    """Compare what two sides measured, arm by arm; it decides nothing, `gate` does (exit code 5: the sides
    have nothing in common)."""
    from draftboard.judge.findings import EXIT_CODES, Limits
    from draftboard.judge.gate import Trial
    from draftboard.record.sides import read_side

    _check_output(format, out)
    sides = [read_side(text, root).runs for text in (base, candidate)]
    ruling = Trial(Limits(), one_machine=False).add(*sides)
    _write(ruling, format, out, decided=False)
    if not ruling.comparison.arms:
        print(
            f"draftboard: nothing comparable in {base} and {candidate}: no arm of the same task, model,"
            " dtype, options and machine on both sides; `draftboard results` lists what there is",
            file=sys.stderr,
        )
        raise typer.Exit(EXIT_CODES["nothing comparable"])


def gate(
    against: Against = ACCEPTED,
    suite: Suite = None,
    candidate: Candidate = None,
    limit: Limit = 0.03,
    acceptance_limit: AcceptanceLimit = 0.01,
    accept: Accept = None,
    because: Because = "",
    run: AcceptedRun = None,
    device: Device = "auto",
    format: Format = "table",
    out: Out = None,
    sessions: Sessions = 3,
    work: Work = None,
    history: History = False,
    root: Root = Path(),
) -> None:
    """Judge this checkout by a fixed base (exit codes: 0 pass, 1 regression, 3 cannot tell, 4 not lossless,
    5 nothing comparable, 130 interrupted)."""
    if accept is not None:
        _refuse_beside_accept({"--against": against != ACCEPTED, "--suite": suite, "--candidate": candidate,
                               "--out": out, "--work": work, "--history": history,
                               "--limit": limit != 0.03, "--acceptance-limit": acceptance_limit != 0.01,
                               "--sessions": sessions != 3,
                               "--device": device != "auto", "--format": format != "table"})  # fmt: skip
        print(_accept(accept, because, run, root / "results"))
        return
    _refuse_without_accept(because, run)
    if candidate is not None:
        _refuse_beside_candidate({"--suite": suite, "--device": device != "auto", "--work": work,
                                  "--sessions": sessions != 3})  # fmt: skip
    _check_output(format, out)
    place = work or _work_folder(root / "results")
    ruling = _ruling(
        _Asked(against, suite, candidate, limit, acceptance_limit, sessions, root, place, device)
    )
    _write(ruling, format, out, decided=True)
    if history:
        _remember(ruling, against, root)
    _closing_words(ruling, against, None if candidate else place, root / "results")
    raise typer.Exit(ruling.exit_code)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a gate was asked for, as its flags say."""

    against: str
    suite: str | None
    candidate: str | None
    limit: float
    acceptance_limit: float
    sessions: int
    root: Path
    work: Path
    device: str


def _work_folder(results: Path) -> Path:
    """A new place for a gate's runs."""
    return results / ".partial" / f"{WORK}{_now().strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"


def _clear_older(results: Path) -> None:
    """Removes what earlier gates measured, save the newest few: it is there to be looked into after a
    verdict, and nobody else clears it away."""
    older = sorted((results / ".partial").glob(f"{WORK}*"))
    for folder in older[: max(0, len(older) - KEPT_WORK + 1)]:
        shutil.rmtree(folder, ignore_errors=True)


def _closing_words(ruling: Any, against: str, work: Path | None, results: Path) -> None:
    """Where the runs lie, and how the first of an arm becomes its base."""
    first = ruling.outcome == "nothing comparable" and ruling.comparison.new and against == ACCEPTED
    if first:
        print(FIRST, file=sys.stderr)
    if work is not None and work.exists():
        keep = f"; to keep them: cp -r {work}/* {results}/" if first else ""
        print(f"draftboard: what was measured lies in {work}{keep}", file=sys.stderr)


def _ruling(asked: _Asked) -> Any:
    """The ruling; one that nobody reached because it was interrupted ends the process."""
    from draftboard.judge.gate import failed

    try:
        return _judge(asked)
    except CandidateFailed as error:
        return failed(str(error))
    except KeyboardInterrupt:
        left = f", what was measured lies in {asked.work}" if asked.work.exists() else ""
        Console(stderr=True).print(f"interrupted; nothing was judged{left}")
        raise typer.Exit(INTERRUPTED) from None


def _judge(asked: _Asked) -> Any:
    """Measures what is to be measured and rules on it."""
    from draftboard.judge.findings import Limits
    from draftboard.judge.gate import Trial
    from draftboard.record.accepted import doubts, read_ledger
    from draftboard.record.tasks import list_tasks

    beside = asked.against != ACCEPTED
    if beside and asked.candidate is not None:
        raise UserError("--candidate is for --against accepted: beside a commit both builds are measured now")
    ledger = read_ledger(asked.root / "results")
    if ledger.floors and (asked.root / "tasks").is_dir():
        for line in doubts(ledger, list_tasks(asked.root)):
            print(f"draftboard: {line}", file=sys.stderr)
    limits = Limits(asked.limit, asked.acceptance_limit, ledger)
    trial = Trial(limits, one_machine=beside, most=asked.sessions)
    return trial.over(_beside_commit(asked) if beside else _beside_accepted(asked))


def _beside_commit(asked: _Asked) -> Iterator[Any]:
    from draftboard.measure import builds, versus
    from draftboard.record.suites import load_suite

    suite, ref, root = asked.suite or "gate", asked.against, asked.root
    # Refuses a misspelt name before anything is built.
    load_suite(str(root / suite) if suite.endswith(".toml") else suite)
    console = Console(stderr=True)
    console.print(f"building {ref}", markup=False)
    pair = builds.at_commit(ref, root), builds.this_checkout(root)
    _clear_older(root / "results")
    found = versus.sessions(*pair, suite, asked.work, asked.device)
    for number in count(1):
        console.print(f"session {number}: both builds take turns, about a minute", markup=False)
        yield next(found)


def _beside_accepted(asked: _Asked) -> Iterator[Any]:
    """The accepted runs of this machine beside stored runs once, or beside new ones again and again."""
    from draftboard.record.accepted import beside, read_ledger

    results = asked.root / "results"
    if asked.candidate is not None:
        runs, tasks = _stored(asked.candidate, asked.root)
        yield beside(results, runs, tasks), runs
        return
    from draftboard.measure import anew

    suite = asked.suite or "standard"
    plans = anew.plans_of(suite, asked.root, asked.device, f"draftboard gate --suite {suite}")
    tasks = anew.task_names(plans)
    if not tasks & {one.task for one in read_ledger(results).accepted}:
        print("draftboard: no accepted run of these tasks yet: this measures a first one", file=sys.stderr)
    _clear_older(results)
    for runs in anew.measured(plans, asked.work, Console(stderr=True)):
        if not runs and tasks & {one.task for one in read_ledger(results).accepted}:
            raise CandidateFailed(f"no task of suite {suite} could be measured: its output says why")
        yield beside(results, runs, tasks), runs


def _stored(candidate: str, root: Path) -> tuple[Any, set[str] | None]:
    """The runs that --candidate names, and the tasks they are judged on: a run is judged on its own, a
    folder or a commit that lacks a task has lost it."""
    from draftboard.record.sides import read_side

    side = read_side(candidate, root)
    beds = {run.fingerprint: run.testbed for run, _ in side.runs}
    if len(beds) > 1:
        names = ", ".join(sorted(set(beds.values())))
        raise UserError(
            f"--candidate {candidate} holds runs of {len(beds)} machines, dtypes or library versions; name a"
            f" run, or the folder of one of them: {names}"
        )
    return side.runs, {run.task.name for run, _ in side.runs} if side.kind == "run" else None


def _refuse_beside_accept(given: dict[str, Any]) -> None:
    if found := [name for name, value in given.items() if value]:
        raise UserError(
            f"--accept measures and judges nothing, so {found[0]} has no meaning with it: leave it out"
        )


def _refuse_beside_candidate(given: dict[str, Any]) -> None:
    if found := [name for name, value in given.items() if value]:
        raise UserError(
            f"--candidate names runs that were measured, {found[0]} is for measuring: leave one out"
        )


def _refuse_without_accept(because: str, run: str | None) -> None:
    if because or run:
        word = "--because gives the reason for" if because else "--run names the run of"
        raise UserError(f"{word} --accept ARM; name the arm, or leave it out")


def _accept(arm: str, because: str, run: str | None, results: Path) -> str:
    from draftboard.judge.accepting import accept
    from draftboard.record.accepted import moving, write_ledger
    from draftboard.record.sides import read_runs
    from draftboard.record.store import Store

    named = None if run is None else Store(results).find(run).record.id
    moment = _now().isoformat(timespec="microseconds")
    with moving(results) as ledger:
        moved = accept(ledger, read_runs(results), arm, because, moment, named)
        path = write_ledger(results, moved)
    new = [one for one in moved.accepted if one.accepted_utc == moment]
    lines = (f"accepted {one.task} {one.arm} of run {one.run} on {one.target}" for one in new)
    return "\n".join([*lines, f"wrote {path}"])


def _remember(ruling: Any, against: str, root: Path) -> None:
    """Keeps a ruling, with the commit that was judged by and not a name that moves on."""
    from draftboard.judge.logbook import entry
    from draftboard.measure.builds import commit_of
    from draftboard.record import history

    results = root / "results"
    # The base's run knows its commit; a name may have moved on while both were measured.
    known = (arm.base.run.environment.git_sha for arm in ruling.comparison.arms)
    named = against if against == ACCEPTED else next(known, None) or commit_of(against, root)
    made = entry(ruling, named, _now().isoformat(timespec="seconds"))
    if made is not None:
        history.append(results, made)


def _now() -> datetime:
    return datetime.now(UTC)


def _check_output(form: str, out: Path | None) -> None:
    """Refuses, before anything is measured, what could not be written afterwards."""
    from draftboard.show import comparison_files

    if form not in (known := {"table", *comparison_files.FORMATS}):
        raise unknown("format", form, known)
    if out is not None and form == "table":
        raise UserError(f"--out {out} takes a file's format; add --format markdown, json, junit or another")
    if out is None:
        return
    folder = out.absolute().parent
    if not folder.is_dir():
        raise UserError(f"--out {out}: there is no folder {folder}; make it first")
    if out.is_dir():
        raise UserError(f"--out {out} is a folder; name a file in it")
    if not os.access(out if out.exists() else folder, os.W_OK):
        raise UserError(f"--out {out} cannot be written; name another place, or make rights there")


def _write(ruling: Any, form: str, out: Path | None, *, decided: bool) -> None:
    """Shows a ruling, or the comparison in it; on GitHub it also joins the job's summary."""
    from draftboard.show import comparison, comparison_files
    from draftboard.show.layout import show

    formats = comparison_files.RULING_FORMATS if decided else comparison_files.FORMATS
    if form == "table":
        found = ruling.comparison
        told = comparison.ruling(ruling) if decided else comparison.table(found, comparison.doubts(found))
        show(Console(), told)
    elif out is not None:
        _save(out, formats[form](ruling))
        if decided:
            print(f"draftboard: {comparison.headline(ruling)}; more in {out}", file=sys.stderr)
    else:
        sys.stdout.write(formats[form](ruling))
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        _append(Path(summary), formats["markdown"](ruling))


def _save(out: Path, text: str) -> None:
    """A file that cannot be written after all goes to the screen: it may have taken hours."""
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"draftboard: {out} cannot be written: {error.strerror}; this was for it:", file=sys.stderr)
        sys.stdout.write(text)


def _append(summary: Path, text: str) -> None:
    """A summary that cannot be written is told, and changes no verdict."""
    try:
        with summary.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        print(f"draftboard: no job summary in {summary}: {error.strerror}", file=sys.stderr)
