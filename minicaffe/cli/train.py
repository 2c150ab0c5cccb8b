"""``minicaffe train``: train a net, with a solver file or without (Caffe tools/caffe.cpp, train).

Different from Caffe: FILE may be a net, every field of the solver can be set by an option, and there is a live display. Add-ons
give it options: modules with `PARAMS`, ``least_tests(given)`` of a training made for a net, ``change_of_net(given, param)``, which
returns what changes train nets or None, and ``prepare(solver, given)``.
"""

import functools
import logging
import os
import shlex
import signal
import sys

import click

from minicaffe import cuda
from minicaffe.cli import earlier_files, log, options, ranks, solver_options, training_file
from minicaffe.cli.records import JsonLines, Result
from minicaffe.cli.signals import EFFECTS, Signals
from minicaffe.common import caffe
from minicaffe.errors import ConfigError, Error, NotFiniteError
from minicaffe.proto import caffe_pb2, text, upgrade
from minicaffe.solver import finite, snapshot
from minicaffe.solver.ranks import CARRIERS, RATE_SCALES, WIRES
from minicaffe.solver.report import RecordCounts, batch_size

logger = logging.getLogger("minicaffe.cli")

RANK_OPTIONS = ("global_batch", "scale_lr", "warmup", "wire", "overlap", "carrier", "sync_batch_norm", "timeout")
WATCH_INTERVAL = 100   # iterations between those that --watch measures, where there are no displays

effect = functools.partial(click.option, type=click.Choice(EFFECTS), show_default=True)


@click.command(cls=options.CaffeCommand)
@click.argument("file", required=False)
@click.option("--solver", metavar="FILE", help="FILE, as an option like Caffe's.")
@click.option("--snapshot", "state", metavar="STATE", help="Resume from this .solverstate.")
@click.option("--resume", is_flag=True, help="Resume from the newest complete snapshot; without one start at the beginning.")
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help=(
    "Keep the last N snapshots of this training; older ones are deleted when a newer one is complete."))
@click.option("--batch-size", type=options.batch_size, help="Pictures in a batch of the train net's data layers.")
@click.option("--test-batch-size", type=options.batch_size, help="Pictures in a batch of the test nets' data layers.")
@click.option("--global-batch", is_flag=True, help=(
    "Of several processes: divide the batch among them; otherwise each has one of that size."))
@click.option("--scale-lr", type=click.Choice(list(RATE_SCALES)), help=(
    "Of n processes: multiply the learning rate by n (linear) or its square root (sqrt)."))
@click.option("--warmup", type=click.IntRange(min=1), metavar="N", help=(
    "With --scale-lr: raise the rate to that in the first N iterations."))
@click.option("--wire", type=click.Choice(WIRES), default=WIRES[0], show_default=True, help=(
    "Type of the gradients that are sent between processes; bf16 halves the bytes and rounds."))
@click.option("--overlap/--no-overlap", default=None, help=(
    "Send gradients by MPI during backward or after it; the default is after it where all processes share one machine's CPU."))
@click.option("--carrier", type=click.Choice(CARRIERS), help=(
    "Transport of the gradients; the default is NCCL where each process has its own GPU and nccl4py, otherwise MPI."))
@click.option("--sync-batch-norm", is_flag=True, help=(
    "BatchNorm takes mean and variance of the batches of all processes; otherwise each process that of its own batch."))
@click.option("--timeout", type=options.Real(0), metavar="SECONDS", help=(
    "Of several processes: seconds without progress after which a stalled one is reported and all end, by default 600; "
    "0: no limit."))
@click.option("--json", "json_path", metavar="FILE", help="Write displays and tests as JSON lines; appends on resume.")
@click.option("--watch", is_flag=False, flag_value=0, type=click.IntRange(min=0), metavar="[N]", help=(
    "Measure gradients and activations of each layer every N iterations, by default at displays, for display, log and --json."))
@click.option("--force", is_flag=True, help=(
    "Overwrite log, records and snapshots of an earlier training, as Caffe does; by default they are kept under numbered "
    "names."))
@effect("--sigint-effect", default="stop", help="What Ctrl-C does.")
@effect("--sighup-effect", default="snapshot",
        help="What SIGHUP does, which is sent when the terminal is closed; with snapshot and none the training continues.")
@click.option("--nan", type=click.Choice(finite.EFFECTS), default="stop", show_default=True,
              help="What happens when parameters are no longer finite: stop ends the run with exit status 1.")
