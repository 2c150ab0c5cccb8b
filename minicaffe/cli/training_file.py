"""The solver of ``minicaffe train FILE``: read from a solver file, or made for a net; and its batch sizes."""

import contextlib
import logging
import os
import warnings

from minicaffe.cli.options import notify
from minicaffe.common import caffe
from minicaffe.errors import ConfigError, Error
from minicaffe.layers.data.data import count_records
from minicaffe.net.definitions import filter_layers, with_batch_size
from minicaffe.proto import caffe_pb2
from minicaffe.proto.upgrade import load
from minicaffe.solver import solver_class

MAX_ITER, DISPLAY, TEST_INTERVAL = 1500, 100, 500  # of a solver made here: about 25 s for LeNet on two cores
DEFAULT_TEST_ITER = 50  # where the size of the test data is not known; as in `caffe test`


def read_solver(path, about, max_iter=MAX_ITER, test_batch_size=None, tests=0):
    """Return the SolverParameter of a solver's prototxt, or `default_solver` of a net's; and a dict of arguments of `build_solver`.

    `about` is `minicaffe.cli.options.net_options()`. The dict has `file` and `positions` of a solver's prototxt; of a net's it has
    `net_files`, which are already read, and `own_fields`: the command sets all fields itself, so their paths are trusted.
    """
    definition = load(path, about["skip_unknown_fields"])
    if isinstance(definition.param, caffe_pb2.SolverParameter):
        return definition.param, {"file": path, "positions": definition.positions}
    with caffe.trusting(about["trusted"]):  # the test data are opened and counted
        param = default_solver(definition.param, path, max_iter, test_batch_size, tests, definition.positions)
    return param, {"net_files": {path: definition}, "own_fields": caffe_pb2.SolverParameter.DESCRIPTOR.fields_by_name}


