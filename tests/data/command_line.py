"""``minicaffe data ...`` in this process."""

from types import SimpleNamespace

from click.testing import CliRunner

from minicaffe.cli import app


def data(*arguments):
    """Run the command; return its exit_code, stdout and stderr."""
    with CliRunner().isolation() as (out, err, _):
        status = app.run(["data", *map(str, arguments)])
        return SimpleNamespace(exit_code=status, stdout=out.getvalue().decode(), stderr=err.getvalue().decode())
