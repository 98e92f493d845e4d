"""The two loops that `peers.py` races: ours with any drafter, and transformers' generate with any option."""

from __future__ import annotations

from typing import Any

import torch
from contest import Answer, Contender
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation import BaseStreamer

from draftboard.measure import plugins
from draftboard.measure.clock import Clock
from draftboard.measure.decode import decode
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.measure.target import TargetModel
from draftboard.record.records import Sampling


def ours(target: TargetModel, drafter: str, tokens: int, **options: Any) -> Contender:
    """Our loop with a drafter."""
    sampler = Sampler(Sampling(), Randomness(0, target.device))
    module = plugins.load(drafter, "draftboard_drafters")
    with torch.inference_mode():
        built = module.build(target, sampler, **options)
    clock = Clock(target.device)

    def answer(ids: torch.Tensor) -> Answer:
        reply = decode(target, built, ids, sampler, clock, max_new_tokens=tokens)
        emitted, rounds = sum(reply.rounds.emitted), len(reply.rounds)
        return Answer(reply.token_ids, reply.wall_ms, reply.decode_ms, emitted, rounds)

    return answer


class Rounds(BaseStreamer):  # type: ignore[misc]
    """Is handed the prompt, and after each forward of the target the tokens that came out of it.

    `emitted` are their numbers, the prompt's first.
    """

    def __init__(self) -> None:
        self.emitted: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        """Counts."""
        self.emitted.append(value.numel())

    def end(self) -> None:
        """Nothing is held back."""


def theirs(model: Any, tokens: int, **options: Any) -> Contender:
    """transformers' generate, greedy. As with ours, the forward over the prompt is no round."""
    clock = Clock(model.device)

    def answer(ids: torch.Tensor) -> Answer:
        rounds = Rounds()
        began = clock.now_ms()
        with torch.inference_mode():
            text = model.generate(
                ids[None],
                attention_mask=torch.ones_like(ids[None]),
                max_new_tokens=tokens,
                do_sample=False,
                streamer=rounds,
                **options,
            )
        reply, wall_ms = tuple(text[0, len(ids) :].tolist()), clock.now_ms() - began
        _, _, *later = rounds.emitted
        return Answer(reply, wall_ms, emitted=sum(later), forwards=len(later))

    return answer


def constant_drafts(assistant: Any, k: int) -> Any:
    """The assistant drafting k tokens in every round, as our draft model does.

    transformers reads this from the assistant's own settings, not from what `generate` is given. Its default
    would end a draft early where the assistant's confidence falls below 0.4.
    """
    settings = assistant.generation_config
    settings.num_assistant_tokens = k
    settings.num_assistant_tokens_schedule = "constant"
    settings.assistant_confidence_threshold = 0.0
    return assistant


def transformers_model(source: str, like: TargetModel) -> Any:
    """A model as transformers runs it, on the target's device and in its dtype. Of what the checkpoint would
    have `generate` do only the ends of a reply stay: a penalty on repetition, for instance, is work and other
    text that our loop does not have."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=like.dtype, attn_implementation="sdpa")
    told = model.generation_config
    model.generation_config = GenerationConfig(
        **{name: getattr(told, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    )
    return model.to(like.device).eval()
