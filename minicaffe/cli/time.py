"""``minicaffe time``: how long each step of a net takes, forward and backward (Caffe tools/caffe.cpp, time).

Different from Caffe: layers without parameters that need no gradient are not run backward (in Caffe they return at once). The
result is a table on standard output; Caffe's own lines are in the log, where a layer fused into another takes no time.
"""

import json
import logging

import click

from minicaffe.cli import bars, options
from minicaffe.inspection.timing import measure
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.atomic import write_bytes

logger = logging.getLogger("minicaffe.cli")


@click.command(cls=options.CaffeCommand)
@click.argument("file", required=False)
@click.option("--model", metavar="FILE", help="FILE, as an option like Caffe's.")
@click.option("--iterations", type=click.IntRange(min=1), default=50, show_default=True, help="Rounds to measure.")
@click.option("--phase", type=click.Choice(["TRAIN", "TEST"], case_sensitive=False), default="TRAIN", show_default=True)
@click.option("--weights", hidden=True, expose_value=False)  # Caffe takes it and does not read it
@click.option("--json", "as_json", metavar="FILE", help="Also write the times to FILE.")
@options.force
@options.net_state
@options.run_options
def time(file, model, iterations, phase, as_json, force, level, stage):
    """Run the net of FILE forward and backward and print for each step its median time, and how fast it moves bytes and computes.

    A step is a layer, or layers that are computed as one. On a device its time is that of the device, without gaps between steps.
    """
    options.check_outputs(as_json, force=force)
    file = options.one_file(file, model, "--model", "net")
    definition = read_net(file, caffe_pb2.Phase.Value(phase.upper()), level, stage, options.net_options()["skip_unknown_fields"])
    options.log_device()
    with options.suggests_data_command():
        net = Net(definition, **options.net_options())
        logger.info("Performing Forward")
        times = measure(net, iterations, lambda loss: begin(loss, iterations), lambda number, ms: logger.info(
            "Iteration: %d forward-backward time: %d ms.", number, ms))
    log_times(net, times, iterations)
    if as_json:
        write_bytes(as_json, json.dumps(times.as_dict()).encode())
    print_times(net, times)


def begin(loss, iterations):
    """Log Caffe's lines between the first forward and the first round, for parsers of its log; `loss` is that of this forward."""
    logger.info("Initial loss: %g", loss)
    logger.info("Performing Backward")
    logger.info("*** Benchmark begins ***")
    logger.info("Testing for %d iterations.", iterations)


def log_times(net, times, iterations):
    """Log Caffe's lines after the rounds, with means, not medians as the table has."""
    forward, backward = times.by_layer(len(net.nodes))
    logger.info("Average time per layer: ")
    for name, there, back in zip(net.layer_names, forward, backward, strict=True):
        logger.info("%10s\tforward: %g ms.", name, there)
        logger.info("%10s\tbackward: %g ms.", name, back)
    logger.info("Average Forward pass: %g ms.", sum(forward))
    logger.info("Average Backward pass: %g ms.", sum(backward))
    logger.info("Average Forward-Backward: %g ms.", times.total_ms / iterations)
    logger.info("Total Time: %d ms.", times.total_ms)
    logger.info("*** Benchmark ends ***")


def print_times(net, times):
    """Print the table: a line for each StepTime of `times`, and the sums of both directions."""
    from rich.table import Table
    console = bars.table_console()
    verbose = click.get_current_context().meta.get("verbose")
    whole = sum(step.ms for step in times.steps)
    blank = ("", "") if verbose else ("",)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("layer", "type", *(["engine"] if verbose else [])):
        table.add_column(column, overflow="fold")
    for column in ("ms", "share", "GB/s", "GFLOP/s"):
        table.add_column(column, justify="right", no_wrap=True)
    for direction in "forward", "backward":
        steps = [step for step in times.steps if step.direction == direction]
        if steps:
            table.add_row(direction, *blank, f"{sum(step.ms for step in steps):.3f}", style="bold")
        for step in steps:
            share = step.ms / whole if whole else 0.0
            table.add_row(" + ".join(step.layers), step.types[0], *([step.engine or ""] if verbose else []),
                          f"{step.ms:.3f}", f"{share:.1%}",
                          *("" if speed is None else f"{speed:.1f}" for speed in (step.gb_s, step.gflop_s)),
                          style="bold" if share > 0.2 else None)
    table.add_row("all", *blank, f"{whole:.3f}", "100.0%", style="bold")
    console.print(table)
    if times.device == "sim":
        console.print("the figures are those of the simulated device, which is no GPU", soft_wrap=True)
    for row in net.engines() if verbose else ():
        for engine, reason in row["refused"].items():
            console.print(f"{row['layer']}: engine {engine} refused: {reason}")
