"""Lines of the log for `debug_info`: the mean absolute value of every blob as it is computed (Caffe net.cpp, *DebugInfo)."""

import logging
import math

log = logging.getLogger("minicaffe.net")


def log_forward(node):
    """Log the data of the tops and parameters of a layer that has run."""
    for blob in node.tops:
        log.info("    [Forward] Layer %s, top blob %s data: %g", node.name, blob.name, _mean(blob, blob.asum_data()))
    names = dict(enumerate(spec.name for spec in node.param.param))
    for i, blob in enumerate(node.blobs):
        log.info("    [Forward] Layer %s, param blob %s data: %g", node.name, names.get(i) or i, _mean(blob, blob.asum_data()))


def log_backward(node):
    """Log the gradients that a layer has computed."""
    for blob, needs in zip(node.bottoms, node.bottom_needs):
        if needs:
            log.info("    [Backward] Layer %s, bottom blob %s diff: %g", node.name, blob.name, _mean(blob, blob.asum_diff()))
    for i, blob in enumerate(node.blobs):
        if node.layer.param_propagate_down[i]:
            log.info("    [Backward] Layer %s, param blob %d diff: %g", node.name, i, _mean(blob, blob.asum_diff()))


def log_norms(params):
    """Log the norms of all parameters and their gradients."""
    log.error("    [Backward] All net params (data, diff): L1 norm = (%g, %g); L2 norm = (%g, %g)",
              sum(b.asum_data() for b in params), sum(b.asum_diff() for b in params),
              math.sqrt(sum(b.sumsq_data() for b in params)), math.sqrt(sum(b.sumsq_diff() for b in params)))


def _mean(blob, total):
    """Return a sum divided by the count of a blob; 0 for an empty one."""
    return total / blob.count if blob.count else 0.0