def default_solver(net, path, max_iter=MAX_ITER, test_batch_size=None, tests=0, positions=None):
    """Return the SolverParameter that trains `net`, read from `path`: SGD, with tests of all data if the net has a TEST phase.

    `test_batch_size` is that of the test net if not as the file says. The training has at least `tests` tests.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ConfigError("its name is not UTF-8, and a solver, a prototxt, names its net; rename it", file=path) from None
    max_iter = max(1, max_iter)
    param = caffe_pb2.SolverParameter(
        net=path, type="SGD", base_lr=0.01, lr_policy="inv", gamma=1e-4, power=0.75, momentum=0.9, weight_decay=5e-4,
        max_iter=max_iter, display=min(DISPLAY, max(1, max_iter // 20)), snapshot_prefix=os.path.splitext(path)[0],
        solver_mode=caffe_pb2.SolverParameter.CPU)
    train, test = ([layer.param for layer in filter_layers(net.layer, caffe_pb2.NetState(phase=phase), path, positions)]
                   for phase in (caffe_pb2.TRAIN, caffe_pb2.TEST))
    if test != train:
        param.test_iter.append(DEFAULT_TEST_ITER)
        for layer in test:
            size = test_batch_size or layer.data_param.batch_size
            if layer.type in ("Data", "AnnotatedData") and size:
                with contextlib.suppress(Error):    # the layer raises a complete error later
                    param.test_iter[0] = -(-count_records(layer.data_param) // size)    # one test takes all records
                break
        # A divisor, so that the training ends with a test; with `tests` only if a number near them is one.
        usual, tests = max(1, max_iter // TEST_INTERVAL), min(tests, max_iter)
        counts = range(usual, 0, -1) if tests <= usual else range(tests, 2 * tests)
        param.test_interval = max_iter // next((n for n in counts if n >= tests and max_iter % n == 0), max(tests, usual))
    return param


BATCH_OPTIONS = {caffe_pb2.TRAIN: "--batch-size", caffe_pb2.TEST: "--test-batch-size"}


def build_solver(param, file=None, positions=None, batch_sizes=None, divide_by=1, changes=(), **options):
    """Return the solver of ``minicaffe train``, with the options of `minicaffe.solver.solver.Solver`.

    `batch_sizes` has by phase the size that --batch-size or --test-batch-size gives the data layers, or None. `divide_by` divides
    the batches of the train net among ranks, and `changes` are functions of add-ons that change its definition in place:
    ``change(solver, net_param, file, positions)``.
    """
    base, sizes = solver_class(param, file=file, positions=positions), batch_sizes or {}
    if not any(sizes.values()) and divide_by == 1 and not changes:
        return base(param, file=file, positions=positions, **options)

    def make_net(self, net_param, **net_options):       # the solver's, for each of its nets
        phase, where = net_param.state.phase, (net_options.get("file"), net_options.get("positions"))
        if size := sizes.get(phase):
            set_batch_size(net_param, size, BATCH_OPTIONS[phase])
        if phase == caffe_pb2.TRAIN and divide_by > 1:
            divide_batch_size(net_param, divide_by, *where)
        for change in changes if phase == caffe_pb2.TRAIN else ():
            change(self, net_param, *where)
        return base.make_net(self, net_param, **net_options)

    # Solver states store the name of the class.
    return type(base.__name__, (base,), {"make_net": make_net})(param, file=file, positions=positions, **options)


@contextlib.contextmanager
def trial():
    """Within the block build or run a net that is not trained: without a log, and without random numbers of the training."""
    logger, generator = logging.getLogger("minicaffe"), caffe.generator
    level, seed, offset = logger.level, generator.seed, generator.offset
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)
        generator.seed, generator.offset = seed, offset


def report_records(name, data, batches=None):
    """Report how a test counts the records of `data`, a RecordCounts.

    `batches` is their given number, None if all records are tested; `name` is the test, or the option or field that gives
    `batches`, such as ``test_iter``. `data.why` is the reason why the last batch cannot be smaller, "" if it can.
    """
    if data.records is None:
        if batches is None:
            notify(f"{name}: {data.why}, so {DEFAULT_TEST_ITER} batches are tested")
        return
    size, records = data.size, data.records
    if batches is None:
        last = f", the last of {records % size}" if records % size and not data.why else ""
        once = f", {data.batches * size - records} of them twice: {data.why}" if records % size and data.why else ", each once"
        notify(f"{name}: {records} records{once}, in {data.batches} batch{'es' * (data.batches != 1)} of {size}{last}")
    elif batches and batches * size < records:
        notify(f"{name}: {batches} batches of {size} are {batches * size} of the {records} records of the test data; the others "
               "are left out of a test, and the next one begins with them")
    elif batches * size > records:
        notify(f"{name}: {batches} batches of {size} are {batches * size} records, and the test data hold {records}: they begin "
             "again, so some may count more often than others")


def set_batch_size(net_param, size, option="--batch-size"):
    """Set `batch_size` of all data layers of a net. Raises ConfigError, which names `option`, if no layer has one."""
    found = [param for layer in net_param.layer for _, param in with_batch_size(layer)]
    for param in found:
        param.batch_size = size
    if not found:
        raise ConfigError(f"cannot be {size}: no layer of the net has a batch_size", field=option)


def divide_batch_size(net_param, count, file=None, positions=None):
    """Divide `batch_size` by `count`, of the data layers that the net has in its state; others are left as they are.

    Raises ConfigError if no layer has one, or it does not divide.
    """
    found = [(definition, field, param) for definition in filter_layers(net_param.layer, net_param.state, file, positions)
             for field, param in with_batch_size(definition.param)]
    for definition, field, param in found:
        size, rest = divmod(param.batch_size, count)
        if rest:
            raise ConfigError(f"must be a multiple of {count}, the number of processes among which --global-batch divides it, got "
                              f"{param.batch_size}", layer=definition.param.name, layer_type=definition.param.type,
                              field=f"{field}.batch_size", file=file, line=definition.line)
        param.batch_size = size
    if not found:
        raise ConfigError("divides a batch_size, and no layer of the net has one; leave the option out and divide the data",
                          field="--global-batch")
