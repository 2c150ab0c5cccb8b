"""``minicaffe time``: how long each layer of a net takes, forward and backward (Caffe tools/caffe.cpp, time).

Different from Caffe: layers without parameters that no gradient passes are not run backward (there they return at once),
and the result is a table on standard output; Caffe's own lines go to the log. Layers that another computes, too, take no time.
"""

import logging
import time as clock

import click

from minicaffe import cuda
from minicaffe.cli import options
from minicaffe.common import caffe
from minicaffe.memory.reporter import record
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2

logger = logging.getLogger("minicaffe.cli")


@click.command(cls=options.CaffeCommand)
@click.argument("file", required=False)
@click.option("--model", metavar="FILE", help="FILE in Caffe's way.")
@click.option("--iterations", type=click.IntRange(min=1), default=50, show_default=True, help="Rounds to measure.")
@click.option("--phase", type=click.Choice(["TRAIN", "TEST"], case_sensitive=False), default="TRAIN", show_default=True)
@click.option("--weights", hidden=True, expose_value=False)  # Caffe takes it and does not read it
@options.net_state
@options.computing
def time(file, model, iterations, phase, level, stage):
    """Run the net of FILE forward and backward and print the mean times of its layers."""
    file = options.one_file(file, model, "--model", "net")
    definition = read_net(file, caffe_pb2.Phase.Value(phase.upper()), level, stage, options.net_options()["skip_unknown_fields"])
    options.tell_mode()
    with options.naming_data_command():
        net = Net(definition, **options.net_options())
        forward, backward, total = measure(net, iterations)
    log_times(net, forward, backward, total, iterations)
    print_table(net, forward, backward)


def measure(net, iterations):
    """Run `net` once to warm up and `iterations` times by the clock.

    Return the mean milliseconds of each layer forward, a list, those backward, and the milliseconds of all rounds together.
    """
    last = len(net.layers) - 1
    logger.info("Performing Forward")
    logger.info("Initial loss: %g", net.forward_from_to(0, last))
    logger.info("Performing Backward")
    run_backward(net)
    times = LayerTimes(net)
    logger.info("*** Benchmark begins ***")
    logger.info("Testing for %d iterations.", iterations)
    begin = clock.perf_counter()
    with record(times):
        for round_ in range(1, iterations + 1):
            started = clock.perf_counter()
            net.forward_from_to(0, last)
            run_backward(net)
            logger.info("Iteration: %d forward-backward time: %d ms.", round_, 1000 * (clock.perf_counter() - started))
    total = 1000 * (clock.perf_counter() - begin)
    return *([1000 * t / iterations for t in times.seconds[kind]] for kind in ("forward", "backward")), total


class LayerTimes:
    """Adds up the seconds of each layer, forward and backward, from the events of its begin and end."""

    def __init__(self, net):
        self.numbers = {id(node): i for i, node in enumerate(net.nodes)}
        self.seconds = {kind: [0.0] * len(net.nodes) for kind in ("forward", "backward")}

    def append(self, event):
        """Take an event."""
        if event.kind in ("begin", "end") and event.address in self.numbers:
            wait()
            if event.kind == "begin":
                self.began = clock.perf_counter()
            else:
                self.seconds[event.detail.split()[0]][self.numbers[event.address]] += clock.perf_counter() - self.began


def run_backward(net):
    """Run the net backward, and layers with parameters that the net itself would skip (a deploy net has no loss)."""
    net.backward_from_to(len(net.nodes) - 1, 0)
    fused = {name for names in net.fused() for name in names}
    for i, node in reversed(list(enumerate(net.nodes))):
        if node.blobs and not node.needs_backward and node.name not in fused:
            net.backward_layer(i)
    wait()


def wait():
    """Wait until a GPU has done what it was given."""
    if caffe.mode == "gpu":
        cuda.current().synchronize()


def log_times(net, forward, backward, total, iterations):
    """Write Caffe's lines to the log."""
    logger.info("Average time per layer: ")
    for name, there, back in zip(net.layer_names, forward, backward, strict=True):
        logger.info("%10s\tforward: %g ms.", name, there)
        logger.info("%10s\tbackward: %g ms.", name, back)
    logger.info("Average Forward pass: %g ms.", sum(forward))
    logger.info("Average Backward pass: %g ms.", sum(backward))
    logger.info("Average Forward-Backward: %g ms.", total / iterations)
    logger.info("Total Time: %d ms.", total)
    logger.info("*** Benchmark ends ***")


def print_table(net, forward, backward):
    """Print a line for each layer, with its engine where engines are asked, and one for the net on standard output."""
    from rich.console import Console
    from rich.table import Table
    console = Console(highlight=False)
    whole = sum(forward) + sum(backward)
    table = Table("layer", "type", "engine", box=None, header_style="bold")
    asked = net.engines()
    engines = {row["layer"]: row["engine"] or "" for row in asked}
    engines.update({name: f"with {row['layer']}" for row in asked for name in row["fused"]})
    for column in ("forward ms", "backward ms", "share"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, layer, there, back in zip(net.layer_names, net.layers, forward, backward, strict=True):
        share = (there + back) / whole if whole else 0.0
        table.add_row(name, layer.type, engines.get(name, ""), f"{there:.3f}", f"{back:.3f}", f"{share:.1%}",
                      style="bold" if share > 0.2 else None)
    table.add_row("all", "", "", f"{sum(forward):.3f}", f"{sum(backward):.3f}", "100.0%", style="bold")
    console.print(table)
    for row in asked:
        for engine, reason in row["refused"].items():
            console.print(f"{row['layer']}: engine {engine} refused: {reason}", markup=False)
