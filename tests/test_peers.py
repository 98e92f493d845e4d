"""Racing other engines: fair settings, what is counted, and that nothing that differs is hidden."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
import torch

from tiny import tiny_model, tiny_target

BENCH = Path(__file__).resolve().parents[1] / "harness" / "bench"
MODULES = ("contest", "contenders", "vllm_peer", "peers")

FAKE_VLLM = """
print("a log line where the answers go")
__version__ = "0.0-fake"

class SamplingParams:
    def __init__(self, **settings):
        self.settings = settings

class LLM:
    def __init__(self, **settings):
        assert settings["enable_prefix_caching"] is False, settings
        if settings["model"] == "broken":
            raise RuntimeError("no such model")
        self.dtype = settings["dtype"]

    def generate(self, prompts, sampling, use_tqdm):
        print("another one")
        (prompt,), given = prompts, sampling.settings
        if prompt["prompt_token_ids"] == [0]:
            raise SystemExit("it gave up")
        assert given["temperature"] == 0.0 and not given["detokenize"]
        ids = (prompt["prompt_token_ids"] + given["stop_token_ids"])[: given["max_tokens"]]
        output = type("Output", (), {"token_ids": ids})
        return [type("Reply", (), {"outputs": [output]})]
"""


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The scripts, imported as they import each other."""
    monkeypatch.syspath_prepend(str(BENCH))
    yield {name: importlib.import_module(name) for name in MODULES}
    for name in MODULES:
        sys.modules.pop(name)


