"""The workflows: their scripts are sound; the gate's choose the right base and end with the right code."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).resolve().parents[1] / ".github" / "workflows"


def steps(workflow: str) -> list[dict[str, Any]]:
    found = yaml.safe_load((FOLDER / workflow).read_text())
    return [step for job in found["jobs"].values() for step in job["steps"]]


def script(name: str) -> str:
    return next(str(step["run"]) for step in steps("gate.yml") if step.get("name") == name)


def run(text: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A step as GitHub runs it in bash."""
    given = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GITHUB_OUTPUT": str(folder / "output"),
        **environment,
    }
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("workflow", sorted(path.name for path in FOLDER.glob("*.yml")))
def test_every_script_is_bash(workflow: str) -> None:
    for step in steps(workflow):
        if "run" in step:
            subprocess.run(["bash", "-n"], input=step["run"], text=True, check=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    own = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*own, "init", "-q"], check=True)
    subprocess.run([*own, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("event", "given", "tag", "base"),
    [
        ("pull_request", "", None, "HEAD^"),
        ("pull_request", "main", None, "main"),
        ("schedule", "", "v1.2.0", "v1.2.0"),
        ("schedule", "main", "v1.2.0", "main"),
        ("schedule", "", None, ""),
    ],
)
def test_the_base_is_the_parent_what_was_asked_for_or_the_release(
    event: str, given: str, tag: str | None, base: str, repository: Path
) -> None:
    if tag is not None:
        subprocess.run(["git", "-C", str(repository), "tag", tag], check=True)
    done = run(
        script("Choose the base"), repository, GITHUB_EVENT_NAME=event, GIVEN=given, SUITE="my/suite.toml"
    )
    assert done.returncode == 0, done.stderr
    lines = (repository / "output").read_text().splitlines()
    asked = f"-{given}" if given else ""
    assert lines == [f"commit={base}", f"artifact=gate-my-suite-toml{asked}"]
    assert ("no release yet" in done.stdout) == (base == "")


@pytest.mark.parametrize(
    ("status", "allowed", "code"),
    [("0", "", 0), ("1", "true", 1), ("3", "", 3), ("3", "true", 0), ("4", "true", 4)],
)
def test_the_job_ends_as_the_gate_did(status: str, allowed: str, code: int, tmp_path: Path) -> None:
    assert run(script("The outcome"), tmp_path, STATUS=status, ALLOWED=allowed).returncode == code


@pytest.mark.parametrize(("code", "text"), [(0, "### pass\n"), (2, None)])
def test_the_comment_says_what_happened_even_when_nothing_was_judged(
    code: int, text: str | None, tmp_path: Path
) -> None:
    tool = tmp_path / ".venv/bin/draftboard"
    tool.parent.mkdir(parents=True)
    written = "" if text is None else "echo '### pass' > gate.md;"
    tool.write_text(f"#!/bin/sh\n{written} exit {code}\n")
    tool.chmod(0o755)
    done = run(script("Measure both builds and judge"), tmp_path, AGAINST="HEAD^", SUITE="gate")
    assert done.returncode == 0 and (tmp_path / "output").read_text() == f"status={code}\n"
    assert (tmp_path / "gate.md").read_text() == (
        text or f"### draftboard gate: nothing was judged (exit code {code}); see the job's log\n"
    )
