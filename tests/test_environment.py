"""What a record says of its machine: true where it can be read, None where not, comparable by fingerprint."""

from __future__ import annotations

import dataclasses
import getpass
import platform
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from draftboard.record import environment as under_test
from draftboard.record.codec import from_json, to_json
from draftboard.record.environment import fingerprint, read_checkout, read_cpu, read_environment, read_gpu
from draftboard.record.environment import testbed as name_testbed
from draftboard.record.records import Environment

X86 = (
    "processor : 0\nmodel name : AMD EPYC 9654 96-Core\nflags : sse avx2 avx512_bf16 amx_tile fma f16c smep\n"
)
ARM = "processor : 0\nFeatures : fp asimd asimdhp sve2 bf16 aes\nprocessor : 1\nFeatures : fp\n"

EXAMPLE = Environment(
    device="Intel(R) Xeon(R) Platinum 8481C",
    device_type="cpu",
    device_count=1,
    cpu="Intel(R) Xeon(R) Platinum 8481C",
    cpu_cores=8,
    cpu_flags=("avx2",),
    threads=4,
    memory_bytes=2**34,
    os="Linux 6.1 x86_64",
    python="3.11.7",
    torch="2.13.0",
    transformers="5.24.0",
    numpy="2.4.6",
    driver=None,
    cuda=None,
    power_limit_w=None,
    draftboard="0.1.0",
    git_sha="0" * 40,
    git_dirty=False,
)


def changed(**fields: Any) -> str:
    return fingerprint(dataclasses.replace(EXAMPLE, **fields), "float32")


def test_the_environment_of_this_machine_is_a_record_and_names_no_one() -> None:
    here = read_environment("Some CPU", "cpu", 1, 2, None)
    assert from_json(Environment, to_json(here)) == here
    assert (here.device, here.threads, here.cuda, here.driver) == ("Some CPU", 2, None, None)
    assert here.cpu
    assert here.cpu_cores >= 1
    assert here.memory_bytes > 2**28
    told = f"{to_json(here)} {name_testbed(here, 'float32')}"
    for private in (socket.gethostname(), getpass.getuser(), str(Path.home())):
        assert not re.search(rf"(?<!\w){re.escape(private)}(?!\w)", told)


def test_reading_it_does_not_load_torch() -> None:
    code = (
        "import sys; from draftboard.record.environment import read_environment as read; "
        "read('x', 'cpu', 1, 1, None); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    "field, value",
    [
        ("device", "Other CPU"),
        ("device_type", "cuda"),
        ("device_count", 2),
        ("cpu_cores", 9),
        ("cpu_flags", ("avx2", "avx512f")),
        ("threads", 5),
        ("torch", "2.13.0+cpu"),
        ("transformers", "5.25.0"),
        ("numpy", "2.5.0"),
        ("driver", "580.1"),
        ("cuda", "13.0"),
        ("power_limit_w", 350.0),
    ],
)
def test_what_decides_speed_changes_the_fingerprint(field: str, value: object) -> None:
    assert changed(**{field: value}) != changed()


@pytest.mark.parametrize(
    "field, value",
    [("git_sha", "1" * 40), ("git_dirty", True), ("draftboard", "9.9"), ("memory_bytes", 2**34 - 4096)],
)
def test_our_own_commit_and_the_rest_do_not(field: str, value: object) -> None:
    assert changed(**{field: value}) == changed()


def test_the_fingerprint_is_twelve_hex_digits_and_knows_the_dtype() -> None:
    assert re.fullmatch(r"[0-9a-f]{12}", changed())
    assert fingerprint(EXAMPLE, "bfloat16") != fingerprint(EXAMPLE, "float32")


def test_the_testbed_is_a_readable_folder_name() -> None:
    cpu = name_testbed(EXAMPLE, "float32")
    assert cpu == f"intel-xeon-platinum-8481c-4t-float32-{fingerprint(EXAMPLE, 'float32')[:8]}"
    gpu = dataclasses.replace(EXAMPLE, device="NVIDIA H200", device_type="cuda", device_count=2)
    assert name_testbed(gpu, "bfloat16").startswith("nvidia-h200-2x-bfloat16-")
    odd = name_testbed(dataclasses.replace(EXAMPLE, device="../../x y/" + "z" * 99), "float32")
    assert re.fullmatch(r"x-y-z{36}-4t-float32-[0-9a-f]{8}", odd)


