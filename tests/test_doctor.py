"""The doctor: every section, what is wrong, and what to do about it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console

from draftboard.errors import UserError
from draftboard.measure import doctor, doctor_decode, doctor_load, doctor_machine, doctor_view
from draftboard.measure.bandwidth import Bandwidth
from draftboard.measure.curve import FINE_ROWS
from draftboard.measure.doctor import Line, Section, Subject
from draftboard.measure.operators import Operator
from draftboard.measure.step_parts import REST
from draftboard.measure.telemetry.request import GpuRef
from draftboard.measure.telemetry.sampler import NullSampler
from draftboard.record.telemetry import DeviceWindow, Series, Window
from nvml_library import MEMORY, UUIDS, library
from tiny_folder import save_tiny_folder


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_folder(tmp_path_factory.mktemp("target")))


@pytest.fixture(autouse=True)
def _known_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading half a gigabyte again and again is not what is tested here."""
    known = Bandwidth(size=8 * 2**20, cache=2**20, read=0.5e9, product=1e9)
    monkeypatch.setattr(doctor_load, "measure_bandwidth", lambda device, dtype: known)


def examine(target: str) -> dict[str, dict[str, Line]]:
    sections = doctor.examine(target, "float32", "cpu", 16)
    return {section.title: {line.name: line for line in section.lines} for section in sections}


def test_the_doctor_looks_at_everything(target: str) -> None:
    found = examine(target)
    titles = ["device", "dtypes", "processor", "memory and disk", "telemetry"]
    loaded = ["speed", "T_verify(m) after 16 positions", "one decode step by operator", "the loop's own cost"]
    assert list(found)[:5] == titles and list(found)[6:] == loaded
    assert "used here" in found["dtypes"]["float32"].value
    assert list(found)[5].startswith("telemetry of ") and list(found)[5].endswith("(cpu)")
    assert "process_rss_bytes" in found[list(found)[5]]
    rows = [f"{m} rows" for m in FINE_ROWS]
    assert list(found["T_verify(m) after 16 positions"]) == [*rows, "flat until"]
    floor = float(found["speed"]["floor"].value.split()[0])
    megabytes = re.search(r"(\d+) MB", found["speed"]["target"].value)
    assert megabytes is not None and floor == pytest.approx(float(megabytes[1]), abs=1)


def test_the_loop_is_timed_with_the_suites_own_baseline(target: str) -> None:
    """Whatever its name: it comes from the suite, and the replies go the whole way."""
    found = examine(target)["the loop's own cost"]
    assert list(found) == ["none, K=0 through the speculative path", "bare forward", "the engine's tax"]
    loop, bare = (float(line.value.split()[0]) for line in list(found.values())[:2])
    tax = found["the engine's tax"].value.split()
    assert float(tax[0]) == pytest.approx(loop - bare, abs=2e-3)
    assert tax[4].endswith("%") and float(tax[4][:-1]) / 100 == pytest.approx((loop - bare) / bare, abs=0.01)