def ids(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


def test_transformers_drafts_as_many_tokens_as_ours(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """K in every round, however unsure the assistant is and whatever was accepted."""
    target, assistant = tiny_model(seed=0), tiny_model(seed=1)
    assistant.generation_config.num_assistant_tokens_schedule = "heuristic"
    drafted: list[int] = []
    generate = assistant.generate

    def watched(**given: Any) -> Any:
        out = generate(**given)
        drafted.append(out.sequences.shape[1] - given["input_ids"].shape[1])
        return out

    monkeypatch.setattr(assistant, "generate", watched)
    bench["contenders"].constant_drafts(assistant, 3)
    answer = bench["contenders"].theirs(target, 12, assistant_model=assistant)(ids(1, 2, 3, 4))
    assert len(answer.ids) == 12 and set(drafted[:-3]) == {3}
    assert len(drafted) == answer.forwards, (
        "one for each forward, but for the last, which has no room for one"
    )
    plain = bench["contenders"].theirs(target, 12)(ids(1, 2, 3, 4))
    assert plain.ids == answer.ids and plain.emitted == plain.forwards == 11


def test_the_same_draft_weights_accept_the_same_in_both_loops(bench: Any, tmp_path: Path) -> None:
    """Ours drafts after the prefill, transformers before it: from there on the rounds are alike."""
    contenders = bench["contenders"]
    assistant = tiny_model(seed=0)
    with torch.no_grad():
        for parameter in assistant.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.03)
    assistant.save_pretrained(tmp_path)
    target, prompt = tiny_target(seed=0), ids(1, 2, 3, 4)
    own = contenders.ours(target, "draft_model", 24, model=str(tmp_path), num_speculative_tokens=3)(prompt)
    contenders.constant_drafts(assistant, 3)
    other = contenders.theirs(tiny_model(seed=0), 24, assistant_model=assistant)(prompt)
    assert own.ids == other.ids
    assert own.emitted == 23 and abs(own.forwards - other.forwards) <= 2
    assert own.emitted / own.forwards > 1 < other.emitted / other.forwards


def test_transformers_runs_in_our_dtype_and_attention(bench: Any, tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    like = tiny_target()
    model = bench["contenders"].transformers_model(str(tmp_path), like)
    assert model.dtype == like.dtype and model.device == like.device and not model.training
    assert model.config._attn_implementation == "sdpa"


def scripted(bench: Any, replies: dict[int, tuple[int, ...]], wall_ms: float, **told: Any) -> Any:
    return lambda prompt: bench["contest"].Answer(replies[int(prompt[0])], wall_ms, **told)


def held(bench: Any, **contenders: Any) -> Any:
    return bench["contest"].contest("a contest", contenders, [ids(0), ids(1)], 2)


def test_ratios_are_above_1_where_ours_is_faster(bench: Any) -> None:
    found = held(
        bench,
        ours=scripted(bench, {0: (1, 2), 1: (3, 4)}, 10.0, decode_ms=4.0, emitted=1, forwards=1),
        theirs=scripted(bench, {0: (1, 2), 1: (3, 4)}, 20.0),
    )
    ours, theirs = found.standings
    assert ours.paces == (5.0, 5.0) and theirs.paces == (10.0, 10.0)
    assert ours.decode_paces == (4.0, 4.0) and theirs.decode_paces is None
    assert ours.acceptance_length == 1.0 and theirs.acceptance_length is None
    assert found.ratio("theirs", "ours") == 2.0
    table = found.lines()
    assert table[0] == "a contest: 2 of 2 prompts, 4 tokens, 2 repeats"
    assert table[2].split() == ["ours", "200.0", "5.0", "5.0", "to", "5.0", "1.00", "1.00"]
    assert table[3].split() == ["theirs", "100.0", "10.0", "10.0", "to", "10.0", "-", "2.00"]


def test_a_prompt_to_which_replies_differ_has_no_figure(bench: Any) -> None:
    """The longer reply would have a better pace: its prefill is spread over more tokens."""
    ours = scripted(bench, {0: (1, 2), 1: (3, 4)}, 10.0, decode_ms=4.0, emitted=1, forwards=1)
    found = held(bench, ours=ours, theirs=scripted(bench, {0: (1, 2), 1: (3, 4, 5, 6)}, 30.0))
    assert [one.paces for one in found.standings] == [(5.0, 5.0), (15.0, 15.0)]
    assert found.ratio("theirs", "ours") == 3.0
    assert found.lines()[0] == "a contest: 1 of 2 prompts, 2 tokens, 2 repeats"
    none = held(bench, ours=ours, theirs=scripted(bench, {0: (1, 9), 1: (3, 9)}, 30.0))
    assert none.ratio("theirs", "ours") is None
    assert none.lines()[2].endswith("no prompt on which the replies agree")


def test_a_checkpoint_that_asks_for_penalties_gets_none_of_them(bench: Any, tmp_path: Path) -> None:
    model = tiny_model()
    model.generation_config.repetition_penalty, model.generation_config.eos_token_id = 1.5, 7
    model.save_pretrained(tmp_path)
    found = bench["contenders"].transformers_model(str(tmp_path), tiny_target()).generation_config
    assert found.eos_token_id == 7 and found.repetition_penalty in (None, 1.0)


def test_without_a_floor_there_is_no_share(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    peers, target = bench["peers"], tiny_target()
    quick = peers.Bandwidth(1000, 1000, 1e9, 2e9)
    assert peers.floor_of(target, quick) is None
    assert "free memory for" in capsys.readouterr().out
    enough = peers.Bandwidth(4000, 1000, 1e9, 2e9)
    assert peers.floor_of(target, enough) == target.token_bytes / 2e9 * 1e3
    chat = a_contest(bench, {peers.OURS: 10.0, peers.GENERATE: 18.0})
    copy = a_contest(bench, {peers.OURS: 10.0, peers.SAME_RULE: 15.0, peers.LOOKUP: 30.0})
    assert peers.result(chat, copy, None, None, None)["baseline_share_of_floor"] is None


def test_a_reply_that_differs_is_named_once_with_its_place(bench: Any) -> None:
    found = held(
        bench,
        ours=scripted(bench, {0: (1, 2, 3), 1: (4, 5, 6)}, 1.0),
        same=scripted(bench, {0: (1, 2, 3), 1: (4, 5, 6)}, 1.0),
        other=scripted(bench, {0: (1, 9, 3), 1: (4, 5)}, 1.0),
    )
    difference = bench["contest"].Difference
    assert set(found.differences) == {difference("other", 0, 1), difference("other", 1, 2)}
    assert sum("differs: other, prompt" in line for line in found.lines()) == 2


KEYS = {
    "baseline_vs_transformers",
    "ngram_copy_vs_prompt_lookup",
    "ngram_copy_same_rule_vs_prompt_lookup",
    "assisted_vs_transformers",
    "baseline_share_of_floor",
    "baseline_vs_vllm_cpu",
    "differing_replies",
}


def a_contest(bench: Any, paces: dict[str, float]) -> Any:
    contest = bench["contest"]
    standings = tuple(contest.Standing(name, (ms,), (ms / 2,), None) for name, ms in paces.items())
    return contest.Contest("", standings, (contest.Difference("x", 0, 0),))


def test_the_last_line_has_every_key_and_null_where_nobody_raced(bench: Any) -> None:
    peers = bench["peers"]
    chat = a_contest(bench, {peers.OURS: 10.0, peers.GENERATE: 18.0})
    copy = a_contest(bench, {peers.OURS: 10.0, peers.SAME_RULE: 15.0, peers.LOOKUP: 30.0})
    alone = peers.result(chat, copy, None, None, floor_ms=3.0)
    assert set(alone) == KEYS and json.loads(json.dumps(alone)) == alone
    assert alone["assisted_vs_transformers"] is alone["baseline_vs_vllm_cpu"] is None
    assert (alone["baseline_vs_transformers"], alone["ngram_copy_vs_prompt_lookup"]) == (1.8, 3.0)
    assert (alone["ngram_copy_same_rule_vs_prompt_lookup"], alone["differing_replies"]) == (2.0, 2)
    assert alone["baseline_share_of_floor"] == 0.6, "the floor is held against decoding, prefill apart"
    assisted = a_contest(bench, {peers.OURS: 10.0, peers.ASSISTED: 16.0})
    served = a_contest(bench, {peers.OURS: 10.0, peers.VLLM: 9.0})
    all_of_it = peers.result(chat, copy, assisted, served, floor_ms=3.0)
    assert (all_of_it["assisted_vs_transformers"], all_of_it["baseline_vs_vllm_cpu"]) == (1.6, 0.9)


def test_without_vllm_or_draft_weights_there_is_no_contest_and_a_line(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DRAFTBOARD_VLLM", raising=False)
    peers = bench["peers"]
    field = peers.Field(tiny_target(), None, peers.options([]))
    assert peers.race_vllm(field) is None and peers.race_assisted(field) is None
    said = capsys.readouterr().out
    assert "no vLLM on the CPU: name the Python of its environment with --vllm" in said
    assert "no assisted generation: no shipped weights of 'draft_model'" in said
    monkeypatch.setenv("DRAFTBOARD_VLLM", "/env/bin/python")
    assert peers.options([]).vllm == "/env/bin/python"


def test_vllm_gets_our_threads_and_what_the_user_set(bench: Any) -> None:
    found = bench["vllm_peer"].environment(2, {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "4"})
    assert (found["OMP_NUM_THREADS"], found["VLLM_CPU_KVCACHE_SPACE"]) == ("2", "4")
    assert found["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


@pytest.fixture
def fake_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm.py").write_text(FAKE_VLLM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("fake_vllm")
def test_vllm_answers_through_its_pipe_whatever_it_logs(bench: Any) -> None:
    with bench["vllm_peer"].vllm(sys.executable, "m", "float32", 64, 3, frozenset({9})) as (version, answer):
        assert version == "0.0-fake"
        found = [answer(ids(5, 6, 7, 8)), answer(ids(5))]
    assert [one.ids for one in found] == [(5, 6, 7), (5, 9)]
    assert all(one.wall_ms > 0 and one.forwards is None for one in found)


@pytest.mark.usefixtures("fake_vllm")
def test_vllm_stands_still_while_others_answer(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*given: Any, **named: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*given, **named))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    with bench["vllm_peer"].vllm(sys.executable, "m", "float32", 64, 3, frozenset({9})) as (_, answer):
        for _ in range(2):
            assert _stopped(started[0].pid)
            answer(ids(5))
        assert _stopped(started[0].pid)
    assert started[0].wait(10) == -signal.SIGKILL


def _stopped(pid: int) -> bool:
    """Whether the process is stopped within five seconds."""
    process, ends = psutil.Process(pid), time.monotonic() + 5
    while process.status() != psutil.STATUS_STOPPED and time.monotonic() < ends:
        time.sleep(0.01)
    return bool(process.status() == psutil.STATUS_STOPPED)


@pytest.mark.usefixtures("fake_vllm")
@pytest.mark.parametrize(
    "python, model, said",
    [
        (sys.executable, "broken", "code 1 .*RuntimeError: no such model"),
        (sys.executable, "m", "code 1 .*it gave up"),
        ("/no/such/python", "m", "No such file"),
    ],
)
def test_a_vllm_that_cannot_be_had_is_told_with_its_last_word(
    bench: Any, python: str, model: str, said: str
) -> None:
    peer = bench["vllm_peer"]
    with (
        pytest.raises(peer.NoVllm, match=said),
        peer.vllm(python, model, "float32", 64, 3, frozenset({9})) as (_, answer),
    ):
        answer(ids(0))
