"""vLLM behind a pipe: run by the Python of vLLM's own environment, with nothing of this project installed.

The one argument is JSON: `model` (a folder or hub id), `dtype`, `max_model_len`. Then, a line of JSON each:
to standard input `{"ids": [...], "max_new_tokens": n, "stop_ids": [...]}`, and from standard output
`{"ids": [...], "wall_ms": t}`, the first line being `{"vllm": version}` once the model is loaded. Prefixes
are not cached, so that a repeated prompt is computed again.
"""

import ctypes
import json
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Answers until standard input ends."""
    if sys.platform == "linux":  # it stands still while others answer, and would outlive a killed parent
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM's log goes to standard output, which here belongs to the answers

    import vllm

    settings = json.loads(sys.argv[1])
    engine = vllm.LLM(
        **settings, skip_tokenizer_init=True, max_num_seqs=1, enable_prefix_caching=False, seed=0
    )
    print(json.dumps({"vllm": vllm.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(vllm, engine, json.loads(line))), file=answers, flush=True)


def answer(vllm, engine, asked):
    """One greedy reply and the milliseconds that it took."""
    sampling = vllm.SamplingParams(
        temperature=0.0,
        max_tokens=asked["max_new_tokens"],
        stop_token_ids=asked["stop_ids"],
        detokenize=False,
    )
    prompt = {"prompt_token_ids": asked["ids"]}
    began = time.perf_counter()
    (reply,) = engine.generate([prompt], sampling, use_tqdm=False)
    wall_ms = (time.perf_counter() - began) * 1e3
    return {"ids": list(reply.outputs[0].token_ids), "wall_ms": wall_ms}


if __name__ == "__main__":
    main()
