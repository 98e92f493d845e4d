"""The room that needs torch and the hardware: target, loop, clock, runner."""
