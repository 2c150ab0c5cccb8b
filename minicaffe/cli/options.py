"""What the commands share: options as gflags writes them, logging, GPU, level and stages."""

import contextlib
import functools
import importlib.util
import logging
import math
import os
import re
import shutil
import sys
import textwrap
import traceback
from pathlib import Path

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from minicaffe import entry_points
from minicaffe.cli import log, ranks
from minicaffe.errors import ConfigError, Error
from minicaffe.proto.atomic import check_free, check_writable

logger = logging.getLogger("minicaffe.cli")
INT_MAX = 2**31 - 1     # of an int32 field of Caffe, and of an axis
MOST_THREADS = 1024     # of device/threads.pyx, which --help should not import
BOOLEAN_WORDS = ("true", "True", "t", "1", "false", "False", "f", "0")


class Real(click.FloatRange):
    """A finite number, at least `min` and at most `max`; click's own types take nan and inf, too."""

    def convert(self, value, param, ctx):       # click calls it with an option's text, or its default
        if not math.isfinite(click.FLOAT.convert(value, param, ctx)):
            self.fail(f"must be a finite number, got {value}", param, ctx)
        return super().convert(value, param, ctx)

    def _describe_range(self):      # click shows it in --help
        return "" if self.min is None and self.max is None else super()._describe_range()


class Text(click.types.StringParamType):
    """Any text, which a shell completes as the name of a file, or as a choice of the option's metavar, ``cpu|gpu|sim``."""

    def shell_complete(self, ctx, param, incomplete):
        choices = re.fullmatch(r"[\w.-]+(\|[\w.-]+)+", param.metavar or "")
        if not choices:
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(choice) for choice in choices[0].split("|") if choice.startswith(incomplete)]


class CaffeCommand(click.Command):
    """A command that takes its options as Caffe's gflags do too: ``-max_iter 5`` for ``--max-iter=5``.

    Add-ons may give it more: `modules`, empty at first, are imported if an option is not of the core. ``ctx.meta["arguments"]``
    holds the arguments in the second form, one word for each option; ``ctx.meta`` also has the options of `SETTINGS`, which are
    not passed to the command's function. click calls `parse_args` before that function.
    """

    modules = ()

    def import_modules(self):
        """Import the modules of add-ons and add their options (`PARAMS`); the command calls other functions of theirs."""
        if not self.modules:
            self.modules = entry_points.option_modules(self.name)
            for module in self.modules:
                self.params += module.PARAMS

    def parse_args(self, ctx, args):
        """Parse the arguments as gflags writes them; import add-ons only for options that the core lacks, as imports take time."""
        own = {name.lstrip("-").replace("_", "-") for param in self.params for name in (*param.opts, *param.secondary_opts)}
        words = {word.lstrip("-").partition("=")[0].replace("_", "-") for word in args if word.startswith("-")}
        if ctx.resilient_parsing or not words <= own:
            self.import_modules()
        ctx.meta["arguments"] = normalize_arguments(args, self.get_params(ctx), ctx)
        rest = super().parse_args(ctx, list(ctx.meta["arguments"]))
        if ctx.resilient_parsing:       # a shell completes: nothing is set, and no process is started
            for param in self.params:
                if type(param.type) is click.types.StringParamType:
                    param.type = Text()
        else:
            apply_settings(ctx)
        return rest

    def format_options(self, ctx, formatter):       # click calls it for --help
        from minicaffe.cli.help import write_options
        write_options(self, ctx, formatter)


