"""The Markov heads of DSpark: how the token before a slot bends the slot's logits. Equations: `dspark`."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from draftboard_drafters._layers import Parameters, joined
from draftboard_drafters.checkpoints.record import Markov


class MarkovHead(Protocol):
    """The bias of one slot's logits by the token before it."""

    def latent(self, previous: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """z_k [1, r] and the next state [1, r], from e_k [1, r], h_k [1, H] and the state [1, r]."""


class Vanilla:
    """z = e."""

    def __init__(self, parameters: Parameters) -> None:
        pass

    def latent(self, previous: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `MarkovHead`."""
        return previous, state


class Gated:
    """z = sigmoid(Wg [h ; e] + b) * e."""

    def __init__(self, parameters: Parameters) -> None:
        self.gate = joined(parameters, "markov_head.gate_proj")

    def latent(self, previous: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `MarkovHead`."""
        return torch.sigmoid(self.gate(torch.cat([hidden, previous], dim=-1))) * previous, state


class Recurrent:
    """z = tanh(o), with a state that has read all tokens of the block so far."""

    def __init__(self, parameters: Parameters) -> None:
        self.joint = joined(parameters, "markov_head.joint_proj")

    def latent(self, previous: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `MarkovHead`."""
        gate, candidate, output = self.joint(torch.cat([state, previous, hidden], dim=-1)).chunk(3, dim=-1)
        kept = torch.sigmoid(gate)
        return torch.tanh(output), kept * state + (1 - kept) * torch.tanh(candidate)


HEADS: dict[Markov, type[Vanilla] | type[Gated] | type[Recurrent]] = {
    "vanilla": Vanilla,
    "gated": Gated,
    "rnn": Recurrent,
}
