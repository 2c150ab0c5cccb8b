"""``minicaffe test``: score the weights of a net (Caffe tools/caffe.cpp, test)."""

import logging

import click

from minicaffe.cli import bars, options, ranks, training_file
from minicaffe.errors import ConfigError
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2
from minicaffe.solver.detection import VERSIONS, DetectionOutputs
from minicaffe.solver.report import OutputMeans, RecordCounts, output_records, run_batches

logger = logging.getLogger("minicaffe.cli")


@click.command(cls=options.CaffeCommand)
@click.argument("file", required=False)
@click.option("--model", metavar="FILE", help="FILE in Caffe's way.")
@click.option("--weights", required=True, metavar="FILE", help="A .caffemodel, or HDF5.")
@click.option("--iterations", type=click.IntRange(min=1), help="Batches to run; by default so many that each record of the "
              "test data counts once, or 50 where their number is not known.")
@click.option("--ap-version", type=click.Choice(VERSIONS), default=VERSIONS[0], show_default=True,
              help="How precision is computed, where the net ends in DetectionEvaluate.")
@options.whole_net_options
def test(file, model, weights, iterations, ap_version, level, stage):
    """Run the net of FILE with its test data and print the means of its outputs, or mean average precisions of detections.

    Processes that mpiexec started divide the batches, and get what one gets.
    """
    file = options.one_file(file, model, "--model", "net")
    definition = read_net(file, caffe_pb2.TEST, level, stage, options.net_options()["skip_unknown_fields"])
    options.log_device()
    with options.suggests_data_command():
        net = Net(definition, **options.net_options())
    net.copy_from(weights)
    if net.input_blobs:
        raise ConfigError(f"nothing fills its input '{net.input_blobs[0].name}', and a test would score zeros; give the net that "
                          "reads test data, or score pictures by minicaffe classify", file=file)
    data = RecordCounts.of(net)
    training_file.report_records("test" if iterations is None else "--iterations", data, iterations)
    whole = data if iterations is None and data.records and not data.why else None
    if iterations is None:
        iterations = data.batches if data.records else training_file.DEFAULT_TEST_ITER
    logger.info("Running for %d iterations.", iterations)
    ends = {node.type for node in net.nodes if set(node.tops) & set(net.output_blobs)}
    finds = ends == {"DetectionEvaluate"}
    means = OutputMeans(net)
    if finds:
        means = DetectionOutputs(net, caffe_pb2.SolverParameter(ap_version=ap_version, show_per_class_result=True))
    loss = weight = 0.0
    records = whole.records if whole else None
    with bars.progress() as report:
        for i, (batch_loss, values) in enumerate(run_batches(net, iterations, ranks.group(), records=records)):
            share = whole.share(i) if whole else 1.0
            loss += batch_loss * share
            weight += share
            means.add(values, share)
            for record in output_records(net, values) if logger.isEnabledFor(logging.INFO) and not finds else ():
                logger.info("Batch %d, %s = %g", i, record["name"], record["value"])
            report("testing", i + 1, iterations)
    for line in (f"Loss: {loss / weight:g}", *map(options.output_text, means.records())):
        logger.info("%s", line)
        click.echo(line)
