"""Checks of the simulated device that MINICAFFE_SIM turns on for a whole run of the tests.

``race=1`` and ``deferred=1`` are two runs: with both, kernels count with whole allocations, and a pool makes false alarms.
"""

import os

CHECKS = "race=1", "deferred=1"     # a program that is right does the same under each


def checks_on():
    """Return those that are on in this process."""
    return [setting for setting in os.environ.get("MINICAFFE_SIM", "").split(",") if setting in CHECKS]


def under_checks(settings):
    """Return settings of the simulated device of a process that a test starts: with the present ones, unless it names some itself."""
    own = any(check.partition("=")[0] in settings for check in CHECKS)
    return ",".join([*([] if own else checks_on()), *filter(None, [settings])])
