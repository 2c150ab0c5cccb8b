"""Where an operation runs: threads of the CPU or a stream of a device, with the loops and launches there; the current context."""
