"""Freed weights go back to the system while a model is loaded, and only then."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest

from draftboard.measure import heap

SIZE = 8 << 20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def touched() -> ctypes.c_void_p:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    place = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(SIZE)))
    ctypes.memset(place, 1, SIZE)
    return place


def free(place: ctypes.c_void_p) -> None:
    ctypes.CDLL(None).free(place)


def kept_after_freeing() -> int:
    """Bytes still resident when one piece was freed from under another."""
    under, over = touched(), touched()
    before = resident()
    free(under)
    gone = before - resident()
    free(over)
    return SIZE - gone


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc is asked here")
def test_a_piece_freed_from_under_another_leaves_memory_within_and_stays_outside() -> None:
    with heap.freed_at_once():
        assert kept_after_freeing() < SIZE // 8
    assert kept_after_freeing() > SIZE * 7 // 8


def test_a_c_library_without_mallopt_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    with heap.freed_at_once():
        pass


def test_the_thresholds_are_put_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(heap, "_thresholds", asked.append)
    with pytest.raises(RuntimeError), heap.freed_at_once():
        raise RuntimeError
    assert asked == [heap._LOADING, heap._DECODING]
