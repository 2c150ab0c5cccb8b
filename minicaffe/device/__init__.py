"""Threads of the CPU and streams of a device, with their loops and launches; the current context."""
