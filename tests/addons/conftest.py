"""Add-ons of minicaffe; their commands run as those of the core do in tests/cli."""

from command_fixtures import folder, minicaffe, no_process_outlives_its_test  # noqa: F401
