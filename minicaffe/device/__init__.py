"""Where an operation runs: threads of the CPU or a stream of a device, with their loops and launches; the current context."""