def normalize_arguments(args, params, ctx=None):
    """Return `args` with every option of `params` as one word, ``--name`` or ``--name=value``, with dashes only, for click.

    Raises BadParameter for a value that begins with a dash, of an option that may lack one: click would take it for an option.
    """
    known = {name.lstrip("-"): option for option in params if isinstance(option, click.Option)
             for name in (*option.opts, *option.secondary_opts)}
    booleans = {name for name, option in known.items() if option.type.name == "true|false"}     # whose options may lack a value
    done = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        match = re.fullmatch(r"--?([A-Za-z][\w-]+)(=.*)?", word, re.DOTALL)
        if word == "--":
            return [*done, word, *rest]
        if not match:
            done.append(word)
            continue
        name, value = match[1].replace("_", "-"), match[2] or ""
        option = known.get(name)
        if option is None and name.startswith("no-") and name[3:] in booleans and not value:
            name, value = name[3:], "=false"
        elif name in booleans and not value:
            value = "=" + (rest.pop(0) if rest and rest[0] in BOOLEAN_WORDS else "true")
        elif option is not None and getattr(option, "_flag_needs_value", False):       # click's: its value is optional
            if value.startswith("=-"):      # BadParameter, unless such a value is allowed
                option.type.convert(value[1:], option, ctx)
            if not value:   # click would take any next word
                value = f"={rest.pop(0) if rest and rest[0].isdecimal() else option.flag_value}"
        elif option is not None and not option.is_flag and not value and rest:
            value = "=" + rest.pop(0)
        done.append(f"--{name}{value}")
    return done


def apply_settings(ctx):
    """Move the options of `SETTINGS` from the command's parameters to ``ctx.meta``, start the log, and apply the given ones."""
    found = {name: ctx.params.pop(name) for name in SETTINGS if name in ctx.params}
    ctx.meta.update(found)
    rank = ranks.group.rank
    ctx.meta["quiet"] |= rank > 0
    log.start(ctx.meta["quiet"], ctx.meta["verbose"], f"[rank {rank}] " if rank else "")
    if "allow_python_layers" in found:      # not by default, as for a program: no file alone makes Python run a module
        from minicaffe.common import caffe
        caffe.allow_python_layers = found["allow_python_layers"]
    for name, value in found.items():
        setting = SETTINGS[name]
        if setting is not None and value not in (None, False, ()):
            entry_points.import_target(setting)(value) if isinstance(setting, str) else setting(ctx, value)


def _import_modules(ctx, names):
    """Import modules that register layer types: files, and dotted names, for which the working directory is searched last."""
    sys.path.append(os.getcwd())
    for name in names:
        if not (os.path.isfile(name) if name.endswith(".py") else name and os.sep not in name):
            raise ConfigError(f"must be a file that ends in .py, or the dotted name of a module, got '{name}'", field="--import")
        try:
            _import(name)
        except (Exception, SystemExit) as error:
            places = [(file, line) for file, line, *_ in traceback.extract_tb(error.__traceback__)
                      if not file.startswith((str(Path(__file__).parents[1]) + os.sep, "<"))]
            places = [place for place in places if place[0] == places[0][0]]    # of the user's file
            is_in_file = isinstance(error, SyntaxError) and os.path.isfile(error.filename or "")
            places += [(error.filename, error.lineno)] if is_in_file else []
            file, line, where = (*places[-1], "") if places else (None, None, " in the working directory or on Python's path")
            raise ConfigError(f"module '{name}' cannot be imported: {type(error).__name__}: {error}{where}", field="--import",
                              file=file, line=line) from error


def _import(name):
    """Import a dotted name or a file of --import.

    The path of a file is its name in sys.modules, unless ``import`` finds this very file by its own name: it must not run twice.
    """
    path, stem = os.path.realpath(name), Path(name).stem
    spec = importlib.util.find_spec(stem) if stem.isidentifier() else None
    if not name.endswith(".py"):
        __import__(name)
        if getattr(sys.modules[name], "__file__", "") is None:
            raise ImportError("a folder without __init__.py")
    elif spec is not None and os.path.realpath(spec.origin or "") == path:
        __import__(stem)
    else:
        spec = importlib.util.spec_from_file_location(path, path)
        sys.modules[path] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[path])


