"""draftboard: one decoding engine, one benchmark and one leaderboard for speculative decoding."""

__version__ = "0.1.0"
