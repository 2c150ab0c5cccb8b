"""One test of a solver's test net: the means of its outputs over some batches, or over each record of the data once."""

import logging

from minicaffe.errors import ConfigError
from minicaffe.solver.report import OutputMeans, evaluation_of, log_outputs, run_batches

log = logging.getLogger("minicaffe.solver")


def run(solver, i, proceed):
    """Run the batches of a test of net `i`, and log the outputs.

    Returns the record that `Solver.test` returns; None if `proceed`, which is called before each round of batches, returned False.
    """
    net, whole, param = solver.test_nets[i], solver.whole_tests.get(i), solver.param
    batches = whole.batches if whole else param.test_iter[i]
    log.info("Iteration %d, Testing net (#%d)", solver.iter, i)
    means, passes = evaluation(net, param), 0
    for loss, values, counted in run_batches(net, batches, solver.group, proceed, records=whole.records if whole else None):
        means.add(values, whole.share(passes) if whole else 1.0, counted, loss)
        passes += 1
    if passes < batches:
        log.info("Test interrupted.")
        return None
    record = {"iteration": solver.iter, "net": i, "loss": None, "outputs": means.records()}
    if param.test_compute_loss and batches:
        record["loss"] = means.loss()
        log.info("Test loss: %g", record["loss"])
    log_outputs("Test", record["outputs"])
    return record


def evaluation(net, param):
    """Return what collects the outputs of a test net: means, or with ``eval_type: "detection"`` what their layer type has."""
    if param.eval_type != "detection":
        return OutputMeans(net)
    made = evaluation_of(net)
    if made is OutputMeans:
        types = ", ".join(sorted({node.type for node in net.nodes if set(node.tops) & set(net.output_blobs)}))
        raise ConfigError("is for test nets whose outputs are evaluated detections, such as those of DetectionEvaluate; the "
                          f"outputs of this one are of {types}; leave it out", field="eval_type")
    return made(net, param)
