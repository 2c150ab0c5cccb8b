"""The command line: one file for each command, app.py finds and runs them.

No other part of minicaffe imports this package. Modules are imported when they are needed, so ``minicaffe --help`` is quick.
"""


def main(args=None):
    """Run ``minicaffe`` with `args` (by default those of the process) and return the exit status.

    0: done, also when stopped by Ctrl-C; 1: the run failed; 2: the command line or a prototxt is wrong;
    143: a training was stopped by SIGTERM.
    """
    try:
        from minicaffe.cli import app
    except KeyboardInterrupt:   # Ctrl-C during imports: else each process that mpiexec started prints a traceback
        return 130
    status = app.run(args)
    if status and args is None:     # the process's own command line, after which it ends
        app.drop_unwritable_output()
    return status
