"""What is asked of a GPU, with units and the largest value that can be true."""

from __future__ import annotations

from draftboard.measure.telemetry.channel import Quantity

GPU_BUSY = Quantity("gpu_busy_pct", "%", 100)
MEMORY_BUSY = Quantity("memory_busy_pct", "%", 100)
POWER = Quantity("power_w", "W", 1e5)
ENERGY = Quantity("energy_j", "J since the driver was loaded", kind="counter")
SM_CLOCK = Quantity("sm_clock_mhz", "MHz", 1e5)
MEMORY_CLOCK = Quantity("memory_clock_mhz", "MHz", 1e5)
TEMPERATURE = Quantity("temperature_c", "°C", 200)
CLOCK_REASONS = Quantity("clock_reasons", "bits of NVML's clocks event reasons")
MEMORY_USED = Quantity("memory_used_bytes", "bytes")
PCIE_SENT = Quantity("pcie_sent_bytes_per_s", "bytes/s")
PCIE_RECEIVED = Quantity("pcie_received_bytes_per_s", "bytes/s")
FOREIGN = Quantity("foreign_processes", "processes", 1e5, whole=True)

SM_UTIL = Quantity("sm_util_pct", "%", 100, kind="mean")
SM_OCCUPANCY = Quantity("sm_occupancy_pct", "%", 100, kind="mean")
TENSOR = Quantity("tensor_active_pct", "%", 100, kind="mean")
DRAM = Quantity("dram_bandwidth_pct", "% of peak", 100, kind="mean")

WINDOWED = (SM_UTIL, SM_OCCUPANCY, TENSOR, DRAM)
"""Read at the two edges of a window by GPM, on Hopper and later."""

ALL = (
    *(GPU_BUSY, MEMORY_BUSY, POWER, ENERGY, SM_CLOCK, MEMORY_CLOCK, TEMPERATURE, CLOCK_REASONS),
    *(MEMORY_USED, PCIE_SENT, PCIE_RECEIVED, FOREIGN, *WINDOWED),
)
