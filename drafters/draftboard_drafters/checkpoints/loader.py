"""From files to a `Checkpoint`: one layout recognises it, every tensor is accounted for."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import pkgutil
from collections.abc import Collection, Mapping
from types import ModuleType

import torch
from torch import Tensor

from draftboard.drafter import Origin, Training
from draftboard.errors import UserError, unknown
from draftboard_drafters._layers import Rotary
from draftboard_drafters.checkpoints import layouts
from draftboard_drafters.checkpoints.cards import training_of
from draftboard_drafters.checkpoints.config import Config
from draftboard_drafters.checkpoints.files import open_checkpoint
from draftboard_drafters.checkpoints.record import Checkpoint, Expected, Plan, Shapes, Spec

OWN_SECTION = "draftboard"
"""Section of config.json in which `export` notes where the weights come from; others ignore it."""


def load(path: str, revision: str | None = None) -> Checkpoint:
    """The checkpoint in a folder or under a hub id.

    Raises UserError, naming file and reason, when nothing is there, no layout recognises it, it cannot be
    run here, or a tensor is missing, unexpected, or of another shape or kind than its layout says; and when
    a card beside the weights speaks of others.
    """
    source = open_checkpoint(path, revision, belonging)
    shapes = {key: stored.shape for key, stored in source.tensors.items()}
    plan = recognise(source.config, shapes)
    check_rope(plan.spec, path)
    check_shapes(plan, shapes, path)
    kept = [expected for expected in plan.tensors if expected.file_key in shapes]
    tensors = {expected.name: source.tensors[expected.file_key].read() for expected in kept}
    check_kinds(tensors, path)
    if "d2t" in tensors:
        check_map(tensors, plan.spec.vocab_size, path)
    own = source.config.section(OWN_SECTION)
    origin: Origin = "trained here" if own.maybe("origin", str) == "trained here" else "published"
    return assemble(plan, tensors, path, origin, training_of(path))


def belonging(config: Config, keys: Collection[str]) -> list[str]:
    """`own_keys` by the layout that recognises the checkpoint.

    Raises UserError when no layout recognises the checkpoint, or it cannot be run here.
    """
    plan = recognise(config, dict.fromkeys(keys, ()))
    return own_keys(plan, keys)


def own_keys(plan: Plan, keys: Collection[str]) -> list[str]:
    """The keys in a file that are in the plan or unknown to it, not those of something else."""
    own, others = plan.keys, tuple(plan.ignored)
    return [key for key in keys if key in own or not key.startswith(others)]


def load_as(method: str, path: str, revision: str | None = None) -> Checkpoint:
    """`load`, for one method's drafter. Raises UserError for a checkpoint of another method."""
    checkpoint = load(path, revision)
    if checkpoint.method != method:
        raise UserError(
            f"{path} holds a {checkpoint.method} drafter in {checkpoint.layout} layout, not {method};"
            f" run it with the drafter {checkpoint.method!r}"
        )
    return checkpoint


def assemble(
    plan: Plan,
    tensors: Mapping[str, Tensor],
    path: str,
    origin: Origin,
    training: Training | None = None,
) -> Checkpoint:
    """The record of a plan and its tensors, by their names in the record."""
    spec = {field.name: getattr(plan.spec, field.name) for field in dataclasses.fields(plan.spec)}
    return Checkpoint(
        **spec,
        tensors=tensors,
        roles={expected.name: expected.role for expected in plan.tensors},
        shared={e.name: e.absent for e in plan.tensors if e.absent and e.name not in tensors},
        path=path,
        sha256=digest(tensors),
        origin=origin,
        training=training,
    )


def recognise(config: Config, shapes: Shapes) -> Plan:
    """The plan of the one layout that recognises the checkpoint. Raises UserError when none does."""
    found: list[Plan | None] = [module.recognise(config, shapes) for module in modules()]
    plans = [plan for plan in found if plan is not None]
    if len(plans) > 1:
        names = " and ".join(plan.spec.layout for plan in plans)
        raise RuntimeError(f"{config.where}: the layouts {names} both recognise it; their tests overlap")
    if not plans:
        known = sorted({f"{m.NAME} ({', '.join(m.METHODS)})" for m in modules()})
        raise UserError(
            f"{config.where}: no known layout; config.json has architectures"
            f" {config.data.get('architectures')!r} and model type {config.data.get('model_type')!r},"
            f" the tensors begin with {sorted(shapes)[:3]} (known: {', '.join(known)})"
        )
    return plans[0]


