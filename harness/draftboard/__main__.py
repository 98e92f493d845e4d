"""`python -m draftboard` is the `draftboard` command."""

from draftboard.cli import main

main()
