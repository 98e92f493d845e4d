"""Named parameters and the products made of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from draftboard.measure.linear import Linear, pack

Parameters = Mapping[str, Tensor]


def part(parameters: Parameters, prefix: str) -> Parameters:
    """The parameters whose names begin with `prefix`, without it."""
    return {
        name.removeprefix(prefix): tensor for name, tensor in parameters.items() if name.startswith(prefix)
    }


def joined(parameters: Parameters, *names: str) -> Linear:
    """The linear maps called `names`, all of the same input, as one product.

    A name stands for `<name>.weight` [out, in] and, where there is one, `<name>.bias` [out].
    """
    weights = [parameters[f"{name}.weight"] for name in names]
    biases = [parameters.get(f"{name}.bias") for name in names]
    if all(bias is None for bias in biases):
        return pack(torch.cat(weights))
    filled = [
        weight.new_zeros(len(weight)) if bias is None else bias
        for weight, bias in zip(weights, biases, strict=True)
    ]
    return pack(torch.cat(weights), torch.cat(filled))
