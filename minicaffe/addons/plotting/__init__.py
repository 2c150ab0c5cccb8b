"""Curves of trainings, from their logs: ``minicaffe plot``."""

COMMANDS = {"plot": ("Train and test", f"{__name__}.plot:plot", "Draw loss, accuracy and rate of trainings, or write CSV.")}
