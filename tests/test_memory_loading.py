"""A target is in memory once: while it is loaded, and afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from draftboard.measure.source_model import ReadOnce
from tiny import tiny_model
from tiny_folder import byte_tokenizer, save_tiny_folder

LIMIT = 1.3
"""Peak over weights and cache: the tolerance for a layer in the making and for the allocator."""

PROBE = """
import sys, torch
from draftboard.measure.loading import load_target

def kilobytes(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name))

def load(folder, context):
    return load_target(folder, dtype=torch.float32, device=torch.device("cpu"), max_context=context)

load(sys.argv[1], 64)  # what code and libraries take
open("/proc/self/clear_refs", "w").write("5")
before = kilobytes("VmRSS")
target = load(sys.argv[2], 512)
cache = target.forward.cache
expected = target.weight_bytes + cache.keys.nbytes + cache.values.nbytes
print(expected, (kilobytes("VmHWM") - before) * 1024 / expected)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no peak of memory to read here")
def test_the_peak_while_loading_is_near_weights_and_cache(tmp_path: Path) -> None:
    small, large = save_tiny_folder(tmp_path / "small"), tmp_path / "large"
    sizes = {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 12}
    tiny_model("llama", vocab_size=260, max_position_embeddings=1024, **sizes).save_pretrained(large)
    byte_tokenizer().save_pretrained(large)
    command = [sys.executable, "-c", PROBE, str(small), str(large)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert float(said[0]) > 50e6
    assert 0.9 < float(said[1]) < LIMIT, said


def test_layers_give_their_weights_up_one_by_one() -> None:
    layers = ReadOnce(torch.nn.Linear(3, 3) for _ in range(3))
    kept, alive = [], []
    for layer in layers:
        kept.append(layer.weight.detach())
        alive.append([one.weight.numel() for one in torch.nn.ModuleList.__iter__(layers)])
    assert alive == [[9, 9, 9], [0, 9, 9], [0, 0, 9]]
    assert [one.weight.numel() for one in torch.nn.ModuleList.__iter__(layers)] == [0, 0, 0]
    assert all(weight.shape == (3, 3) for weight in kept)
