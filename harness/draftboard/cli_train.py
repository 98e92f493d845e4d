"""`draftboard train`: hands over to the plug-in package, which knows what can be trained and how."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

from draftboard.errors import UserError

HOOK = "training.commands"
"""The module of a plug-in package that trains."""


def train(
    what: Annotated[str, typer.Argument(help="data, a method, all; evaluate or tables for what is trained.")],
    target: Annotated[str | None, typer.Option(help="Target (default: the embedded one).")] = None,
    tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Token visits (default: the recipe's); weights then go to --work."),
    ] = None,
    further: Annotated[
        int | None,
        typer.Option(
            min=1, help="Token visits more for a method's shipped weights; better ones replace them."
        ),
    ] = None,
    reply_tokens: Annotated[int, typer.Option(min=1, help="Reply tokens of the data.")] = 1_000_000,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: torch's choice).")] = None,
    work: Annotated[
        Path | None,
        typer.Option(help="Folder of unfinished work (default: in the user's cache)."),
    ] = None,
    plugins: Annotated[
        str, typer.Option(help="Package whose module `training` trains.")
    ] = "draftboard_drafters",
    root: Annotated[Path, typer.Option(help="Checkout with drafters/ and results/.")] = Path(),
) -> None:
    """Train drafters for a target on its own replies; killed, it goes on where it stopped."""
    hook = _hook(plugins)
    options = {"reply_tokens": reply_tokens, "tokens": tokens, "further": further, "threads": threads}
    job = hook.job(target, root, work, say=typer.echo, **options)
    hook.run(what, job)


def _hook(plugins: str) -> Any:
    try:
        return importlib.import_module(f"{plugins}.{HOOK}")
    except ModuleNotFoundError as error:
        raise UserError(f"plug-in package {plugins!r} has no module {HOOK!r}: {error}") from None
