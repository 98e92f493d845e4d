"""Choosing tokens: settings and their edges, seeds, and the published cases of the acceptance rule."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import enumeration as en
from draftboard.drafter import Draft
from draftboard.measure.sampling import Randomness, Sampler, likeliest
from draftboard.record.records import Sampling

CPU = torch.device("cpu")
ONE = Sampling(temperature=1.0)
LARGEST = 1 - 2.0**-53
"""The largest uniform number there is."""
CASES = json.loads((Path(__file__).parent / "data/golden/rejection/expected.json").read_text())["cases"]
golden = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']}-{case['kind']}")


def sampler(settings: Sampling = ONE, seed: int = 0) -> Sampler:
    return Sampler(settings, Randomness(seed, CPU))


def scripted(*numbers: float, settings: Sampling = ONE) -> Sampler:
    return Sampler(settings, en.Script(numbers))


def law_of(case: dict[str, Any], first: int, last: int, drafted: list[int]) -> en.Law:
    """What the sampler emits for the rows first..last of a case and some drafts in place of the case's."""
    p, q = np.array(case["p"])[first : last + 1], np.array(case["q"])[first:last]
    certain = bool((q.max(axis=1) == 1).all())
    draft = Draft(torch.tensor(drafted), None if certain else torch.tensor(q, dtype=torch.float32))
    logits = torch.tensor(p).log().float()
    return en.verdict_law(sampler(), logits, draft, en.round_cells(p, q, drafted))


def split(joint: list[list[float]]) -> en.Law:
    """A table of the first two tokens as a law; its last column means that there was one token only."""
    return {
        (a, b)[: 1 if b == len(row) - 1 else 2]: x for a, row in enumerate(joint) for b, x in enumerate(row)
    }


@golden
def test_golden_law_given_the_drafts(case: dict[str, Any]) -> None:
    law = law_of(case, 0, case["K"], case["drafted"])
    counts = en.mixed((x, {(len(tokens) - 1,): 1.0}) for tokens, x in law.items())
    assert en.distance(counts, {(n,): x for n, x in enumerate(case["accepted_count_given_drafts"])}) < 1e-6
    firsts = {(token,): x for token, x in enumerate(case["first_token_given_drafts"])}
    assert en.distance(en.leading(law, 1), firsts) < 1e-6
    assert en.distance(en.leading(law, 2), split(case["joint_first_two_given_drafts"])) < 1e-6


@golden
def test_golden_law_over_drawn_drafts(case: dict[str, Any]) -> None:
    # The first two tokens depend on the first two guesses only.
    count, q = min(2, case["K"]), case["q"]
    drafts = [d for d in product(range(case["vocab_size"]), repeat=count) if en.likelihood(q[:count], d) > 0]
    law = en.mixed((en.likelihood(q[:count], d), law_of(case, 0, count, list(d))) for d in drafts)
    firsts = {(token,): x for token, x in enumerate(case["first_token_marginal"])}
    assert en.distance(en.leading(law, 1), firsts) < 1e-6
    assert en.distance(firsts, {(token,): x for token, x in enumerate(case["p"][0])}) < 1e-6
    assert en.distance(en.leading(law, 2), split(case["joint_first_two_marginal"])) < 1e-6


@golden
def test_golden_law_of_each_guess(case: dict[str, Any]) -> None:
    for i, (token, keep, residual) in enumerate(
        zip(case["drafted"], case["accept_prob"], case["residual"], strict=True)
    ):
        law = law_of(case, i, i + 1, [token])
        kept = sum(x for tokens, x in law.items() if len(tokens) == 2)
        assert kept == pytest.approx(keep, abs=1e-6)
        replaced = {tokens: x for tokens, x in law.items() if len(tokens) == 1}
        assert en.distance(replaced, {(t,): x * (1 - keep) for t, x in enumerate(residual)}) < 1e-6


def test_golden_covers_both_kinds_of_proposals() -> None:
    certain = [case for case in CASES if case["kind"] == "one_hot_q"]
    assert len(CASES) == 40
    assert 0 < len(certain) < 40


