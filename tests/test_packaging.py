"""The project's own machinery: set-up, pins, continuous integration and the end of a test run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[1]
TARGETS = [
    *("help", "setup", "bench", "smoke", "train", "test", "proof", "check", "peers", "gpu-check", "gate"),
    *("site", "clean"),
]
NEEDS_ABSENT = """
import pytest

def test_runs(): pass

@pytest.mark.needs("no-such-tool")
def test_waits(): raise AssertionError("must not run")
"""
PYTHON = """#!/bin/sh
echo "$@" >> {log}
case "$1 $2" in
  "-c "*) exit {too_old} ;;
  "-V "*) echo "Python 3.9.2" ;;
  "-m venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  "-m pip") exit {pip_status} ;;
esac
"""


def make(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Runs make as a person would, even when these tests were themselves started by make."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(["make", *args], cwd=folder, env=env, capture_output=True, text=True)


class Checkout:
    """A folder with the Makefile and a stand-in for Python that logs what it was asked to do."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder)

    def setup(self, pip_status: int = 0, too_old: int = 0) -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        python = self.folder / "python"
        python.write_text(PYTHON.format(log=self.log, pip_status=pip_status, too_old=too_old))
        python.chmod(0o755)
        return make(self.folder, "setup", f"PYTHON={python}")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.mark.needs("make")
def test_setup_installs_once_with_the_pins(checkout: Checkout) -> None:
    assert checkout.setup().returncode == 0
    assert re.search(r"pip install .*-c constraints.txt -e \.\[dev\]", checkout.log.read_text())
    assert checkout.setup().returncode == 0
    assert checkout.log.read_text() == ""


@pytest.mark.needs("make")
def test_a_new_pin_installs_again_into_the_same_environment(checkout: Checkout) -> None:
    checkout.setup()
    kept = checkout.folder / ".venv" / "kept"
    kept.touch()
    os.utime(checkout.folder / "constraints.txt", (2**32, 2**32))
    checkout.setup()
    assert "pip install" in checkout.log.read_text()
    assert kept.exists()


@pytest.mark.needs("make")
def test_a_half_finished_setup_is_made_anew(checkout: Checkout) -> None:
    assert checkout.setup(pip_status=1).returncode != 0
    half = checkout.folder / ".venv" / "half-a-package"
    half.touch()
    assert checkout.setup().returncode == 0
    assert not half.exists()


@pytest.mark.needs("make")
def test_an_old_python_is_named_and_nothing_is_made(checkout: Checkout) -> None:
    done = checkout.setup(too_old=1)
    assert done.returncode == 2
    assert "Python 3.11 or newer" in done.stderr
    assert "3.9.2" in done.stderr
    assert not (checkout.folder / ".venv").exists()


@pytest.mark.needs("make")
def test_help_lists_every_verb(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    listed = [line.split()[1] for line in make(tmp_path).stdout.splitlines()]
    assert listed == TARGETS


@pytest.mark.needs("make")
def test_the_gate_runs_beside_the_commit_that_is_named() -> None:
    for words, commit in (((), "HEAD"), (("AGAINST=main",), "main")):
        shown = make(ROOT, "-n", "gate", *words).stdout
        assert shown.rstrip().endswith(f"draftboard gate --against {commit}")


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def test_every_declared_dependency_is_pinned_to_a_version_it_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = [Requirement(line) for line in sum(extras.values(), project["dependencies"])]
    pinned = pins()
    wrong = [r for r in declared if pinned.get(canonicalize_name(r.name), "missing") not in r.specifier]
    assert wrong == []


def test_pins_name_no_local_build() -> None:
    assert [version for version in pins().values() if "+" in version or not version[0].isdigit()] == []


@pytest.mark.needs("bash")
def test_the_landing_script_parses_and_stops_at_the_first_failure() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    text = script.read_text()
    assert "set -euo pipefail" in text
    assert re.findall(r"make (\w+)$", text, re.MULTILINE) == ["setup", "check", "test"]


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("CI", raising=False)
    pytester.makeini("[pytest]\nmarkers = needs(tool): test\n")
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text())
    pytester.makepyfile(NEEDS_ABSENT)
    return pytester


def test_a_missing_tool_is_named_at_the_end(inner: pytest.Pytester) -> None:
    result = inner.runpytest_inprocess()
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["NOT RUN (tool missing: no-such-tool): *::test_waits"])


@pytest.mark.parametrize("ci", [True, False])
def test_a_missing_tool_fails_a_strict_run(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: bool
) -> None:
    if ci:
        monkeypatch.setenv("CI", "true")
    result = inner.runpytest_inprocess(*([] if ci else ["--strict-tools"]))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["NOT RUN (tool missing: no-such-tool): *", "*strict*fails it*"])


def test_a_strict_run_may_name_the_tools_it_lacks(inner: pytest.Pytester) -> None:
    result = inner.runpytest_inprocess("--strict-tools", "--allow-missing", "no-such-tool")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["NOT RUN (tool missing: no-such-tool): *"])


def test_any_other_skip_fails_a_strict_run_too(inner: pytest.Pytester) -> None:
    inner.makepyfile(test_other="import pytest\npytest.importorskip('no_such_package')\n")
    result = inner.runpytest_inprocess("--strict-tools", "--allow-missing", "no-such-tool")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["NOT RUN (*no_such_package*): test_other.py"])


DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "harness/README.md")]


def code_in(text: str) -> str:
    """What a document sets as code: fenced blocks and `spans`."""
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_only_commands_verbs_and_files_that_exist(document: Path) -> None:
    from typer.main import get_command

    from draftboard.cli import app

    text = document.read_text()
    commands = vars(get_command(app))["commands"]
    assert set(re.findall(r"\bdraftboard ([a-z-]+)", code_in(text))) <= set(commands)
    assert set(re.findall(r"\bmake ([a-z-]+)", code_in(text))) <= set(TARGETS)
    linked = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text)]
    assert [link for link in linked if not (document.parent / link).exists()] == []


def test_the_readme_names_only_flags_that_run_has() -> None:
    from typer.main import get_command

    from draftboard.cli import app

    flags = {flag for option in vars(get_command(app))["commands"]["run"].params for flag in option.opts}
    text = (ROOT / "README.md").read_text()
    overrides = text[text.index("a flag overrides") : text.index("The baseline always runs")]
    used = re.findall(r"draftboard run(.*?)(?:#|$)", text, re.MULTILINE)
    assert set(re.findall(r"--[a-z-]+", overrides + " ".join(used))) <= flags


def test_the_drafter_in_the_readme_guesses_and_leaves_the_text_alone(tmp_path: Path) -> None:
    import torch

    from draftboard.measure import plugins
    from draftboard.measure.clock import Clock
    from draftboard.measure.decode import decode
    from draftboard.measure.sampling import Randomness, Sampler
    from draftboard.record.records import Sampling
    from tiny import plain_greedy, tiny_model, tiny_target

    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert example
    file = tmp_path / "readme_echo.py"
    file.write_text(example[1])
    target = tiny_target()
    sampler = Sampler(Sampling(), Randomness(0, target.device))
    drafter = plugins.load(str(file), "draftboard_drafters").build(target, sampler)
    prompt, clock = torch.tensor([3, 1, 4]), Clock(target.device)
    reply = decode(target, drafter, prompt, sampler, clock, max_new_tokens=20)
    assert list(reply.token_ids) == plain_greedy(tiny_model(), [3, 1, 4], 20)
    assert sum(reply.rounds.proposed) > 0
