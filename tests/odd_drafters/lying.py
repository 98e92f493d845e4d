"""A drafter that breaks its contract: it proposes more than it may."""

import torch
from raising import Raising

from draftboard.drafter import Card, Draft

CARD = Card("lies", 92, "proposes more than the limit", "nothing", "none", None, (), "never", None)


class Lying(Raising):
    num_speculative_tokens = 4

    def propose(self, limit):
        return Draft(torch.zeros(limit + 1, dtype=torch.int64, device=self.device))


def build(target, sampler, *, num_speculative_tokens=4):
    return Lying(target.device, 0)