def _use_device(ctx, device):
    """Compute where --device says; the variable is set for processes that this one starts, and for modules that read it later."""
    if device not in ("cpu", "gpu", "sim"):
        raise click.UsageError(f"--device or MINICAFFE_DEVICE: must be cpu, gpu or sim, got '{device}'")
    os.environ["MINICAFFE_DEVICE"] = device
    if device != "cpu":
        ranks.use_gpu()


def _use_gpu(ctx, gpu):
    """Compute on the GPU of --gpu; with several this process becomes the mpiexec that starts one process for each."""
    from minicaffe import cuda
    names = [str(i) for i in range(cuda.count())] if gpu == "all" else gpu.split(",")
    if not all(name.isdecimal() for name in names) or len(set(names)) < len(names):
        raise click.UsageError(f"--gpu: must be the number of a GPU, got '{gpu}'; several have commas between them, all takes "
                               "every one, minicaffe device_query lists them")
    ids = list(map(int, names))
    if len(ids) > 1 and ranks.group.size == 1:
        ranks.start_on_gpus(ids, ctx.info_name.replace("-", "_"), ctx.meta.get("arguments"))
    ctx.meta["device"], ctx.meta["gpus"] = "gpu", len(ids)      # "gpus" for `ranks.mpiexec_words`
    ranks.use_gpu(ids)


def _choose_allocators(ctx, names):
    """Set the allocators of places: ``cuda=NAME`` devices, ``cpu=NAME`` and ``pinned=NAME`` the host, ``NAME`` the present one."""
    from minicaffe import cuda, memory
    from minicaffe.common import caffe
    for text in names:
        where, name = re.fullmatch(r"(?:(\w+)=)?(.*)", text).groups()
        if where not in (None, "cpu", "pinned", "cuda"):
            raise click.UsageError(f"--allocator: '{where}' in '{text}' is no place; write cpu=NAME, pinned=NAME or cuda=NAME")
        on_host = where == "cpu" or where is None and caffe.mode == "cpu"
        if on_host:
            memory.use(memory.CPUPlace(), name)
        # A solver file may still select a GPU if no device was chosen and there is one.
        if where == "cpu" or on_host and (ctx.meta.get("device") == "cpu" or cuda.missing()):
            continue
        for index in range(cuda.count()):
            cuda.get_device(index)  # registers the provider of its memory
            if where != "pinned":
                memory.use(memory.CUDAPlace(index), name)
        if where == "pinned":
            memory.use(memory.PinnedPlace(), name)


# Option that sets something for the whole process, in the order of application: function of the context and the given value, or
# the name of one of the value, which is imported when it is needed; None if ``ctx.meta`` has the value for the command.
SETTINGS = {
    "quiet": None, "verbose": None, "debug": None, "skip_unknown_fields": None, "plan": None, "allow_python_layers": None,
    "untrusted": lambda ctx, _: ctx.with_resource(entry_points.restricted()),   # --import adds to the add-ons of minicaffe
    "device": _use_device, "gpu": _use_gpu, "allocator": _choose_allocators,
    "threads": "minicaffe.device.threads:set_num_threads", "precision": "minicaffe.engines.engine:set_precision",
    "exact": "minicaffe.engines.engine:set_exact", "modules": _import_modules,
}


def combine_options(*options):
    """Return the decorator that gives a command all of these options, which its help has in this order."""
    return lambda command: functools.reduce(lambda made, option: option(made), reversed(options), command)


messages = combine_options(     # of every command
    click.option("--quiet", is_flag=True, help="Show only warnings, errors and the result."),
    click.option("--verbose", is_flag=True, help="Show the whole log, with the building of nets, on a terminal too."),
    click.option("--debug", is_flag=True, help="Show the traceback of an error."))