@options.whole_net_options
@click.pass_context
def train(ctx, **params):
    """Train the net of FILE, the prototxt of a solver or of a net.

    Each field of a solver is also an option, which replaces the value in the file. For a net alone a solver is made (SGD,
    momentum 0.9) and shown. Ctrl-C and SIGTERM stop after the running iteration, write a snapshot (unless the solver has
    snapshot_after_train: false) and print how to resume; the exit status is 0 after Ctrl-C, 143 after SIGTERM. A training
    continues when its terminal is closed; with --sighup-effect stop it ends.
    """
    fields, given = solver_options.given_fields(params)
    file = options.one_file(given["file"], given["solver"], "--solver", "solver or net")
    if given["state"] and (given["resume"] or "weights" in fields):
        raise click.UsageError("give --snapshot to resume or --weights to fine-tune, not both; --resume goes without --snapshot")
    if given["scale_lr"] and given["global_batch"]:
        raise click.UsageError("--global-batch keeps the total batch size, so --scale-lr must not be given")
    if given["warmup"] and not given["scale_lr"]:
        raise click.UsageError("--warmup raises the rate to that of --scale-lr; give --scale-lr, too")
    unused = options.given_options(RANK_OPTIONS)
    if unused and ranks.group.size == 1:
        logger.warning("%s: for several processes, and this one was started alone; mpiexec -n 4 minicaffe train starts four",
                       unused)
    try:
        solver = prepare(ctx, file, fields, given)
    except Error as error:
        options.suggest_data_command(error)
        name = (error.field or "").partition("[")[0]
        if name in fields and error.layer is None:  # the option is wrong, not the file
            error.file = error.line = error.column = None
            error.field = next(param.opts[0] for param in ctx.command.params if param.name == f"field_{name}")
        raise
    return run(ctx, solver, given)


for field in solver_options.FIELDS:
    train.params.append(solver_options.FieldOption(field))


def prepare(ctx, file, fields, given):
    """Return the solver of `file` with the changes of the options: `fields` of the solver, and `given`, the others by name.

    --resume sets the state in `given`. The device is chosen and logged here, too.
    """
    least_tests = max([each.least_tests(given) for each in ctx.command.modules], default=0)
    param, place = training_file.read_solver(file, options.net_options(), fields.get("max_iter", training_file.MAX_ITER),
                                             given["test_batch_size"], least_tests)
    is_net = "file" not in place
    solver_options.set_fields(param, fields)
    if "snapshot_prefix" in fields:
        upgrade.complete_prefix(param, file)
    param = upgrade.upgrade_solver(param, place.get("positions"))
    if given["resume"]:
        found = ranks.group.broadcast_from_root(snapshot.complete_states(param.snapshot_prefix))
        given["state"], newest, _ = found[-1] if found else (None, None, None)
        older = [f"; {state} has an older date" for state, iteration, _ in found if iteration > newest]
        none = f"there is no complete snapshot {param.snapshot_prefix}_iter_N, so the training starts at the beginning"
        options.notify(f"--resume: {f'from {found[-1][0]}' if found else none}" + "".join(older[-1:]))
    if given["state"]:
        param.ClearField("weights")
    if is_net and not ctx.meta["quiet"]:
        shown = "" if logger.isEnabledFor(logging.INFO) else "\n" + text.write_text(param)     # else the log has it
        click.echo(f"# {file} is a net; it is trained by this solver:{shown}", err=True)
    param.train_state.level = given["level"]
    param.train_state.stage.extend(given["stage"])
    if param.HasField("solver_mode") and param.solver_mode == caffe_pb2.SolverParameter.GPU and not ctx.meta.get("device"):
        if why := cuda.missing():
            logger.warning("%s: solver_mode: GPU: %s; the CPU trains", file, why)
        else:
            ranks.use_gpu(begin=param.device_id if param.device_id >= 0 else None)
    options.log_device()
    sizes = {caffe_pb2.TRAIN: given["batch_size"], caffe_pb2.TEST: given["test_batch_size"]}
    divide_by = ranks.group.size if given["global_batch"] else 1
    changes = [change for each in ctx.command.modules if (change := each.change_of_net(given, param)) is not None]
    place = {"own_fields": fields, "net_files": {}, **place}   # each file is read once
    solver = training_file.build_solver(param, batch_sizes=sizes, divide_by=divide_by, changes=changes, **place,
                                        **options.net_options())
    count_tests(solver, is_net and "test_iter" not in fields)
    for each in ctx.command.modules:
        each.prepare(solver, given)
    return solver


def count_tests(solver, chosen):
    """Report how many records the tests take. If test_iter was `chosen` by this command, set it so that each record counts once."""
    for i, net in enumerate(solver.test_nets):
        name = f"test net {i}" if len(solver.test_nets) > 1 else "test"
        data = RecordCounts.of(net)
        if chosen and data.records:
            solver.param.test_iter[i] = data.batches
            if not data.why:
                solver.whole_tests[i] = data
        batches = None if chosen else solver.param.test_iter[i]
        training_file.report_records(name if chosen else f"{name}: test_iter", data, batches)


def distribute(solver, given):
    """Join the solvers of all ranks (`Solver.distribute`) by the options `given`, and print batch size, rate and transport."""
    size = ranks.group.size
    solver.distribute(ranks.group.comm, carrier=given["carrier"], wire=given["wire"], overlap=given["overlap"],
                      sync_batch_norm=given["sync_batch_norm"], scale_lr=given["scale_lr"], warmup=given["warmup"] or 0,
                      timeout=600 if given["timeout"] is None else given["timeout"])
    images = batch_size(solver.net)
    batch = f"batches of {images}, {images * size} together; " if images else ""
    scale = f"times {solver.rate_scale:g}" if given["scale_lr"] else "not scaled"
    warmup = f" after {given['warmup']} iterations" if given["warmup"] else ""
    carrier = f"; gradients are sent by {solver.carrier}" if caffe.mode == "gpu" else ""
    options.notify(f"{batch}learning rate {scale}{warmup}{carrier}")


