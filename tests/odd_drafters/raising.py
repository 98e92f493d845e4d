"""A drafter that guesses nothing for some rounds and then raises."""

import torch

from draftboard.drafter import NO_WEIGHTS, Card, Draft

CARD = Card("raises", 90, "raises after some rounds", "nothing", "none", None, (), "never", None)


class Raising:
    taps = ()
    weights = NO_WEIGHTS
    num_speculative_tokens = 0

    def __init__(self, device, rounds):
        self.device, self.left = device, rounds

    def prefill(self, tokens, features):
        pass

    def propose(self, limit):
        self.left -= 1
        if self.left < 0:
            self.fall()
        return Draft(torch.zeros(0, dtype=torch.int64, device=self.device))

    def fall(self):
        raise ValueError("no more guesses\nsecond line")

    def commit(self, tokens, features):
        pass

    def release(self):
        pass


def build(target, sampler, *, rounds=30):
    return Raising(target.device, rounds)
