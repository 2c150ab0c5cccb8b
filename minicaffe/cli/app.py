"""The ``minicaffe`` command: finds the commands, and turns every exception into one line and an exit status.

Different from Caffe: errors never abort, and the options of gflags and glog itself (--flagfile, --log_dir) do not exist.
"""

import contextlib
import importlib
import os
import sys
import traceback
import warnings

import click
from click.shell_completion import CompletionItem

import minicaffe.parallel as parallel
from minicaffe import entry_points
from minicaffe.cli import ranks
from minicaffe.errors import ConfigError, ConfigWarning, Error, ShapeError, close_matches

# Command of the core: its heading in `minicaffe --help`, its module, and its line there, for which no module is imported.
COMMANDS = {
    "test": ("Train and test", "minicaffe.cli.test", "Score the weights of a net on its test data."),
    "train": ("Train and test", "minicaffe.cli.train", "Train a net, with a solver or without."),
    "classify": ("Use a trained net", "minicaffe.cli.classify", "Give pictures the scores of a classifier."),
    "extract_features": ("Use a trained net", "minicaffe.cli.extract_features", "Write blobs of a net to databases."),
    "data": ("Data", "minicaffe.cli.data", "Make databases and look into them."),
    "show": ("Look into a net", "minicaffe.cli.show", "Show what a file of weights holds, or how two differ."),
    "summary": ("Look into a net", "minicaffe.cli.summary", "Show what a net consists of, and what a training needs."),
    "time": ("Look into a net", "minicaffe.cli.time", "Measure a net layer by layer."),
    "upgrade": ("Convert a net", "minicaffe.cli.upgrade", "Bring old net, weights and solver files up to date."),
    "cache": ("This machine", "minicaffe.cli.cache", "Show or clear the kernels compiled for GPUs."),
    "addons": ("This machine", "minicaffe.cli.addons", "List the installed add-ons and what each adds."),
    "device_query": ("This machine", "minicaffe.cli.device_query", "Show the processors that this build can use."),
}
# Name of a tool of Caffe: the words that run in its place.
ALIASES = {
    "compute_image_mean": "data mean",
    "convert_imageset": "data images",
    "convert_mnist_data": "data idx",
    "convert_mnist_siamese_data": "data idx --pairs",
    "draw_net": "draw --rankdir LR",
    "summarize": "summary",
    "upgrade_net_proto_binary": "upgrade net_binary",
    "upgrade_net_proto_text": "upgrade net_text",
    "upgrade_solver_proto_text": "upgrade solver_text",
}
# Name of a tool of Caffe whose arguments no command takes: the command that does the same.
REPLACEMENTS = {
    "convert_cifar_data": "minicaffe data cifar10 --from IN_DIR --out OUT_DIR --backend DB_TYPE",
    "parse_log": "minicaffe plot LOG --csv FOLDER",
    "plot_training_log": "minicaffe plot LOG... --out PICTURE --show loss",
}


class Commands(click.Group):
    """A group that imports a command when it is run, and accepts options before the command, as gflags does.

    click calls its methods: `get_command` for the command to run, `format_commands` for --help, `shell_complete` in a shell.
    """

    def list_commands(self, ctx):
        return list(commands())

    def get_command(self, ctx, name):
        """Import a command and return it, None during completion if there is none.

        Raises UsageError if there is none, ConfigError if several add-ons have it.
        """
        word, name = name, name.replace("-", "_")
        if name in COMMANDS:
            return getattr(importlib.import_module(COMMANDS[name][1]), name)
        if found := entry_points.find("commands", name):
            return entry_points.import_target(found.value[1])      # of (heading, "module:object", line)
        if ctx.resilient_parsing:       # a completion is no error
            return None
        known = commands()
        hint = close_matches(word, [*known, *aliases(known)]) or f"; there are {', '.join(known)}"
        if (done := REPLACEMENTS.get(name)) and done.split()[1] in known:
            hint = f"; {done} does the same"
        hint += "" if entry_points.entries("commands") else "; others are of add-ons, and none is installed"
        raise click.UsageError(f"no command '{word}'{hint}", ctx)

    def format_commands(self, ctx, formatter):
        """Write the commands under headings by subject, and Caffe's names for them: click's own list imports each command."""
        rows = commands()
        column = max(map(len, rows))
        for heading in dict.fromkeys(heading for heading, _, _ in rows.values()):
            with formatter.section(heading):
                formatter.write_dl([(f"{name:{column}}", text) for name, (own, _, text) in rows.items() if own == heading])
        with formatter.section("Names of Caffe's tools"):
            formatter.write_dl([(f"{name:{column}}", words) for name, words in aliases(rows).items()])

    def shell_complete(self, ctx, incomplete):
        names = [CompletionItem(name, help=text) for name, (*_, text) in commands().items() if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)      # the group's own would import all commands

    def parse_args(self, ctx, args):
        return super().parse_args(ctx, command_first(args) or ["--help"])


