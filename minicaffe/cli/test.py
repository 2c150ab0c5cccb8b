"""``minicaffe test``: score the weights of a net (Caffe tools/caffe.cpp, test).

Different from Caffe: each record counts once. Add-ons give it options: modules with `PARAMS`, ``check_options(asked, force)``,
which returns whether they evaluate, and ``Evaluation(net, file, asked)``, which gets the values of `blobs` in each batch.
"""

import logging

import click

from minicaffe.cli import bars, options, ranks, training_file
from minicaffe.cli.inputs import json_bytes
from minicaffe.cli.picture_nets import open_data_net
from minicaffe.cli.records import finite_values
from minicaffe.proto import caffe_pb2
from minicaffe.proto.atomic import write_bytes
from minicaffe.solver.report import OutputMeans, RecordCounts, evaluation_of, output_records, output_text, run_batches

logger = logging.getLogger("minicaffe.cli")
VERSIONS = "Integral", "MaxIntegral", "11point"     # of average precision


@click.command(cls=options.CaffeCommand)
@click.argument("file", required=False)
@click.option("--model", metavar="FILE", help="FILE, as an option like Caffe's.")
@click.option("--weights", required=True, metavar="FILE", help="A .caffemodel, or HDF5.")
@click.option("--iterations", type=click.IntRange(min=1), help="Batches to run; by default so many that each record of the "
              "test data counts once, or 50 where their number is not known.")
@click.option("--json", "json_path", metavar="FILE", help="Write the result as JSON, with all that the other options print.")
@click.option("--ap-version", type=click.Choice(VERSIONS), default=VERSIONS[0], show_default=True,
              help="How precision is computed, where the net ends in DetectionEvaluate.")
@options.force
@options.whole_net_options
def test(file, model, weights, iterations, ap_version, json_path, force, level, stage, **asked):
    """Run the net of FILE with its test data and print the means of its outputs, or mean average precisions of detections.

    Processes that mpiexec started divide the batches, and the result is that of one process.
    """
    file = options.one_file(file, model, "--model", "net")
    options.check_outputs(json_path, force=force)
    evaluates = [each for each in click.get_current_context().command.modules if each.check_options(asked, force)]
    options.log_device()
    # With an evaluation there is no plan: blobs from the middle of the net are read when it has run.
    net = open_data_net(file, weights, (level, stage), "and a test would score zeros; give the net that reads test data, or score "
                        "pictures by minicaffe classify", **({"plan": None} if evaluates else {}))
    evaluation = evaluates[0].Evaluation(net, file, asked) if evaluates else None
    data = RecordCounts.of(net)     # `records` is None if not known; `why`: the reason why each record cannot count once
    training_file.report_records("test" if iterations is None else "--iterations", data, iterations)
    whole = data if iterations is None and data.records and not data.why else None
    left = data.records if iterations is None else None     # records that no batch has given; None: all count
    if iterations is None:
        iterations = data.batches if data.records else training_file.DEFAULT_TEST_ITER
    logger.info("Running for %d iterations.", iterations)
    kind = evaluation_of(net)       # OutputMeans, or another class for detections
    finds = kind is not OutputMeans
    means = kind(net, caffe_pb2.SolverParameter(ap_version=ap_version, show_per_class_result=True)) if finds else OutputMeans(net)
    records = whole.records if whole else None
    outputs, blobs = len(net.output_blobs), None if evaluation is None else [*net.output_blobs, *evaluation.blobs]
    with bars.progress() as report:
        for i, (loss, values, counted) in enumerate(run_batches(net, iterations, ranks.group, records=records, blobs=blobs)):
            if not values and blobs:    # of a rank other than 0
                continue
            # `share`: the batch's size as a fraction of a full one; `counted`: the part of it that each output is a mean of
            means.add(values[:outputs], whole.share(i) if whole else 1.0, counted[:outputs], loss)
            if evaluation is not None:
                left = evaluation.add(values[outputs:], left)
            for record in output_records(net, values[:outputs]) if logger.isEnabledFor(logging.INFO) and not finds else ():
                logger.info("Batch %d, %s = %g", i, record["name"], record["value"])
            report("testing", i + 1, iterations)
    if ranks.group.rank != 0:
        return
    for line in (f"Loss: {means.loss():g}", *map(output_text, means.records())):
        logger.info("%s", line)
        click.echo(line)
    if evaluation is not None:
        evaluation.finish(force)
    if json_path:
        result = {"net": file, "weights": weights, "batches": iterations, "records": data.records, "loss": means.loss(),
                  "outputs": means.records(), **(evaluation.json() if evaluation else {})}
        write_bytes(json_path, json_bytes(finite_values(result)))
        click.echo(f"wrote {json_path}")