def verify(logits: Tensor, guesses: list[int], settings: Sampling = ONE) -> tuple[list[int], int]:
    verdict = sampler(settings).verify(logits, Draft(torch.tensor(guesses, dtype=torch.int64)))
    assert verdict.ids == verdict.tokens.tolist()
    return verdict.tokens.tolist(), verdict.hits


def one_hot(*tokens: int) -> Tensor:
    return torch.eye(6)[list(tokens)] * 50


@pytest.mark.parametrize("settings", [Sampling(), ONE], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("guesses", "tokens"),
    [
        ([], [1]),
        ([1], [1, 2]),
        ([5], [1]),
        ([1, 5, 3, 4], [1, 2]),
        ([5, 2, 3, 4], [1]),
        ([1, 2, 3, 4], [1, 2, 3, 4, 0]),
    ],
)
def test_hits_end_at_the_first_miss(settings: Sampling, guesses: list[int], tokens: list[int]) -> None:
    logits = one_hot(1, 2, 3, 4, 0)[: len(guesses) + 1]
    assert verify(logits, guesses, settings) == (tokens, len(tokens) - 1)


def test_greedy_asks_for_no_random_number_and_ignores_the_drafters_law() -> None:
    logits = torch.tensor([0.3, 0.5, 0.2]).log().repeat(2, 1)
    for guess, tokens in [(0, [1]), (1, [1, 1]), (2, [1])]:
        draft = Draft(torch.tensor([guess]), torch.tensor([[0.2, 0.5, 0.3]]))
        assert scripted(settings=Sampling()).verify(logits, draft).tokens.tolist() == tokens
    assert scripted(settings=Sampling()).draw(logits)[1] is None


def test_a_guess_outside_the_targets_support_is_never_kept() -> None:
    logits = torch.tensor([[0.5, 0.5, 0.0]]).log().repeat(2, 1)
    draft = Draft(torch.tensor([2]), torch.tensor([[0.0, 0.0, 1.0]]))
    assert scripted(0.0, 0.75).verify(logits, draft).tokens.tolist() == [1]


def test_a_certain_guess_is_a_draw_from_a_point_mass() -> None:
    logits = torch.randn(3, 6)
    tokens = torch.tensor([4, 2])
    for numbers in torch.rand(200, 3, dtype=torch.float64).tolist():
        certain = scripted(*numbers).verify(logits, Draft(tokens))
        drawn = scripted(*numbers).verify(logits, Draft(tokens, torch.eye(6)[tokens]))
        assert certain.tokens.tolist() == drawn.tokens.tolist()