def test_without_the_suite_the_loop_is_not_measured(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise UserError(f"suite {name!r} not found")

    monkeypatch.setattr(doctor_decode, "load_suite", missing)
    found = examine(target)["the loop's own cost"]
    assert [(line.name, line.state) for line in found.values()] == [("not measured", "unknown")]


@pytest.mark.usefixtures("torch_only")
def test_operators_of_a_step_fit_a_screen_and_add_up(target: str) -> None:
    found = dict(examine(target)["one decode step by operator"])
    total = float(found.pop("all").value.split()[0])
    assert 3 < len(found) <= doctor_decode.ROWS
    parts = [float(line.value.split()[2]) for line in found.values()]
    assert sum(parts) == pytest.approx(total, abs=0.001 * len(parts))
    assert any("linear" in name or "mm" in name for name in found), "no product among the longest"


@pytest.mark.parametrize(("rest", "said"), [(1.5, "37.5%"), (-0.5, "not known")])
def test_products_of_a_compiled_step_and_what_they_leave(rest: float, said: str) -> None:
    """The products of a step are timed apart, so what they leave may come out below nothing."""
    parts = (Operator("gate_up [8, 4]", 3, 4.0 - rest), Operator(REST, 1, rest))
    first, last, whole = doctor_decode.part_lines(parts, 4.0)
    assert first.value.split() == ["3", "calls", f"{4.0 - rest:.3f}", "ms", f"{(4.0 - rest) / 4:.1%}"]
    assert said in last.value and (last.state == "unknown") == (rest < 0)
    assert whole.value.startswith("4.000 ms a step")


def test_a_compiled_step_lists_its_products(target: str) -> None:
    found = examine(target)["one decode step by operator"]
    assert [name for name in found if name.startswith("gate_up [")] and REST in found and "all" in found


@pytest.mark.parametrize(
    "size, cache, state, said",
    [(8, 2, "ok", "4.0 last-level caches"), (7, 2, "warning", "3.5"), (8, None, "unknown", "not told")],
)
def test_a_bandwidth_says_over_how_many_caches(size: int, cache: int | None, state: str, said: str) -> None:
    line = doctor_load.bandwidth_line(Bandwidth(size, cache, read=12e9, product=15.5e9))
    assert line.value.startswith("15.5 GB/s (read 12.0, product 15.5") and said in line.value
    assert line.state == state and (line.advice is not None) == (state == "warning")


@pytest.mark.needs("gcc")
def test_the_doctor_tells_nvml_field_by_field_and_what_to_do(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_load, "gpus_of", lambda device: (GpuRef("Fake GPU", UUIDS[0], None, MEMORY),))
    monkeypatch.setenv("LD_LIBRARY_PATH", library())
    monkeypatch.setenv("FAKE_REFUSE", "nvmlGpmSampleGet=4,nvmlDeviceGetTemperature=3")
    found = examine(target)
    assert found["telemetry"]["driver"].value == "580.65.06"
    fields = found["telemetry of Fake GPU (gpu)"]
    assert fields["gpu_busy_pct"].state == "ok" and fields["gpu_busy_pct"].value.startswith("10 %")
    assert fields["temperature_c"].state == "unknown" and fields["temperature_c"].advice is None
    assert fields["sm_util_pct"].state == "warning"
    assert fields["sm_util_pct"].advice == doctor_load.ADVICE["no_permission"]


def test_the_doctor_goes_on_without_telemetry(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_load, "open_sampler", lambda request: NullSampler("no process"))
    found = examine(target)
    assert found["telemetry"]["sampler"].value == "no process"
    assert "bandwidth" in found["speed"]


class Broken:
    """A sampler that breaks with something else than its own error."""

    def __init__(self, at: str) -> None:
        self.at, self.software = at, {"driver": "1"}

    def begin(self) -> None:
        if self.at == "begin":
            raise ValueError("broke at begin")

    def end(self) -> Window:
        if self.at == "end":
            raise ValueError("broke at end")
        return Window(1.0, 0.1, (DeviceWindow("CPU", "cpu", None, {"load_1min": Series("", "gauge", "ok")}),))

    def close(self) -> None:
        """Nothing to end."""


@pytest.mark.parametrize(
    "at, said",
    [
        ("begin", "broke at begin"),
        ("end", "broke at end"),
        ("view", "no median for empty data"),
        ("open", "no such device"),
    ],
)
def test_telemetry_that_breaks_is_a_line_and_the_doctor_goes_on(
    target: str, monkeypatch: pytest.MonkeyPatch, at: str, said: str
) -> None:
    def no_device(device: torch.device) -> None:
        raise OSError("no such device")

    if at == "open":
        monkeypatch.setattr(doctor_load, "gpus_of", no_device)
    else:
        monkeypatch.setattr(doctor_load, "open_sampler", lambda request: Broken(at))
    found = examine(target)
    line = found["telemetry"]["sampler"]
    assert said in line.value and line.state == "warning"
    assert "bandwidth" in found["speed"] and "not examined" not in found


def test_a_section_that_breaks_is_a_line_and_a_users_mistake_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(subject: Subject) -> Iterator[Section]:
        yield Section("first", ())
        raise OSError("no such device")

    monkeypatch.setattr(doctor, "providers", lambda: (breaks, doctor_machine.sections))
    found = examine("any")
    assert list(found)[:3] == ["first", "not examined", "device"]
    assert "no such device" in next(iter(found["not examined"].values())).value
    monkeypatch.undo()
    with pytest.raises(UserError):
        list(doctor.examine("no/such/target", "float32", "cpu", 16))


def test_a_context_beyond_the_target_speaks_of_the_doctors_own_flag(target: str) -> None:
    with pytest.raises(UserError, match=r"--context 99999 and the 32 rows .* use at most --context \d+$"):
        list(doctor.examine(target, "float32", "cpu", 99999))


@pytest.mark.parametrize(
    "governor, state, advised", [("performance", "ok", False), ("powersave", "warning", True)]
)
def test_the_governor_is_read(tmp_path: Path, governor: str, state: str, advised: bool) -> None:
    file = tmp_path / "scaling_governor"
    file.write_text(f"{governor}\n")
    line = doctor_machine._governor(file)
    assert (line.value, line.state, line.advice is not None) == (governor, state, advised)
    assert doctor_machine._governor(tmp_path / "none").state == "unknown"


def test_the_view_shows_advice_and_counts_warnings() -> None:
    lines = (Line("a", "fine"), Line("long", "bad", "warning", "mend it"))
    out = io.StringIO()
    doctor_view.show([Section("Title", lines)], Console(file=out, width=80))
    assert out.getvalue() == "Title\n   a     fine\n ! long  bad\n         -> mend it\n1 warnings\n"
