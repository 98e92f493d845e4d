"""What every test runs under: few threads, fixed seeds, no hub; and the honest end of a run.

`@pytest.mark.needs("chromium")` names a tool (a program on PATH, a Python package, or `gpu`) that the test
cannot do without. Whatever did not run is named at the end. With `--strict-tools`, or with CI=true in the
environment, such a run fails, save for the tools that `--allow-missing` names.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import sys
from collections import defaultdict

import pytest

# Set before any library reads them, so that tests agree on a thread count and children inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"

MISSING = "tool missing: "


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _is_there(tool: str) -> bool:
    if tool == "gpu":
        return _has_gpu()
    return shutil.which(tool) is not None or importlib.util.find_spec(tool) is not None


class NotRun:
    """Collects what was skipped, says so at the end, and fails a strict run that skipped anything."""

    def __init__(self, strict: bool, allowed: list[str]) -> None:
        self.strict = strict
        self.allowed = {MISSING + tool for tool in allowed}
        self.tests: dict[str, list[str]] = defaultdict(list)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.tests[reason.removeprefix("Skipped: ")].append(report.nodeid)

    pytest_runtest_logreport = pytest_collectreport = _note

    @property
    def fails(self) -> bool:
        return self.strict and bool(set(self.tests) - self.allowed)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.fails and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for reason, tests in sorted(self.tests.items()):
            terminalreporter.write_line(f"NOT RUN ({reason}): {', '.join(tests)}", yellow=True)
        if self.fails:
            terminalreporter.write_line("This run is strict: what was NOT RUN above fails it.", red=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("draftboard")
    strict = os.environ.get("CI") == "true"
    group.addoption("--strict-tools", action="store_true", default=strict, help="fail if a test was NOT RUN")
    group.addoption("--allow-missing", action="append", default=[], metavar="TOOL", help="save for this tool")


def pytest_configure(config: pytest.Config) -> None:
    not_run = NotRun(config.getoption("--strict-tools"), config.getoption("--allow-missing"))
    config.pluginmanager.register(not_run, "not-run")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for tool in marker.args:
            if not _is_there(tool):
                pytest.skip(MISSING + tool)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test starts from the same random state, whichever ran before it."""
    random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture
def torch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is computed by torch's operators, as on a GPU: what records operators can then see all."""
    from draftboard.measure import block_parts, linear, steps

    for module in (block_parts, linear, steps):
        monkeypatch.setattr(module, "kernels", lambda: None)
