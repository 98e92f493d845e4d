"""vLLM on the CPU as a contender: a process of its own, with the same weights, ids, dtype and threads.

It only runs while it answers: its threads keep a core busy while they wait, and the others' turns would pay.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from contest import Answer, Contender

WORKER = Path(__file__).with_name("vllm_worker.py")
START_SECONDS = 900
"""vLLM compiles its kernels on the first start."""


class NoVllm(Exception):
    """vLLM is not here, or its process ended; the message says what it said last."""


def environment(threads: int, given: Mapping[str, str]) -> dict[str, str]:
    """What the process runs under: as many threads as ours, no more bound to cores than ours are.

    By default vLLM keeps a core to itself, and on two cores would compute on one. What the user set wins,
    save for the number of threads.
    """
    fair = {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    return {**fair, **given, "OMP_NUM_THREADS": str(threads)}


@contextmanager
def vllm(
    python: str, model: str, dtype: str, max_context: int, tokens: int, stop_ids: frozenset[int]
) -> Iterator[tuple[str, Contender]]:
    """vLLM's version and the contender, ready to answer; the process ends with the block.

    Raises NoVllm where it cannot be started or ends before it answered.
    """
    settings = {"model": model, "dtype": dtype, "max_model_len": max_context}
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        try:
            process = subprocess.Popen(
                [python, str(WORKER), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,  # nothing is left to be flushed into a pipe that broke
                process_group=0,  # stopped and continued as one
                env=environment(torch.get_num_threads(), os.environ),
            )
        except OSError as error:
            raise NoVllm(f"{python}: {error}") from error
        with process:
            late = threading.Timer(START_SECONDS, process.kill)
            late.start()
            try:
                version = _reply(process, log)["vllm"]
                late.cancel()
                os.killpg(process.pid, signal.SIGSTOP)
                yield version, _contender(process, log, tokens, stop_ids)
            finally:
                late.cancel()
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


def _contender(
    process: subprocess.Popen[bytes], log: Any, tokens: int, stop_ids: frozenset[int]
) -> Contender:
    def answer(ids: torch.Tensor) -> Answer:
        asked = {"ids": ids.tolist(), "max_new_tokens": tokens, "stop_ids": sorted(stop_ids)}
        assert process.stdin is not None
        os.killpg(process.pid, signal.SIGCONT)
        with suppress(BrokenPipeError):  # it ended; what it said last is told below
            process.stdin.write(json.dumps(asked).encode() + b"\n")
        told = _reply(process, log)
        os.killpg(process.pid, signal.SIGSTOP)
        return Answer(tuple(told["ids"]), told["wall_ms"])

    return answer


def _reply(process: subprocess.Popen[bytes], log: Any) -> dict[str, Any]:
    assert process.stdout is not None
    if line := process.stdout.readline():
        found: dict[str, Any] = json.loads(line)
        return found
    process.wait()
    log.seek(0)
    said = [line.strip() for line in log if line.strip()] or ["nothing"]
    raise NoVllm(f"its process ended with code {process.returncode} and said last: {said[-1][:200]}")
