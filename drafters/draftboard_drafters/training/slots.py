"""The block of DFlash and DSpark in training: one forward for many anchors of the same text.

For an anchor at position s the slots stand at s, s+1, ..; the first holds the anchor's embedding, the others
the mask's, and slot j predicts the law of token s+1+j. A block sees the fused states before its anchor and
itself, in both directions. All anchors of a text share its context, which is projected once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from draftboard_drafters._layers import Angles, Rotary, Sight
from draftboard_drafters.checkpoints import Checkpoint, Parallel, Plan, Spec, parallel
from draftboard_drafters.checkpoints.record import TARGETS
from draftboard_drafters.training.batches import Batch
from draftboard_drafters.training.blocks import attend_blocks, keys_values, norm, project, swiglu
from draftboard_drafters.training.chains import LONGEST
from draftboard_drafters.training.masks import mask_of
from draftboard_drafters.training.objective import Labels, Parameters, label_weights, said_laws
from draftboard_drafters.training.parts import Parts, Words
from draftboard_drafters.training.shipping import kept_tensors, trained


@dataclass(frozen=True, slots=True)
class Block:
    """The slots that are looked at, n of them, anchor by anchor.

    `states` [n, H] past the final norm, `laws` [n, Vd] the target's, `weights` [n] how much they count as
    labels, `reached` [n] how much the slots count, `previous` int64 [n] the token before the one predicted,
    `where` bool [B, A, K] their places; `started` bool [B, A] anchors that are tokens of a reply with K more
    behind them. The two weights differ at a slot whose word the drafter cannot say: it is no label, and its
    law adds up to less than 1.
    """

    states: Tensor
    laws: Tensor
    weights: Tensor
    reached: Tensor
    previous: Tensor
    where: Tensor
    started: Tensor


class Slots:
    """A stack of `layers` layers over blocks of K slots."""

    def __init__(
        self,
        parts: Parts,
        words: Words,
        taps: tuple[int, ...],
        *,
        k: int,
        layers: int,
        anchors: int,
        decay: float,
        prompt_weight: float,
        mask_id: int | None,
        unsaid: bool = False,
    ) -> None:
        """`anchors` are drawn a text and visit, without repetition; slot j counts exp(-j / decay);
        `mask_id` None takes a free one; `unsaid` keeps the slots whose word the drafter cannot say, too."""
        self.parts, self.words, self.taps, self.k, self.layers = parts, words, taps[:-1], k, layers
        self.anchors, self.prompt_weight = anchors, prompt_weight
        self.rest = parts.head[~words.known] if unsaid else None
        self.mask_id = mask_of(parts.source, words.present, mask_id)
        self.decays = torch.exp(-torch.arange(k) / decay)
        self.geometry = replace(parts.geometry, qk_norm=True)
        self.rotary = Rotary(parts.rope, self.geometry.head_dim, LONGEST, torch.float32, torch.device("cpu"))

    @property
    def conventions(self) -> Parallel:
        """The conventions of the block without a serial head."""
        sights = (Sight(),) * self.layers
        return Parallel(block_size=self.k, mask_id=self.mask_id, anchor_predicts=True, sights=sights)

    def initial(self, seed: int) -> dict[str, Tensor]:
        """The layers from the target's blocks that follow the highest tap, fc as the identity on that tap.

        The target's queries and keys are not normed. Their norms start at the root of the head width's share
        of the weights, which makes the products as sharp as the target's on average.
        """
        hidden, dice = self.parts.geometry.hidden_size, torch.Generator().manual_seed(seed)
        fuse = torch.randn(hidden, len(self.taps) * hidden, generator=dice) * 1e-3
        fuse[:, -hidden:] += torch.eye(hidden)
        found = {"fc.weight": fuse, "norm.weight": self.parts.final_norm.clone()}
        for layer in range(self.layers):
            at = f"layers.{layer}."
            found |= self.parts.block(self.taps[-1] + layer, at)
            for name in "qk":
                weight = found[f"{at}self_attn.{name}_proj.weight"] * found[f"{at}input_layernorm.weight"]
                size = weight.pow(2).sum(1).mean().sqrt()
                found[f"{at}self_attn.{name}_norm.weight"] = torch.full(
                    (self.geometry.head_dim,), float(size)
                )
        return {**found, "hidden_norm.weight": found["layers.0.input_layernorm.weight"].clone()}

    def checkpoint(
        self, method: str, layout: str, conventions: Parallel, parameters: Parameters
    ) -> Checkpoint:
        """A block drafter in bfloat16 with its reduced head and its map of the vocabulary."""
        spec = Spec(
            method=method,
            layout=layout,
            taps=self.taps,
            k=self.k,
            geometry=self.geometry,
            rope=self.parts.rope,
            layers=self.layers,
            vocab_size=self.parts.vocab_size,
            num_target_layers=self.parts.layers,
            verifier=self.parts.id,
            draft_vocab_size=len(self.words.ids),
            parallel=conventions,
        )
        plan = Plan(spec, parallel.tensors(spec, embedding=TARGETS, head=None))
        return trained(plan, kept_tensors(parameters, self.words))

    def block(self, parameters: Parameters, batch: Batch, seed: int) -> Block:
        """Draws anchors, runs their blocks and keeps the slots that count."""
        anchors, chosen = self._anchors(batch, seed)
        places = anchors[..., None] + torch.arange(self.k)
        weights = label_weights(batch, self.words.known, self.prompt_weight)
        every = weights if self.rest is None else batch.weights(self.prompt_weight)
        inside = places < batch.lengths[:, None, None]
        safe = places.clamp_max(batch.ids.shape[1] - 1)
        said = _at(weights, safe) > 0
        # A label after a word that cannot be said would be read off a chain that the drafter cannot say.
        before = F.pad(said.long().cumprod(-1)[..., :-1], (1, 0), value=1)
        reached = _at(every, safe) * inside * chosen[..., None] * before * self.decays
        where = reached > 0
        rows, laws = self._labels(batch, weights, every)
        return Block(
            self._states(parameters, batch, anchors, safe)[where],
            laws[_at(rows, safe)[where]],
            (reached * said)[where],
            reached[where],
            _at(batch.ids, safe)[where],
            where,
            batch.starts(self.k).gather(1, anchors) & chosen,
        )

    def _labels(self, batch: Batch, weights: Tensor, every: Tensor) -> tuple[Tensor, Tensor]:
        """The row of the law after each place [B, T], and the laws [n, Vd]."""
        labels = Labels(batch, every, self.words.head)
        if self.rest is not None:
            lost = (weights == 0) & (every > 0)
            finals = batch.states[:, :, -1][lost]
            labels.laws[labels.rows[lost]] = said_laws(finals, self.words.head, self.rest)
        return labels.rows, labels.laws

    def _anchors(self, batch: Batch, seed: int) -> tuple[Tensor, Tensor]:
        """Positions int64 [B, A] and which of them stand for an anchor at all, bool [B, A]."""
        dice = torch.Generator().manual_seed(seed)
        likely = batch.weights(self.prompt_weight)
        likely[:, 0] = 0
        draws = torch.rand(likely.shape, generator=dice).clamp_min(1e-9).log() / likely
        count = min(self.anchors, likely.shape[1])
        best = draws.topk(count, dim=1)
        return best.indices, torch.isfinite(best.values)

    def _states(self, parameters: Parameters, batch: Batch, anchors: Tensor, places: Tensor) -> Tensor:
        """[B, A, K, H] past the final norm."""
        shape, flat = self.geometry, places.flatten(1)
        embedding = self.parts.embedding
        x = embedding[self.mask_id].expand(*places.shape, -1).clone()
        x[:, :, 0] = F.embedding(_at(batch.ids, anchors), embedding)
        x = x.flatten(1, 2)
        fused = F.linear(batch.states[:, :, :-1].flatten(2), parameters["fc.weight"])
        context = norm(fused, parameters["hidden_norm.weight"], shape.eps)
        before = self.rotary.at(slice(0, batch.ids.shape[1]))
        angles = self.rotary.cos[flat], self.rotary.sin[flat]
        for layer in range(self.layers):
            x = self._layer(parameters, f"layers.{layer}.", x, angles, context, before, anchors)
        return torch.unflatten(norm(x, parameters["norm.weight"], shape.eps), 1, (-1, self.k))

    def _layer(
        self,
        parameters: Parameters,
        at: str,
        x: Tensor,
        angles: Angles,
        context: Tensor,
        before: Angles,
        anchors: Tensor,
    ) -> Tensor:
        shape = self.geometry
        normed = norm(x, parameters[f"{at}input_layernorm.weight"], shape.eps)
        queries, keys, values = project(normed, parameters, f"{at}self_attn.", shape, angles)
        far = keys_values(context, parameters, f"{at}self_attn.", shape, before)
        seen = attend_blocks(queries, far, (keys, values), anchors)
        x = x + F.linear(seen, parameters[f"{at}self_attn.o_proj.weight"])
        normed = norm(x, parameters[f"{at}post_attention_layernorm.weight"], shape.eps)
        return x + swiglu(normed, parameters, f"{at}mlp.")


def chains_of(right: Tensor, block: Block) -> Tensor:
    """From whether each counted slot is right to hits bool [chains, K]. A slot that does not count, since
    the drafter cannot say its word, is wrong."""
    placed = torch.zeros_like(block.where)
    placed[block.where] = right & (block.weights > 0)
    return placed[block.started]


def _at(values: Tensor, places: Tensor) -> Tensor:
    """values [B, T] at places [B, ...]."""
    return values.gather(1, places.flatten(1)).view(places.shape)
