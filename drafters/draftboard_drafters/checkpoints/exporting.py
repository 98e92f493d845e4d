"""Writing a checkpoint in a published layout, so that other engines can serve it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from draftboard.errors import UserError
from draftboard_drafters.checkpoints.config import Config
from draftboard_drafters.checkpoints.loader import OWN_SECTION, check_shapes, layout_of
from draftboard_drafters.checkpoints.record import Checkpoint, Plan, Spec


def export(checkpoint: Checkpoint, folder: Path, layout: str) -> None:
    """Writes config.json and model.safetensors into `folder`, bit for bit the tensors of the checkpoint.

    Before anything is written the configuration is read back: a convention or a tensor that the layout
    cannot express is a UserError that names it.
    """
    module = layout_of(layout, checkpoint.method)
    config = module.config_of(checkpoint, _dtype(checkpoint))
    where = f"export of {checkpoint.path} to {layout}"
    names = {name: tuple(tensor.shape) for name, tensor in checkpoint.tensors.items()}
    plan: Plan | None = module.recognise(Config(config, where), names)
    if plan is None:
        raise RuntimeError(f"{where}: the layout does not recognise what it wrote")
    _check_same(checkpoint, plan.spec, where)
    keys = {expected.name: expected.file_key for expected in plan.tensors}
    check_shapes(plan, {keys.get(name, name): shape for name, shape in names.items()}, where)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {keys[name]: tensor.contiguous() for name, tensor in checkpoint.tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    noted = {**config, OWN_SECTION: {"origin": checkpoint.origin}}
    (folder / "config.json").write_text(json.dumps(noted, indent=1, sort_keys=True) + "\n")


def _dtype(checkpoint: Checkpoint) -> str:
    dtypes = {tensor.dtype for tensor in checkpoint.tensors.values() if tensor.is_floating_point()}
    if len(dtypes) != 1:
        found = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        raise UserError(f"{checkpoint.path}: its tensors are {found}; convert them to one dtype")
    return str(dtypes.pop()).removeprefix("torch.")


_NOT_CONVENTIONS = {"layout", "warnings", "verifier", "num_target_layers"}


def _check_same(checkpoint: Spec, written: Spec, where: str) -> None:
    for field in dataclasses.fields(Spec):
        ours: Any = getattr(checkpoint, field.name)
        theirs: Any = getattr(written, field.name)
        if field.name not in _NOT_CONVENTIONS and ours != theirs:
            raise UserError(
                f"{where}: the layout cannot say {field.name} = {ours}; it would be read as {theirs};"
                " choose another layout"
            )
