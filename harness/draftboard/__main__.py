"""The `draftboard` command, also as `python -m draftboard`: an interrupt is one from the first import on."""

import signal
from typing import Any

from draftboard.errors import INTERRUPTED


def main() -> None:
    """Imports the command line and runs it."""
    signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        from draftboard import cli

        cli.main()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def _as_interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
