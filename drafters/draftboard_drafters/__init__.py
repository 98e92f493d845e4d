"""The drafters that ship with draftboard: one module per method, each with `CARD` and `build`."""
