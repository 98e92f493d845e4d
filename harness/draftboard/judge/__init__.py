"""The room of verdicts: numbers and judgements as pure functions of records. Imports no torch."""
