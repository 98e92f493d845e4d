"""Where the kernels run, why they may not, and on whose threads."""

from __future__ import annotations

import ctypes
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from draftboard.measure import compiled, team
from draftboard.measure.compiled import kernels, kernels_missing

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="NOT RUN: only Linux tells what is loaded")


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    """Before, since an answer may be known already, and afterwards, since a test's is not true."""
    answers = (kernels, kernels_missing, compiled._made, team.team)
    for answer in answers:
        answer.cache_clear()
    yield
    for answer in answers:
        answer.cache_clear()


def test_torchs_own_threads_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = Path(torch.__file__).parent
    maps = tmp_path / "maps"
    lines = [
        "7f0-7f1 r-xp 0 0:0 1    /opt/other one/libgomp.so.1.0.0",
        f"7f2-7f3 r-xp 0 0:0 2 {home}/lib/libgomp-1.so",
    ]
    maps.write_text("\n".join([*lines, *lines, "7f4-7f5 r-xp 0 0:0 3 /lib/libgompertz.txt", ""]))
    monkeypatch.setattr(team, "MAPS", maps)
    assert team._libraries() == [f"{home}/lib/libgomp-1.so", "/opt/other one/libgomp.so.1.0.0"]


@LINUX
def test_the_team_is_the_one_that_torch_has_loaded() -> None:
    found = team.team()
    assert found is not None and found.library in Path("/proc/self/maps").read_text()


@LINUX
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_work_is_called_once_in_each_thread(threads: int) -> None:
    found, seen = team.team(), []
    assert found is not None
    number = ctypes.CDLL(found.library).omp_get_thread_num
    work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda facts: seen.append((facts, number())))
    address = ctypes.cast(work, ctypes.c_void_p).value
    assert address is not None
    found.run(address, 7, threads)
    assert sorted(seen) == [(7, index) for index in range(threads)]


def test_where_the_loaded_libraries_are_not_told_there_is_no_team(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(team, "MAPS", tmp_path / "missing")
    assert team.team() is None
    assert kernels_missing() == "the threads that torch computes with were not found"


def test_a_library_of_another_kind_is_no_team(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "_libraries", lambda: ["/no/such/libgomp.so", "libm.so.6"])
    assert team.team() is None


def test_without_numba_everything_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "find_spec", lambda name: None)
    assert kernels_missing() == "numba is not installed"


def test_without_fused_products_everything_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    if kernels_missing() != "the threads that torch computes with were not found":
        assert kernels_missing() == "the processor does not fuse products and sums"


def test_what_cannot_be_compiled_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(team: object) -> None:
        raise RuntimeError("no locator available")

    monkeypatch.setattr(compiled, "Kernels", broken)
    missing = kernels_missing()
    if team.team() is not None:
        assert missing is not None and "could not be compiled" in missing and "no locator" in missing
    assert kernels() is None


def test_every_source_of_the_code_is_in_the_digest(tmp_path: Path) -> None:
    """numba looks at the file of the calls alone; what they are made of stands in two others."""
    for name in ("row_math", "vectors"):
        (tmp_path / f"{name}.py").write_text(name)
    first = compiled.digest(tmp_path)
    assert first == compiled.digest(tmp_path)
    (tmp_path / "row_math.py").write_text("changed")
    second = compiled.digest(tmp_path)
    (tmp_path / "vectors.py").write_text("changed")
    assert len({first, second, compiled.digest(tmp_path)}) == 3


KEPT = """
from numba import cfunc, types
def made(sources):
    @cfunc(types.int64(), cache=True)
    def work():
        _ = sources
        return 7
    return work
"""


def test_code_that_closes_over_another_digest_is_compiled_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    (tmp_path / "kept.py").write_text(KEPT)
    monkeypatch.syspath_prepend(tmp_path)
    made = importlib.import_module("kept").made
    assert [made(number).cache_hits for number in (1, 1, 2, 2, 1)] == [0, 1, 0, 1, 1]


def test_the_calls_close_over_the_digest() -> None:
    if kernels() is not None:
        from draftboard.measure import kernels as module

        number = compiled.digest(Path(module.__file__).parent)
        for call in module.compiled(number):
            assert call.cache_hits == 1
            assert number in [cell.cell_contents for cell in call.__wrapped__.__closure__]


def test_threads_are_asked_for_their_number_by_their_own_library() -> None:
    found = team.team()
    if found is not None:
        own = ctypes.CDLL(found.library)
        for name, place in found.symbols().items():
            assert place == ctypes.cast(getattr(own, name), ctypes.c_void_p).value


def test_reading_results_needs_no_numba(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom draftboard import cli\nsys.argv = ['draftboard', 'results', '--out', sys.argv[1]]\n"
        "try:\n    cli.main()\nfinally:\n    assert 'numba' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "AssertionError" not in done.stderr and "numba" not in done.stderr, done.stderr