force = click.option("--force", is_flag=True, help="Overwrite an output file that exists.")
# Where the log goes and what computes: of commands that use a device.
common = combine_options(
    click.option("--device", envvar="MINICAFFE_DEVICE", metavar="cpu|gpu|sim",
                 help="Where to compute; sim is a simulated GPU, for computers without one."),
    click.option("--gpu", metavar="ID[,ID...]|all", help=(
        "Compute on this GPU, counted from 0; on several with a process for each, which mpiexec starts.")),
    click.option("--allocator", multiple=True, metavar="[PLACE=]NAME", help=(
        "Allocator of the memory that the net computes in: buddy, caching (default on a GPU) or plain (on the CPU); of one kind of "
        "memory: cuda=plain, cpu=buddy, pinned=plain.")),
    messages)
net_state = combine_options(
    click.option("--level", type=click.IntRange(-INT_MAX - 1, INT_MAX), default=0, show_default=True, help="Level of the net."),
    click.option("--stage", default="", callback=lambda ctx, param, text: text.split(",") if text else [], metavar="A,B",
                 help="Stages of the net, with commas."))
# Of commands that read a model file: what `net_options` returns.
skip_unknown_fields = click.option("--skip-unknown-fields", is_flag=True, help=(
    "Leave out fields of Caffe's forks without which results are the same; a warning names each."))
model_file = combine_options(
    skip_unknown_fields,
    click.option("--allow-python-layers", is_flag=True,
                 help="Let Python layers of the model file run the modules that they name."),
    click.option("--import", "modules", multiple=True, metavar="MODULE", help=(
        "Import a Python module that registers layer types; it may lie in the working directory. Repeatable.")),
    click.option("--untrusted", is_flag=True, help=(
        "Treat the model file as untrusted: it writes no files, reads below the working directory only, runs no modules.")))
plan = click.option("--plan", type=click.Choice(["memory", "none"]), default="memory", show_default=True, help=(
    "Optimization of a net that runs as a whole: memory, blobs share memory; none, as in Caffe."))
batch_size = click.IntRange(1, INT_MAX)
threads = click.option("--threads", type=click.IntRange(1, MOST_THREADS),
                       help="Processor threads; by default all processors, or OMP_NUM_THREADS.")
precision = combine_options(
    click.option("--precision", metavar="float32|tf32|bf16", help=(
        "tf32: round the factors of products to 10 bits of mantissa, on a GPU of compute capability 8.0 or more; bf16: compute in "
        "bfloat16 with parameters in float32, on such a GPU by cuDNN, or on the CPU by oneDNN with AVX512_BF16 or AMX.")),
    click.option("--exact", is_flag=True, help=(
        "Compute convolutions on the CPU by sums of products alone, not by Winograd's algorithm, which rounds more.")))
run_options = combine_options(precision, threads, model_file, common)    # of a command that runs a net
whole_net_options = combine_options(net_state, plan, run_options)               # and runs it as a whole


def named_shapes(form):
    """Return the callback of an option NAME=SIZExSIZE that may be repeated, which makes a dict of str to tuple of int.

    `form` is the text of an error that says what to write.
    """
    def read(ctx, param, texts):    # click passes what a callback returns to the command
        shapes = {}
        for text in texts:
            name, _, sizes = text.rpartition("=")
            shapes[name] = sizes_of(sizes)
            if not name or not shapes[name]:
                raise click.BadParameter(f"write {form}, got '{text}'")
        return shapes
    return read


def sizes_of(text):
    """Return the sizes of a text such as ``3x224x224`` as a tuple; None for any other text, and for sizes that no axis has."""
    sizes = tuple(map(int, text.split("x"))) if re.fullmatch(r"[0-9]{1,10}(x[0-9]{1,10})*", text) else (0,)
    return sizes if all(0 < size <= INT_MAX for size in sizes) else None


def check_outputs(*paths, force=False):
    """Check before any work that the files of `paths` (None: not given), which rank 0 writes, can be written and overwrite nothing.

    Raises FileError for a file that exists, unless `force` is true, and if no file can be made.
    """
    for path in paths if ranks.group.rank == 0 else ():
        if path is not None:
            check_writable(path)
            check_free(path, force)