def run(ctx, solver, given):
    """Run the training with display, signals and records, print the result, and return the exit status."""
    if ranks.group.size > 1:
        distribute(solver, given)
    param = solver.param
    read = [given["file"], given["solver"], given["state"], param.net, param.train_net, *param.test_net, *param.weights]
    if param.snapshot_after_train and ranks.group.rank == 0:    # the solver checks it, too, but after the log is opened
        snapshot.check_prefix(param)
    log_path = f"{param.snapshot_prefix}.log" if param.snapshot_prefix else None
    for path, option in ((given["json_path"], "--json"), (log_path, "snapshot_prefix")):
        if path and any(other and earlier_files.is_same(path, other) for other in read):     # it would be lost
            raise ConfigError("is a file that this training reads; name another", file=path, field=option)
        if path and log_path and option.startswith("--") and os.path.realpath(path) == os.path.realpath(log_path):
            raise ConfigError("is the log of this training; name another file", file=path, field=option)
    records = display = kept = watch = None
    if log.is_terminal(sys.stderr) and not (ctx.meta["quiet"] or ctx.meta["verbose"]):
        from minicaffe.cli.display import LiveDisplay
        display = LiveDisplay()
    result = display or Result()
    result.keep = given["keep"]
    result.resumed = given["state"] is not None and earlier_files.is_same_training(given["state"], param.snapshot_prefix)
    solver.listeners.append(result)
    if ranks.group.rank == 0 and not given["force"] and not result.resumed:
        solver.listeners.append(earlier_files.EarlierSnapshots())
    overwrites = given["force"] or given["state"]   # a resumed training appends to its records and log
    if given["json_path"] and ranks.group.rank == 0:
        if not overwrites:
            earlier_files.keep_earlier_file(given["json_path"])
        records = JsonLines(given["json_path"], append=bool(given["state"]))
        solver.listeners.append(records)
    if log_path and ranks.group.rank == 0 and not earlier_files.is_same(2, log_path):     # 2> net.log
        if not overwrites:
            earlier_files.keep_earlier_file(log_path)
        kept = log.add_log_file(log_path, append=bool(given["state"]))
    if given["watch"] is not None:
        from minicaffe.inspection.watch import Watch
        interval = given["watch"] or solver.param.display or WATCH_INTERVAL
        watch = Watch(solver, interval, report_samples, keep=False)
    with Signals(given["sigint_effect"], given["sighup_effect"]) as signals:
        def draw_and_poll():
            display.tick(solver)    # here too, since a long test has no iterations
            return signals.poll()

        solver.action = signals.poll if display is None else draw_and_poll
        solver.nan = given["nan"]
        try:
            if given["state"]:
                logger.info("Resuming from %s", given["state"])
            logger.info("Starting Optimization")
            solver.solve(given["state"])
            logger.info("Optimization Done.")
        except NotFiniteError as error:
            if given["watch"] != 1:
                error.message += "; to see where it began, add --watch 1"
            if error.remedy != finite.CHECK_START:  # else the same error would follow
                state = next((one[0] for one in reversed(result.earlier + result.states) if one[1] <= error.since), given["state"])
                rate = [f"--base-lr={solver.param.base_lr / 10:g}"] if error.remedy == finite.LOWER_RATE else []
                how = "resume" if state else "no snapshot was written before, restart"
                error.message += f"; {how} with: {resume_command(ctx, state, *rate)}"
            raise
        finally:
            for listener in (watch, display, records, kept):
                if listener is not None:
                    listener.close()
            if kept is not None:
                result.log_path = None if kept.failed else log_path
    for line in result.lines(solver, functools.partial(resume_command, ctx)):
        click.echo(line)
    return 128 + signal.SIGTERM if signals.terminated else 0


def report_samples(solver, iteration, samples):
    """Log the samples of --watch, and pass them to `on_watch` of listeners: the `on_samples` of a Watch."""
    from minicaffe.inspection import watch
    logger.info("Iteration %d, watched:", iteration)
    for line in watch.lines(samples):
        logger.info("%s", line)
    solver.notify("on_watch", iteration, samples)


def resume_command(ctx, state, *options):
    """Return the command that continues from `state`, or starts a new training if that is None, with `options` besides its own."""
    start = ranks.mpiexec_words(ctx.meta.get("gpus", 0))
    gone = ("--snapshot=", "--weights=", "--resume") if state else ()
    gone += tuple(option.partition("=")[0] + "=" for option in options)
    arguments = [word for word in ctx.meta["arguments"] if not word.startswith(gone)]
    return shlex.join([*start, "minicaffe", "train", *arguments, *options, *([f"--snapshot={state}"] if state else [])])
