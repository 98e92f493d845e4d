"""What the hardware says of itself while arms run, read by a process of its own that never imports torch.

`sampler.open_sampler` is the door; behind it a process holds back ends (`nvml`, `cpu`) whose devices are
lists of `channel.Channel`, or there is none. What goes wrong becomes a status, never an error of the run.
"""