def aliases(known):
    """Return the `ALIASES` whose command is in `known`: an alias may be of an add-on that is not installed."""
    return {name: words for name, words in ALIASES.items() if words.split()[0] in known}


def commands():
    """Return all commands, sorted: name -> (heading, "module:object", line); the line of another package's command names it."""
    found = {name: (heading, f"{module}:{name}", text) for name, (heading, module, text) in COMMANDS.items()}
    for name, each in entry_points.additions("commands").items():
        heading, target, text = each[0].value[:3]
        packages = " and ".join(one.package for one in each)
        found.setdefault(name, (heading, target, text if packages == "minicaffe" else f"{text} ({packages})"))
    headings = list(dict.fromkeys(heading for heading, _, _ in found.values()))
    return dict(sorted(found.items(), key=lambda row: (headings.index(row[1][0]), row[0])))


def command_first(args):
    """Return `args` with the command word before options that Caffe allows first, ``-solver x train``, and aliases replaced."""
    known = COMMANDS if args and args[0].replace("-", "_") in COMMANDS else commands()      # add-ons are read if the core lacks it
    names = {name.replace("_", dash) for name in (*known, *ALIASES) for dash in "_-"}
    places = [i for i, arg in enumerate(args) if arg in names]
    if not places or not args[0].startswith("-") and places[0] != 0:
        return args
    # A word after ``-option`` may be its value, so a word that cannot be a value takes precedence.
    sure = [i for i in places if i == 0 or not args[i - 1].startswith("-") or "=" in args[i - 1]]
    at = (sure or places)[0]
    name = args[at].replace("-", "_")
    return [*ALIASES.get(name, name).split(), *args[:at], *args[at + 1:]]


def command_of(args):
    """Return the name of the command in `args`, by which a group of processes is formed before click reads them; None if none."""
    name = command_first(args)[0].replace("-", "_") if args else None
    return name if name in commands() else None


minicaffe = click.version_option(package_name="minicaffe", prog_name="minicaffe")(Commands(
    "minicaffe", help="Caffe, small and alive: train, run and look inside Caffe networks.",
    context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": lambda s: s.replace("_", "-")}))


def run(args=None):
    """Run the command line `args` and return the exit status; see `minicaffe.cli.main`."""
    args = list(sys.argv[1:] if args is None else args)
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _open_streams()
    streams = sys.stdout, sys.stderr
    try:
        with contextlib.ExitStack() as context:
            if parallel.launched() > 1:
                ranks.init_process_group(command_of(args))
                if ranks.group.rank > 0:    # all ranks print the same
                    context.enter_context(contextlib.redirect_stdout(context.enter_context(open(os.devnull, "w"))))
            context.enter_context(warnings.catch_warnings(action="error", category=ConfigWarning))
            status = minicaffe.main(args, prog_name="minicaffe", standalone_mode=False)
            sys.stdout.flush()  # an error here, such as a full disk, is reported; one at the interpreter's end is not
        return status if isinstance(status, int) else 0
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except BrokenPipeError:  # ``minicaffe ... | head``: the reader has ended; this is no error
        return 1
    except SystemExit:
        if (sys.stdout, sys.stderr) == streams:
            raise
        sys.stdout, sys.stderr = streams  # after such an error within a command click replaces them and exits
        return 1
    except (click.Abort, KeyboardInterrupt):
        return ranks.report_failure("interrupted", 130)
    except Exception as error:
        if "--debug" in args or "-debug" in args:
            traceback.print_exc()
        return ranks.report_failure(*explain(error))


def explain(error):
    """Return the one line and the exit status for an exception that ends a command."""
    if isinstance(error, click.ClickException):
        where = f" (see {error.ctx.command_path} --help)" if isinstance(error, click.UsageError) and error.ctx else ""
        return " ".join(error.format_message().split()) + where, error.exit_code
    if isinstance(error, Error):
        return str(error), 2 if isinstance(error, (ConfigError, ShapeError)) else 1
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error), 1
    if isinstance(error, MemoryError):
        return str(error) or "out of memory", 1
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text} (at {frame.filename}:{frame.lineno}; --debug shows the traceback)", 1


def _open_streams():
    """Open the null device for closed standard streams, as a daemon has them: a file opened later would get their number.

    An import may have opened such a file already (ctypes keeps libffi open in Python 3.14); it must not be written to.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r"))


def drop_unwritable_output():
    """Point standard output to the null device if its buffer cannot be written: the interpreter writes it again at exit.

    Call it only at the end of the process: a program that calls `run` still uses the stream.
    """
    try:
        sys.stdout.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
