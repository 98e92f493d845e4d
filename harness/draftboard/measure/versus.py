"""Two builds measured side by side, round by round, as often as somebody asks for another session."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from draftboard.errors import SOME_FAILED, CandidateFailed, UserError
from draftboard.measure.builds import Build
from draftboard.measure.referee import Contender, take_turns
from draftboard.measure.turns import ADDRESS
from draftboard.record.sides import Run, read_runs
from draftboard.record.suites import load_suite
from draftboard.record.tasks import task_name

Session = tuple[list[Run], list[Run]]
"""The runs of the base and those of the candidate."""
_TURNS = Path("harness/draftboard/measure/turns.py")
_SUITES = Path("harness/suites")
_QUIET = {"OMP_WAIT_POLICY": "passive"}
"""Threads of a build that waits for its turn sleep; spinning, they would take cores from the other's turn."""
_FINE = (0, SOME_FAILED)
"""Exit codes of a run that stored what it measured."""


def sessions(
    base: Build, candidate: Build, suite: str, work: Path, device: str = "auto"
) -> Iterator[Session]:
    """Measures the suite in both builds, once for each session that is taken from the iterator. Each build
    runs its own version of suite and prompts; a suite that the base lacks is the candidate's. Runs and logs
    stay in `work`. Raises UserError when a build cannot take turns or the base's run ends badly, and
    CandidateFailed when only the candidate's does."""
    for build in (base, candidate):
        if not (build.root / _TURNS).exists():
            raise UserError(f"the {build.name} build in {build.root} cannot take turns; name a newer commit")
    for number in count():
        yield measure_session((base, candidate), suite, work / f"session-{number}", device, number)


def measure_session(builds: tuple[Build, Build], suite: str, work: Path, device: str, seed: int) -> Session:
    """One session of two builds, base first. Raises UserError when `work` holds a session already, and what
    `sessions` raises when a run ends badly."""
    if work.exists():
        raise UserError(f"{work} holds a session of an earlier gate; name another folder with --work")
    work.mkdir(parents=True)
    launches = [_launch(build, builds[1], suite, work, device) for build in builds]
    with tempfile.TemporaryDirectory() as lines, ExitStack() as stack:
        contenders = []
        for build, launch in zip(builds, launches, strict=True):
            contenders.append(Contender(Path(lines) / build.name, launch))
            stack.callback(contenders[-1].stop)
        take_turns(contenders, seed)
        codes = [one.process.wait() for one in contenders]
    for launch, code, error in zip(launches, codes, (UserError, CandidateFailed), strict=True):
        if code not in _FINE:
            raise error(f"the {launch.build.name} build's run ended with code {code}: {launch.last_line()}")
    found = read_runs(launches[0].out), read_runs(launches[1].out)
    if codes[0] == SOME_FAILED:
        _refuse_lost_tasks(launches[0], found)
    return found


def _refuse_lost_tasks(base: _Launch, found: Session) -> None:
    """A task of the suite that the base has no run of could be judged by nothing."""
    asked = {task_name(task) for task in load_suite(str(base.suite)).tasks}
    lost = asked - {run.task.name for run, _ in found[0]}
    if lost:
        raise UserError(
            f"the base build has no run of task {', '.join(sorted(lost))}: {base.last_line()}; judge by a"
            " commit in which it works"
        )


@dataclass(frozen=True, slots=True)
class _Launch:
    """How one build's run is started."""

    build: Build
    suite: Path
    command: tuple[str, ...]
    place: Path
    out: Path

    @property
    def log(self) -> Path:
        return self.out.with_suffix(".log")

    def __call__(self, address: str) -> subprocess.Popen[bytes]:
        environment = self.build.environment(**{ADDRESS: address}, **_QUIET)
        with self.log.open("wb") as log:
            return subprocess.Popen(
                self.command, cwd=self.place, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    def last_line(self) -> str:
        """What the run said last, and where the rest stands."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else 'it said nothing'} (log: {self.log})"


def _launch(build: Build, candidate: Build, suite: str, work: Path, device: str) -> _Launch:
    """A build measures its own suite and prompts where it has them."""
    file = Path(suite) if suite.endswith(".toml") else _SUITES / f"{suite}.toml"
    own = (build.root / file).exists()
    place = build.root if own else candidate.root
    named = suite if own else str(place / file)
    out = work.resolve() / build.name
    options = ("--suite", named, "--root", str(place), "--out", str(out), "--device", device)
    return _Launch(build, place / file, (str(build.python), "-m", "draftboard", "run", *options), place, out)
