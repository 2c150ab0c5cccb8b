"""Commands run in this process, in a folder with a tiny net."""

from command_fixtures import folder, minicaffe, no_process_outlives_its_test  # noqa: F401
