"""A drafter that runs out of memory, in each way in which that is told, when built or after some rounds."""

import errno
import os
import signal

import torch
from raising import Raising

from draftboard.drafter import Card

CARD = Card("starves", 93, "runs out of memory", "nothing", "none", None, (), "never", None)


def on_gpu():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has no room")


def on_cpu():
    raise RuntimeError(
        "[enforce fail at alloc_cpu.cpp:124] data. DefaultCPUAllocator: can't allocate memory: you tried to"
        " allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)"
    )


def really():
    torch.empty(1 << 60, dtype=torch.int8)


def in_python():
    raise MemoryError


def in_a_file():
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def by_the_kernel():
    os.kill(os.getpid(), signal.SIGKILL)


WAYS = {one.__name__: one for one in (on_gpu, on_cpu, really, in_python, in_a_file, by_the_kernel)}


class Starving(Raising):
    def __init__(self, device, rounds, way):
        super().__init__(device, rounds)
        self.way = way

    def fall(self):
        WAYS[self.way]()


def build(target, sampler, *, way, rounds=30):
    if rounds < 0:
        WAYS[way]()
    return Starving(target.device, rounds, way)