@pytest.mark.parametrize(
    "text, expected_name, flags",
    [
        (X86, "AMD EPYC 9654 96-Core", ("amx_tile", "avx2", "avx512_bf16", "f16c", "fma")),
        (ARM, "fallback", ("asimd", "asimdhp", "bf16", "sve2")),
        ("", "fallback", ()),
    ],
)
def test_cpu_name_and_the_flags_that_matter(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    expected_name: str,
    flags: tuple[str, ...],
) -> None:
    monkeypatch.setattr(under_test, "_cpu_name_elsewhere", lambda: "fallback")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(text)
    assert read_cpu(cpuinfo) == (expected_name, flags)


def test_without_cpuinfo_the_operating_system_names_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(under_test, "_output", lambda *command: "Apple M4" if "sysctl" in command else None)
    assert read_cpu(tmp_path / "none") == ("Apple M4", ())


@pytest.fixture
def git(tmp_path: Path) -> Callable[..., str]:
    """Runs git in a fresh repository with one committed file, harness/code.py."""

    def run(*args: str) -> str:
        who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        command = ["git", "-C", str(tmp_path), *who, *args]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "code.py").write_text("a = 1\n")
    run("init", "-q")
    run("add", ".")
    run("commit", "-q", "-m", "first")
    return run


@pytest.mark.needs("git")
def test_the_checkout_is_clean_until_code_or_prompts_change(git: Callable[..., str], tmp_path: Path) -> None:
    code = tmp_path / "harness" / "code.py"
    assert read_checkout(code) == (git("rev-parse", "HEAD"), False)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "run.json").write_text("{}")
    assert read_checkout(code)[1] is False
    (tmp_path / "harness" / "new.py").write_text("")
    assert read_checkout(code)[1] is True


@pytest.mark.needs("git")
def test_an_installed_copy_is_not_part_of_the_repository_around_it(
    git: Callable[..., str], tmp_path: Path
) -> None:
    installed = tmp_path / ".venv" / "environment.py"
    installed.parent.mkdir()
    installed.write_text("")
    assert read_checkout(installed) == (None, None)


def test_outside_git_or_without_git_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_checkout(tmp_path / "file.py") == (None, None)
    monkeypatch.setenv("PATH", "")
    assert read_checkout(Path(under_test.__file__)) == (None, None)


def fake_nvml(names_and_limits: list[tuple[str | bytes, int]], **broken: Any) -> ModuleType:
    nvml: Any = ModuleType("pynvml")
    nvml.calls = []
    nvml.nvmlInit = lambda: nvml.calls.append("init")
    nvml.nvmlShutdown = lambda: nvml.calls.append("shutdown")
    nvml.nvmlSystemGetDriverVersion = lambda: "580.65.06"
    nvml.nvmlDeviceGetCount = lambda: len(names_and_limits)
    nvml.nvmlDeviceGetHandleByIndex = lambda i: SimpleNamespace(name=names_and_limits[i][0], i=i)
    nvml.nvmlDeviceGetName = lambda gpu: gpu.name
    nvml.nvmlDeviceGetEnforcedPowerLimit = lambda gpu: names_and_limits[gpu.i][1]
    vars(nvml).update(broken)
    return nvml  # type: ignore[no-any-return]


REFUSED = "RuntimeError: not supported"


def refuse(*_: object) -> None:
    raise RuntimeError("not supported")


@pytest.mark.parametrize(
    "gpus, broken, expected",
    [
        ([("Other", 1), (b"NVIDIA H200", 700000)], {}, ("580.65.06", 700.0, None)),
        ([("NVIDIA H200", 700000), ("NVIDIA H200", 500000)], {}, ("580.65.06", None, None)),
        ([("NVIDIA H200", 0)], {"nvmlDeviceGetEnforcedPowerLimit": refuse}, ("580.65.06", None, REFUSED)),
        ([], {"nvmlInit": refuse}, (None, None, REFUSED)),
    ],
)
def test_the_driver_answers_or_nothing_is_known(
    monkeypatch: pytest.MonkeyPatch, gpus: Any, broken: dict[str, Any], expected: object
) -> None:
    nvml = fake_nvml(gpus, **broken)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert read_gpu("NVIDIA H200") == expected
    assert nvml.calls in (["init", "shutdown"], [])


def test_a_driver_that_does_not_answer_is_given_up_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml([], nvmlInit=let_go.wait))
    found = read_gpu("NVIDIA H200", limit_s=0.05)
    let_go.set()
    assert found == (None, None, "the driver did not answer within 0.05 s")


def test_another_module_called_pynvml_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", ModuleType("pynvml"))
    found = read_environment("NVIDIA H200", "cuda", 1, 1, "13.0")
    assert found.driver is None and "nvmlInit" in (found.driver_missing or "")
