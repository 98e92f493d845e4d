"""Published drafters read into one typed record, strictly, and written back in the published layouts.

    checkpoint = checkpoints.load("path/or/hub-id", revision=None)
    print(checkpoint.describe())
    checkpoints.export(checkpoint, Path("folder"), layout="z-lab")

**How a layout is added.** One file in `checkpoints/layouts/`, found by listing the folder, with

`NAME`, `METHODS`
    the layout's name as users know it, and the methods that this file reads from it.
`recognise(config, shapes) -> Plan | None`
    config.json and the shapes of the stored tensors. None when the checkpoint is another layout's: exactly
    one file may recognise a checkpoint. A UserError when it is this layout but cannot be run; it names the
    reason. The `Plan` holds the conventions in our terms (`Spec`) and every tensor that belongs to it
    (`Expected`): its name in the record, its key in the file, its shape, its role, and, where the file may
    leave it out, the rule that says where it comes from then. The loader checks the rest.
`config_of(spec, dtype) -> dict`
    config.json as the layout writes it; `export` reads it back through `recognise` and refuses whatever the
    layout cannot say.

What files have in common is read by `fields` (sizes, rotary embedding) and listed by `expected` (a decoder
layer's tensors) and `parallel` (a block drafter's).
"""

from __future__ import annotations

from draftboard_drafters.checkpoints.exporting import export
from draftboard_drafters.checkpoints.inspecting import inspect
from draftboard_drafters.checkpoints.loader import load, load_as
from draftboard_drafters.checkpoints.record import Checkpoint, Expected, Parallel, Plan, Serial, Spec
from draftboard_drafters.checkpoints.serving import Served, serve

__all__ = [
    "Checkpoint",
    "Expected",
    "Parallel",
    "Plan",
    "Serial",
    "Served",
    "Spec",
    "export",
    "inspect",
    "load",
    "load_as",
    "serve",
]