def modules() -> list[ModuleType]:
    """The layouts' modules, found by listing their folder."""
    found = pkgutil.iter_modules(layouts.__path__)
    return [importlib.import_module(f"{layouts.__name__}.{module.name}") for module in found]


def layout_of(name: str, method: str) -> ModuleType:
    """The module that knows a method in a layout. Raises UserError with the ones that do."""
    able = {module.NAME: module for module in modules() if method in module.METHODS}
    if name not in able:
        raise unknown("layout", name, able, f"the layouts for {method}")
    return able[name]


def check_shapes(plan: Plan, shapes: Shapes, where: str) -> None:
    """Raises UserError unless the stored tensors are exactly those of the plan."""
    what = f"{where} ({plan.spec.method} in {plan.spec.layout} layout)"
    missing = [e.file_key for e in plan.tensors if e.absent is None and e.file_key not in shapes]
    strange = sorted(set(own_keys(plan, shapes)) - plan.keys)
    if missing or strange:
        problems = [
            *([f"missing {_some(missing)}, which nothing else provides"] if missing else []),
            *([f"unexpected {_some(strange)}, which would go unused"] if strange else []),
        ]
        raise UserError(f"{what}: tensors {'; '.join(problems)}; fetch the checkpoint again or correct it")
    for expected in plan.tensors:
        _check_shape(expected, shapes.get(expected.file_key, expected.shape), what)


def _check_shape(expected: Expected, got: tuple[int, ...], what: str) -> None:
    if got != expected.shape:
        raise UserError(
            f"{what}: tensor {expected.file_key!r} ({expected.role}) got {list(got)},"
            f" expected {list(expected.shape)} from config.json"
        )


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"


def check_rope(spec: Spec, where: str) -> None:
    """Raises UserError for a rotary embedding that cannot turn two positions."""
    width = spec.geometry.head_dim
    try:
        table = Rotary(spec.rope, width, 2, torch.float32, torch.device("cpu")).cos
    except Exception as error:  # transformers refuses by errors of many types
        raise _no_rope(" ".join(str(error).split())[:300], where) from error
    if not (table.isfinite().all() and 0 < table.shape[-1] <= width):
        raise _no_rope(f"{dict(spec.rope.parameters)} yields no angles for heads of {width}", where)


def _no_rope(reason: str, where: str) -> UserError:
    return UserError(f"{where}: its rotary embedding cannot be built: {reason}; correct it in config.json")


def check_kinds(tensors: Mapping[str, Tensor], where: str) -> None:
    """Raises UserError for tensors that do not hold plain, finite numbers of the kind they stand for."""
    kinds = {"d2t": (torch.int64, torch.int32), "t2d": (torch.bool, torch.uint8)}
    for name, tensor in tensors.items():
        allowed = kinds.get(name, (torch.float32, torch.bfloat16, torch.float16))
        if tensor.dtype not in allowed:
            expected = " or ".join(str(kind).removeprefix("torch.") for kind in allowed)
            raise UserError(
                f"{where}: tensor {name!r} got {str(tensor.dtype).removeprefix('torch.')},"
                f" expected {expected}; quantised checkpoints cannot be read"
            )
        if not (finite := tensor.isfinite()).all():
            raise UserError(
                f"{where}: tensor {name!r} has {int((~finite).sum())} values of {tensor.numel()} that are not"
                " finite numbers; fetch the checkpoint again or train it anew"
            )


def check_map(tensors: Mapping[str, Tensor], vocab_size: int, where: str) -> None:
    """Raises UserError unless d2t, read as target id minus draft id, is a map into the target's ids."""
    offsets = tensors["d2t"].long()
    ids = offsets + torch.arange(len(offsets))
    rising = bool((ids.diff() > 0).all()) and int(ids[0]) >= 0 and int(ids[-1]) < vocab_size
    known = tensors.get("t2d")
    agrees = known is None or torch.equal(known.bool().nonzero()[:, 0], ids)
    if not (rising and agrees):
        reason = "names ids that t2d does not" if rising else f"does not rise within 0 to {vocab_size - 1}"
        raise UserError(
            f"{where}: d2t {reason} when read as offsets (target id minus draft id);"
            " it may hold the target ids themselves: subtract 0, 1, 2, ..."
        )


def digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 over names, dtypes, shapes and values, whatever files the tensors came in."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        total.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()