def net_options():
    """Return the options about the model file of the running command, as arguments of Net and Solver."""
    meta = click.get_current_context().meta
    plan = meta.get("plan", "none")
    return {"skip_unknown_fields": meta["skip_unknown_fields"], "trusted": not meta.get("untrusted"),
            "plan": None if plan == "none" else plan}


def one_file(file, option, option_name, what):
    """Return the file given as argument or, as in Caffe, as option."""
    if (file is None) == (option is None):
        got = "got none" if file is None else f"got {file} and {option_name} {option}"
        raise click.UsageError(f"give one {what}, as argument or as {option_name}; {got}")
    return file if file is not None else option


def suggest_data_command(error):
    """Add to the error of a missing database the folder in which its path is right, or the command that makes a known data set."""
    source, found, _ = error.message.partition(": no such database")
    if not found:
        return
    match = re.fullmatch(r"(?:(.*)/)?(fashion_mnist|mnist|cifar10)_(?:train|test)_(?:lmdb|leveldb)/*", source)
    for folder in Path(error.file).resolve().parents if error.file and not os.path.isabs(source) else ():
        # Below this folder a known name can be that of a part of the set, as in models/data.
        if (folder / source).is_dir() and not (match and Path.cwd() in folder.parents):
            error.message += f"; it is there from {folder}: run the command in that folder"
            return
    if match:
        import shlex
        name = match[2].replace("_", "-")
        folder = match[1] or ("/" if source[0] == "/" else ".")
        error.message += f"; make it with: minicaffe data {name} --out {shlex.quote(folder)}"


@contextlib.contextmanager
def suggests_data_command():
    """Apply `suggest_data_command` to an Error that ends the block: of commands that build nets which read data."""
    try:
        yield
    except Error as error:
        suggest_data_command(error)
        raise


def given_options(names):
    """Return the options among the parameters `names` that the command line has, such as ``--ext, --seed``; "" if it has none."""
    source = click.get_current_context().get_parameter_source
    given = [name for name in names if source(name) is ParameterSource.COMMANDLINE]
    return ", ".join(f"--{name.replace('_', '-')}" for name in given)


def refuse_unused(names, purpose):
    """Raise UsageError if the command line has one of the options `names`, which are for `purpose` alone: no option is ignored."""
    if given := given_options(names):
        raise click.UsageError(f"{given}: for {purpose}")


def notify(text):
    """Print a notice on standard error, also on a terminal; --quiet hides it."""
    if click.get_current_context().meta.get("quiet"):
        return
    if log.is_terminal(sys.stderr) and "minicaffe " not in text:    # a command stays whole, so that it can be copied
        text = "\n".join(textwrap.fill(line, shutil.get_terminal_size().columns, subsequent_indent="  ", break_long_words=False,
                                       break_on_hyphens=False) for line in text.split("\n"))
    click.echo(text, err=True)


def print_ranks():
    """Print where the ranks run; all ranks must call this."""
    for line in ranks.lines():
        notify(line)


def log_device():
    """Log where the command computes, in Caffe's words; print where several ranks run.

    Raises ConfigError if the command has --precision and cannot compute there in the precision that is set.
    """
    from minicaffe.common import caffe
    from minicaffe.engines.engine import check_precision
    if any(param.name == "precision" for param in click.get_current_context().command.params):
        check_precision()
    if ranks.group.size > 1:
        print_ranks()
    if caffe.mode == "cpu":
        logger.info("Use CPU.")
        return
    from minicaffe import cuda
    device = cuda.current()
    logger.info("Use GPU with device ID %d", device.index)
    logger.info("GPU %d: %s", device.index, device.name)
    context = click.get_current_context()
    if context.meta["device"] == "sim" and context.get_parameter_source("device") is ParameterSource.COMMANDLINE:
        notify("the simulated GPU checks every access and is some 100 times slower than the CPU: for learning and tests")
