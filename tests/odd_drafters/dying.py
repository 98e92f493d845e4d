"""A drafter that takes its whole process down, as a fault in compiled code does."""

import os

from raising import Raising

from draftboard.drafter import Card

CARD = Card("dies", 91, "ends the process after some rounds", "nothing", "none", None, (), "never", None)


class Dying(Raising):
    def fall(self):
        os._exit(7)


def build(target, sampler, *, rounds=30):
    return Dying(target.device, rounds)
