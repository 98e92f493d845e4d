"""Where runs are kept: small files that are written once, read strictly and never edited.

`results/<testbed>/<run>/run.json` holds a run and one file beside it holds each arm. What a run has measured
so far stands in `results/.partial/<run>.jsonl`, one line per reply.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from draftboard.errors import UserError, unknown
from draftboard.record.codec import from_json, schema, to_json
from draftboard.record.journal import Journal
from draftboard.record.records import SCHEMA, Arm, Json, Round, RunRecord

RUN_FILE = "run.json"
SCHEMAS = "schema"
"""The folder beside the testbeds that holds the schemas, one of them called like a run's file."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A finished run and the folder it lies in."""

    path: Path
    record: RunRecord


class Store:
    """The finished and unfinished runs below one folder, usually `results/`."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)

    def journal(self, run_id: str) -> Journal:
        """The journal of a run under way, whether or not it exists yet."""
        return Journal(self.root / ".partial" / f"{_slug(run_id)}.jsonl")

    def write_run(self, run: RunRecord, arms: Sequence[Arm]) -> Path:
        """Writes a finished run and returns its folder. `run.json` comes last: a folder without it is not
        a run. Raises UserError when the run is there already or does not match its arms."""
        parse_utc(run.created_utc, run.id)
        _check_ids(run, [arm.id for arm in arms], run.id)
        folder = self.root / _slug(run.testbed) / _slug(run.id)
        if (folder / RUN_FILE).exists():
            raise UserError(f"{folder}: this run is there already; runs are written once and never changed")
        texts = {arm_file_name(arm): _arm_text(arm) for arm in arms}
        texts[RUN_FILE] = _dump(to_json(run), indent=1) + "\n"
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            _write(folder / name, text)
        return folder

    def runs(self) -> list[StoredRun]:
        """All finished runs, oldest first."""
        paths = (p.parent for p in self.root.glob(f"*/*/{RUN_FILE}") if not p.parts[-3].startswith("."))
        found = [StoredRun(path, read_run(path)) for path in paths]
        return sorted(found, key=lambda run: (parse_utc(run.record.created_utc, run.path), run.record.id))

    def find(self, run_id: str) -> StoredRun:
        """The run with this id, or the only one whose id begins so. Raises UserError otherwise."""
        runs = self.runs()
        matches = [run for run in runs if run.record.id == run_id]
        matches = matches or [run for run in runs if run.record.id.startswith(run_id)]
        if len(matches) == 1:
            return matches[0]
        if not matches:
            raise unknown("run", run_id, [run.record.id for run in runs], str(self.root))
        raise UserError(f"run {run_id!r} is not unique; give more of one of: {_ids(matches)}")


def _ids(runs: Sequence[StoredRun]) -> str:
    return ", ".join(run.record.id for run in runs)


def load(path: Path) -> tuple[RunRecord, list[Arm]]:
    """A run and its arms in the run's order, from its folder or its `run.json`. Raises UserError for a
    file that is missing, is not JSON, has another format number or does not belong to the run."""
    folder = Path(path).parent if Path(path).name == RUN_FILE else Path(path)
    run = read_run(folder)
    arms = [read_arm(file) for file in sorted(folder.glob("*.json")) if file.name != RUN_FILE]
    _check_ids(run, [arm.id for arm in arms], str(folder))
    by_id = {arm.id: arm for arm in arms}
    return run, [by_id[arm_id] for arm_id in run.arms]


def read_run(path: Path) -> RunRecord:
    """The `run.json` at `path`, a file or its folder, without the arms."""
    file = path / RUN_FILE if path.is_dir() else path
    data = _read(file)
    _check_schema(data, file)
    return from_json(RunRecord, data, str(file))


def read_arm(file: Path) -> Arm:
    """One arm's file."""
    data = _read(file)
    _check_schema(data, file)
    arm = from_json(Arm, {key: item for key, item in data.items() if key != "schema"}, str(file))
    for trace in arm.traces:
        columns = [getattr(trace.rounds, name) for name in Round._fields] if trace.rounds is not None else []
        if len({len(column) for column in columns}) > 1:
            raise UserError(f"{file}: the rounds of {trace.prompt_id} have columns of different lengths")
    return arm


def arm_file_name(arm: Arm) -> str:
    """`<drafter>[-k<K>]-<arm id>.json`."""
    k = "" if arm.k is None else f"-k{arm.k}"
    return f"{_slug(arm.drafter)}{k}-{_slug(arm.id)}.json"


def parse_utc(text: str, where: object) -> datetime:
    """The moment an ISO 8601 time names, in UTC. A time without a zone is refused: it names no moment."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise UserError(
            f"{where}: expected a time with its zone, such as 2026-01-31T12:00:00Z, found {text!r}"
        )
    return moment.astimezone(UTC)


def file_schemas() -> dict[str, Json]:
    """JSON Schema of each kind of file, by the name of its schema file."""
    arm = schema(Arm)
    header = arm["$defs"]["Arm"]
    header["properties"] = {"schema": {"const": SCHEMA}, **header["properties"]}
    header["required"] = ["schema", *header["required"]]
    return {"run.json": schema(RunRecord), "arm.json": arm}


def write_schemas(folder: Path) -> None:
    """Writes the schema files, as kept in `results/schema/`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in file_schemas().items():
        _write(folder / name, _dump(data, indent=1) + "\n")


def _check_ids(run: RunRecord, found: Sequence[str], where: str) -> None:
    if sorted(found) != sorted(run.arms) or run.baseline not in run.arms:
        listed = f"{', '.join(sorted(run.arms))} with the baseline {run.baseline}"
        raise UserError(
            f"{where}: the run lists the arms {listed}; found {', '.join(sorted(found)) or 'none'}"
        )


def _check_schema(data: Json, file: Path) -> None:
    found = data.get("schema") if isinstance(data, dict) else None
    if found != SCHEMA:
        raise UserError(f"{file}: record format {found!r} is unknown; this version reads format {SCHEMA}")


def _read(file: Path) -> Json:
    try:
        return json.loads(file.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise UserError(f"{file}: no such record; give a run's folder or its run.json") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}; restore the file or remove it") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not valid JSON ({error}); restore the file or remove it") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _arm_text(arm: Arm) -> str:
    """An indented header and one line per trace, so that two versions differ line by line."""
    data = to_json(arm)
    traces = data.pop("traces")
    header = _dump({"schema": SCHEMA, **data}, indent=1).removesuffix("\n}")
    lines = ",\n".join(f"  {_dump(trace)}" for trace in traces)
    return f'{header},\n "traces": [\n{lines}\n ]\n}}\n'


def _dump(data: Json, indent: int | None = None) -> str:
    separators = (",", ": ") if indent else (",", ":")
    return json.dumps(data, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators)


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".") or "-"
