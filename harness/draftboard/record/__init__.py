"""The room of facts: what was measured, on what, and where it is kept. Imports no torch."""
