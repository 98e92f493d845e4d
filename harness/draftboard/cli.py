"""The `draftboard` command: parses, imports what it needs, calls. It decides nothing.

Exit codes: 0 done; 1 a drafter broke its contract (check-drafter) or its checkpoint is read wrongly (inspect
--self-test); 2 the command was wrong, or a record or page is (one line says what and what to do); 6 some arms
of a run failed, the others are stored; 70 a fault in draftboard itself (one line names the file with the
traceback); 130 interrupted, what was measured is kept; 141 whoever read the output has left. The gate's own
codes stand in `cli_gate`.
"""

from __future__ import annotations

import gc
import os
import shlex
import signal
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from draftboard import cli_gate, cli_train
from draftboard.errors import INTERNAL, INTERRUPTED, SOME_FAILED, UserError, file_trouble, report_fault

BROKEN_PROMISE = 1
READER_GONE = 128 + signal.SIGPIPE

app = typer.Typer(
    help="Benchmark and leaderboard for speculative decoding.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Root = Annotated[Path, typer.Option(help="The checkout: where tasks/, results/ and site/ lie.")]
Results = Annotated[
    Path | None, typer.Option("--results", help="Folder of results (default: results/ in --root).")
]


Suite = Annotated[str, typer.Option(help="A suite of harness/suites, or a TOML file.")]
Target = Annotated[str | None, typer.Option(help="Target: embedded id, folder, or hub id\\[@revision].")]
Tasks = Annotated[str | None, typer.Option(help="Tasks, comma-separated: names, .jsonl files, hf:... ids.")]
Drafters = Annotated[str | None, typer.Option(help="Drafters, comma-separated; the baseline always runs.")]
Ks = Annotated[str | None, typer.Option(help="Drafts per round, comma-separated, such as 1,2,4.")]
Options = Annotated[list[str] | None, typer.Option(help="A drafter's option, name=value; repeatable.")]
Limit = Annotated[int | None, typer.Option(help="Prompts per task, drawn by the seed.")]
MaxNewTokens = Annotated[int | None, typer.Option(help="Most tokens of a reply.")]
MaxContext = Annotated[
    int | None, typer.Option(help="Most positions of the caches; longer prompts are left out.")
]
Repeats = Annotated[int | None, typer.Option(help="Times each reply is measured.")]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy.")]
TopK = Annotated[int | None, typer.Option(help="Keep the likeliest tokens only.")]
TopP = Annotated[float | None, typer.Option(help="Keep this much probability only.")]
Seed = Annotated[int | None, typer.Option(help="Seed of prompts, order and sampling.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
SuiteDtype = Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted run of the same plan.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the cells and the time they may take.")]
RunOut = Annotated[Path | None, typer.Option(help="Folder for the results (default: results/ in --root).")]


def main() -> None:
    """Runs the command. A user's mistake becomes one line and exit code 2, a fault of ours one line and
    exit code 70, so that neither is taken for what a command found."""
    try:
        _to_the_end()
    except UserError as error:
        print(f"draftboard: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except Exception as error:
        if trouble := file_trouble(error):
            print(f"draftboard: {trouble}", file=sys.stderr)
            raise SystemExit(UserError.exit_code) from None
        print(f"draftboard: {report_fault(error)}", file=sys.stderr)
        raise SystemExit(INTERNAL) from None
    finally:
        gc.freeze()  # Python would search all that torch and transformers have made for cycles: two seconds


def _to_the_end() -> None:
    """Runs the command and hands on all that it printed. A reader that has left ends it with a shell's code
    for that: the command line library's own would be 1, a verdict of several commands."""
    stdout = sys.stdout
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
        raise SystemExit(READER_GONE) from None
    except SystemExit:
        if sys.stdout is not stdout:  # the library has met a closed pipe and put a silent one in its place
            raise SystemExit(READER_GONE) from None
        raise


@app.command()
def run(
    suite: Suite = "quick",
    target: Target = None,
    tasks: Tasks = None,
    drafter: Drafters = None,
    k: Ks = None,
    option: Options = None,
    limit: Limit = None,
    max_new_tokens: MaxNewTokens = None,
    max_context: MaxContext = None,
    repeats: Repeats = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    dtype: SuiteDtype = None,
    device: Device = "auto",
    resume: Resume = False,
    dry_run: DryRun = False,
    out: RunOut = None,
    root: Root = Path(),
) -> None:
    """Measure: one run per task, all arms interleaved, results written to results/."""
    from draftboard.measure import commands

    changes = {
        "limit": limit, "max_new_tokens": max_new_tokens, "repeats": repeats, "temperature": temperature,
        "max_context": max_context, "top_k": top_k, "top_p": top_p, "seed": seed, "dtype": dtype,
        "tasks": _words(tasks), **_target(target),
    }  # fmt: skip
    options, command, where = _options(option), _command_line(), out or root / "results"
    names, ks = _words(drafter) or (), _numbers(k)
    plans = commands.make_plans(suite, changes, names, ks, options, root, device, command)
    if note := commands.left_out(suite, plans, names):
        Console().print(note, highlight=False)
    if dry_run:
        _foresee(plans, where)
    else:
        _measure(plans, where, resume)


def _foresee(plans: Any, where: Path) -> None:
    from draftboard.measure import estimate
    from draftboard.show import cells

    found, console = estimate.outlook(plans, _store(where)), Console()
    for line in (*found.notes, *(f"draftboard: {failure}" for failure in found.failures)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if found.cells:
        cells.show(found.cells, console)
    raise typer.Exit(SOME_FAILED if found.failures else 0)


def _measure(plans: Any, where: Path, resume: bool) -> None:
    from draftboard.measure import commands

    console = Console()
    try:
        failures = commands.run_plans(plans, where, console, resume=resume)
    except KeyboardInterrupt:
        console.print(
            f"interrupted; every finished reply is kept in {where / '.partial'}: add --resume to go on"
        )
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(SOME_FAILED if failures else 0)


@app.command()
def doctor(
    target: Annotated[str | None, typer.Option(help="Target to time (default: the embedded one).")] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    context: Annotated[int, typer.Option(min=1, help="Cached positions before the timed forward.")] = 256,
) -> None:
    """Show what this machine can measure: memory speed, the floor per token, the cost of verifying."""
    from draftboard.measure import commands

    commands.print_doctor(target, dtype, device, context, Console())


@app.command(name="check-drafter")
def check_drafter(
    module: Annotated[str, typer.Argument(help="Module name, dotted name, or path of a .py file.")],
    option: Annotated[
        list[str] | None, typer.Option(help="An option of its build, name=value; repeatable.")
    ] = None,
    plugins: Annotated[
        str, typer.Option(help="Package in which a short name is looked up.")
    ] = "draftboard_drafters",
) -> None:
    """Hold a drafter module against the drafter contract, on a tiny target (exit code 1: broken)."""
    from draftboard.measure import commands

    kept = commands.check_drafter(module, _options(option), plugins, Console())
    raise typer.Exit(0 if kept else BROKEN_PROMISE)


@app.command()
def inspect(
    checkpoint: Annotated[str, typer.Argument(help="A drafter's checkpoint: a folder or a hub id.")],
    target: Annotated[
        str | None,
        typer.Option(help="Target it is to draft for: embedded id, folder, or hub id\\[@revision]."),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="The checkpoint's revision on the hub.")] = None,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Read it by wrong conventions too and compare acceptance.")
    ] = False,
    task: Annotated[str, typer.Option(help="Task whose prompts the self-test drafts for.")] = "chat",
    limit: Annotated[int, typer.Option(help="Prompts of the self-test.")] = 16,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens of a reply in the self-test.")] = 64,
    thinking: Annotated[
        bool | None,
        typer.Option("--thinking/--no-thinking", help="The chat template's flag (default: the task's)."),
    ] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    plugins: Annotated[
        str, typer.Option(help="Package whose module `checkpoints` reads it.")
    ] = "draftboard_drafters",
    root: Root = Path(),
) -> None:
    """Show what a drafter's checkpoint holds and how it is read (exit code 1: the self-test failed)."""
    from draftboard.measure import inspection_view as view

    texts = view.Texts(task, root, thinking, limit, max_new_tokens) if self_test else None
    sound = view.run(checkpoint, revision, _target(target), plugins, dtype, device, texts, Console())
    raise typer.Exit(0 if sound else BROKEN_PROMISE)


app.command(name="train")(cli_train.train)


cli_gate.add_to(app)


@app.command()
def results(
    format: Annotated[str, typer.Option(help="table, json, csv, markdown or parquet.")] = "table",
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    out: Annotated[Path | None, typer.Option(help="File to write (needed for parquet).")] = None,
    results: Results = None,
    root: Root = Path(),
) -> None:
    """List every arm that was measured."""
    from draftboard.show import tables

    text = tables.render(_rows(results or root / "results"), "json" if json else format, out)
    if text:
        sys.stdout.write(text)


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="A run's id, its beginning, or its folder.")],
    arm: Annotated[
        str | None, typer.Option(help="Arm id or drafter name (default: all arms, no trace).")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Id of the prompt whose trace is shown.")] = None,
    results: Results = None,
    root: Root = Path(),
) -> None:
    """Show one record, with the trace of a reply coloured by who said each token."""
    from draftboard.show import trace

    trace.show(_store(results or root / "results"), run, arm, prompt, Console())


@app.command()
def site(
    out: Annotated[
        Path | None, typer.Option(help="Folder of the site (default: site/public in --root).")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Make every page again and compare with the written ones.")
    ] = False,
    base_url: Annotated[str, typer.Option(help="Where the site will be served, for badges.")] = "",
    results: Results = None,
    root: Root = Path(),
) -> None:
    """Render the results as a site that opens from its folder."""
    from draftboard.show import site as pages

    folder, store = out or root / "site" / "public", _store(results or root / "results")
    act = pages.verify if verify else pages.build
    print(act(store, folder, root, base_url))


@app.command()
def explain(
    target: Annotated[
        str | None,
        typer.Argument(help="A target in the results (default: all); its query heads per KV head are G."),
    ] = None,
    g: Annotated[
        int | None, typer.Option("--g", help="Query heads per KV head; shows the tile rule alone.")
    ] = None,
    k: Annotated[str | None, typer.Option(help="Drafts per round to judge, comma-separated.")] = None,
    tile: Annotated[int, typer.Option(help="Rows of the attention kernel's tile.")] = 128,
    results: Results = None,
    root: Root = Path(),
) -> None:
    """Explain speedups by their terms, what would change them, and the tile rule: a verification has
    G * (1 + D) query rows per KV head, best a multiple of the attention kernel's tile."""
    from draftboard.show import explanation

    where = results or root / "results"
    explanation.show(_store(where), target, g, _numbers(k), tile, Console())


@app.command()
def verify(results: Results = None, root: Root = Path()) -> None:
    """Check that every stored record can be read and does not contradict itself."""
    from draftboard.show import tables

    where = results or root / "results"
    print(tables.verify(_store(where)))


def _store(path: Path) -> Any:
    from draftboard.record.store import Store

    return Store(path)


def _rows(path: Path) -> Any:
    from draftboard.show import tables

    return tables.rows_of(_store(path))


def _words(text: str | None) -> tuple[str, ...] | None:
    """`a,b` as ("a", "b"); None stays None."""
    return None if text is None else tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(text: str | None) -> tuple[int, ...]:
    words = _words(text) or ()
    wrong = [word for word in words if not word.isdecimal()]
    if wrong:
        raise UserError(f"--k takes whole numbers such as 1,2,4; found {wrong[0]!r}")
    return tuple(int(word) for word in words)


def _target(text: str | None) -> dict[str, str | None]:
    """`id@revision` in its two parts; a folder's name may hold an @."""
    if text is None or Path(text).exists():
        return {"target": text}
    name, _, revision = text.partition("@")
    return {"target": name, "revision": revision or None}


def _options(pairs: list[str] | None) -> dict[str, Any]:
    """`name=value` pairs, the value read as TOML where it is TOML, else as text."""
    options: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--option takes name=value, found {pair!r}")
        try:
            options[name.strip()] = tomllib.loads(f"value = {value}")["value"]
        except ValueError:  # not TOML, or a number of more digits than Python reads
            options[name.strip()] = value
    return options


def _command_line() -> str:
    """The command as typed, to reproduce the run."""
    from draftboard.record.ids import without_folders

    return shlex.join(["draftboard", *map(without_folders, sys.argv[1:])])
