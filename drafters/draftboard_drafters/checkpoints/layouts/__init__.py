"""One file per family of published layouts; `checkpoints/__init__.py` says what such a file holds."""
