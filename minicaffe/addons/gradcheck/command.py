"""``minicaffe gradcheck``: the gradients that backward computes against differences of forward, layer by layer, in float64.

Caffe has this for its own tests only (test_gradient_check_util.hpp). The arithmetic is in gradient_check.py.
"""

import click
from rich.text import Text

from minicaffe.addons.gradcheck.gradient_check import ELEMENTS, SEED, STEP, THRESHOLD, double_net
from minicaffe.addons.gradcheck.gradient_check import gradcheck as check
from minicaffe.cli import bars, options
from minicaffe.cli.training_file import set_batch_size
from minicaffe.errors import ConfigError, close_matches
from minicaffe.inspection.replace_sources import disable_file_output
from minicaffe.proto import caffe_pb2

BATCH = 4   # pictures: the batch size does not change what is tested, and each element takes two runs of its layer


@click.command(cls=options.CaffeCommand)
@click.argument("file", metavar="NET", required=False)
@click.option("--model", metavar="FILE", help="NET in Caffe's way.")
@click.option("--weights", multiple=True, metavar="FILE", help="Weights to check it with; by default those of its fillers.")
@click.option("--phase", type=click.Choice(["TRAIN", "TEST"], case_sensitive=False), default="TRAIN", show_default=True)
@click.option("--batch-size", type=options.batch_size, help=f"Pictures in a batch of the data layers; by default {BATCH}.")
@click.option("--layer", "layers", multiple=True, metavar="NAME", help="Check this layer only; repeatable.")
@click.option("--whole", is_flag=True, help="Differentiate the net's loss along its parameters, through all layers at once.")
@click.option("--step", type=options.Real(0, min_open=True), default=STEP, show_default=True, help="Half the difference.")
@click.option("--threshold", type=options.Real(0, min_open=True), default=THRESHOLD, show_default=True,
              help="The relative difference allowed.")
@click.option("--elements", default=ELEMENTS, show_default=True, type=click.IntRange(min=0), help="Of each array; 0: all.")
@click.option("--seed", default=SEED, show_default=True, type=click.IntRange(0, 2**64 - 1),
              help="Of fillers, inputs and drawn elements.")
@options.net_state
@options.threads
@options.model_file
@options.common
def gradcheck(file, model, weights, phase, batch_size, layers, whole, level, stage, **rule):
    """Compare the gradients of NET with differences, in float64, and show the worst element of each parameter and bottom.

    The exit status is 1 if one differs by more than the threshold, or if nothing could be compared.
    """
    file = options.one_file(file, model, "--model", "net")

    def prepare(param):
        for one in param.layer:
            disable_file_output(one)
        try:
            set_batch_size(param, batch_size or BATCH)
        except ConfigError:     # its inputs have the sizes that it gives
            if batch_size:
                raise

    options.log_device()
    with options.suggests_data_command():
        net = double_net(file, caffe_pb2.Phase.Value(phase.upper()), level=level, stages=stage, weights=weights, seed=rule["seed"],
                         prepare=prepare, **options.net_options())
        for name in set(layers) - set(net.layer_names):
            raise ConfigError(f"the net has no layer '{name}'{close_matches(name, net.layer_names)}", field="--layer", file=file)
        report = check(net, whole=whole, layers=layers or None, **rule)
    show(report)
    return 0 if report.ok else 1


def show(report):
    """Print a Report: a table, the arrays that were not checked and why, and one line with the sums."""
    console = bars.table_console()
    table = bars.grid("layer", "array", "shape", "compared", "worst at", "backward", "differences", "relative", "")
    for c in report.comparisons:
        at = ",".join(map(str, c.index)) if c.index is not None else "-"
        table.add_row(c.layer, Text(c.what), "x".join(map(str, c.shape)), str(c.checked), at, f"{c.analytic:.5g}",
                      f"{c.numerical:.5g}", f"{c.relative:.1e}", Text("ok", "green") if c.ok else Text("WRONG", "bold red"))
    console.print(table)
    for layer, kind, what, reason in report.not_checked:
        console.print(f"not checked: {layer} ({kind}){f': {what}' if what else ''}: {reason}", markup=False)
    kinks = sum(c.kinks for c in report.comparisons)
    count = sum(c.checked for c in report.comparisons)
    wrong = f"{len(report.failed)} of {len(report.comparisons)} arrays differ" if report.failed else "all agree"
    console.print(f"{count} elements of {len(report.comparisons)} arrays compared, {kinks} at or near a kink: "
                  f"{wrong if report.ok or report.failed else 'nothing to compare'}", markup=False)