@pytest.mark.parametrize("number", [0.0, 0.5, LARGEST])
def test_no_number_draws_a_token_without_probability(number: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        logits = torch.randn(1, 40, generator=generator) * 3
        keep = torch.randint(2, 38, (1,), generator=generator)
        logits[:, keep:] = logits[:, 0] = -torch.inf
        token, probs = scripted(number).draw(logits)
        assert probs is not None
        assert probs[0, token] > 0


def probabilities(logits: list[float], **settings: Any) -> Tensor:
    return sampler(Sampling(**{"temperature": 1.0, **settings})).probabilities(torch.tensor([logits]))[0]


def test_top_k_keeps_everything_that_ties_with_the_last_kept() -> None:
    probs = probabilities([2.0, 1.0, 1.0, 0.0], top_k=2)
    assert probs[3] == 0
    assert probs[1] == probs[2] > 0
    assert torch.equal(probabilities([2.0, 1.0, 0.5], top_k=1), torch.tensor([1.0, 0.0, 0.0]))


def test_top_k_past_the_vocabulary_changes_nothing() -> None:
    assert torch.equal(probabilities([2.0, 1.0, 0.5], top_k=50), probabilities([2.0, 1.0, 0.5]))


def test_top_p_of_one_changes_nothing() -> None:
    logits = [30.0, 0.0, -20.0, -60.0, 29.0] + [-5.0] * 1000
    assert torch.equal(probabilities(logits, top_p=1.0), probabilities(logits))
    assert (probabilities(logits, top_p=1.0) > 0).all()


def test_top_p_keeps_the_token_that_reaches_it_and_always_the_likeliest() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().tolist()
    assert probabilities(logits, top_p=0.79).tolist() == pytest.approx([0.625, 0.375, 0, 0])
    assert probabilities(logits, top_p=0.81).tolist() == pytest.approx([50 / 95, 30 / 95, 15 / 95, 0])
    assert probabilities(logits, top_p=1e-9).tolist() == [1, 0, 0, 0]
    assert probabilities([3.0, 3.0], top_p=0.5).count_nonzero() == 1


@pytest.mark.parametrize("temperature", [1e-3, 1e-8, 1e-36])
def test_a_tiny_temperature_is_the_argmax_and_never_nan(temperature: float) -> None:
    logits = [88.0, -700.0, 88.5, 3e4, 2.9e4, -torch.inf]
    assert probabilities(logits, temperature=temperature).tolist() == [0, 0, 0, 1, 0, 0]


def test_half_precision_logits_are_weighed_in_float32() -> None:
    logits = torch.tensor([[5.0, 4.0, 3.0]], dtype=torch.bfloat16)
    assert sampler().probabilities(logits).dtype is torch.float32
    assert sampler().probabilities(logits)[0].tolist() == pytest.approx(en.warped(logits[0], ONE).tolist())


def test_drawn_rows_are_independent_and_follow_their_own_laws() -> None:
    tokens, probs = scripted(0.1, 0.9).draw(torch.tensor([[0.5, 0.5], [0.2, 0.8]]).log())
    assert tokens.tolist() == [0, 1]
    assert probs is not None
    assert probs.tolist() == [pytest.approx([0.5, 0.5]), pytest.approx([0.2, 0.8])]


def test_a_seed_fixes_the_stream_and_no_number_comes_twice() -> None:
    stream = torch.cat([Randomness(7, CPU).uniform(50), Randomness(8, CPU).uniform(50)])
    again = Randomness(7, CPU)
    assert torch.equal(stream[:50], torch.cat([again.uniform(20), again.uniform(30)]))
    assert len(set(stream.tolist())) == 100


def test_every_likely_token_appears_over_300_seeds() -> None:
    p = torch.tensor([0.4, 0.3, 0.2, 0.1])
    logits, guess = p.log().repeat(2, 1), Draft(torch.tensor([0]))
    seen = torch.zeros(4)
    for seed in range(300):
        seen[int(sampler(seed=seed).verify(logits, guess).tokens[0])] += 1
    # Four standard deviations of each count; the seeds are fixed, so this holds always or never.
    assert ((seen - 300 * p).abs() < 4 * (300 * p * (1 - p)).sqrt()).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [3, 260, 6151])
def test_the_likeliest_is_the_first_of_equals_in_every_dtype(dtype: torch.dtype, size: int) -> None:
    dice = torch.Generator().manual_seed(size)
    ties = torch.randint(-2, 3, (9, size), generator=dice).to(dtype)
    for logits in (ties, ties[:, ::2], ties[:1]):
        first = [row.index(max(row)) for row in logits.tolist()]
        assert likeliest(logits).tolist() == first


@torch.inference_mode()
def test_draws_by_given_numbers_are_those_that_the_stream_would_give() -> None:
    """Also one by one, as a drafter draws whose guesses depend on each other."""
    logits = torch.randn(5, 9, generator=torch.Generator().manual_seed(0))
    given = sampler()
    tokens, laws = given.draw_by(given.uniform(5), logits)
    alone = sampler()
    own, own_laws = zip(*(alone.draw(row) for row in torch.split(logits, 1)), strict=True)
    assert torch.equal(tokens, torch.cat(own)) and len(set(tokens.tolist())) > 1
    assert torch.equal(laws, torch.cat([law for law in own_laws if law is not None]))
    assert torch.equal(given.uniform(1), alone.uniform(1))
