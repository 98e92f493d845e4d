"""Training drafters for one target: its own replies, its states, one loop, one loss file per method."""
