"""The nets that a solver trains and tests, from the fields of SolverParameter (Caffe solver.cpp, InitTrainNet and InitTestNets).

Different from Caffe: nets given inline (`net_param` and its like) are upgraded as files are, and what aborted raises
ConfigError with the field.

In all functions `files` has by path the result of `upgrade.read_net_file`: a file that several nets come from is read once.
`options` are more arguments of the solver's `make_net`.
"""

import logging
import warnings

from minicaffe.common import caffe
from minicaffe.errors import ConfigError, ConfigWarning
from minicaffe.net import weights
from minicaffe.proto import caffe_pb2, upgrade
from minicaffe.proto.fields import copy_of

log = logging.getLogger("minicaffe.solver")

TRAIN_FIELDS = ("net", "net_param", "train_net", "train_net_param")


def train_net(solver, files, options):
    """Return the net to train; a ConfigWarning says if it has no loss.

    Raises ConfigError unless exactly one of net, net_param, train_net and train_net_param is given; and whatever `Net` raises.
    """
    param = solver.param
    given = [name for name in TRAIN_FIELDS if param.HasField(name)]
    if len(given) != 1:
        got = "none is given" if not given else f"{' and '.join(given)} are given"
        raise ConfigError(f"a solver needs exactly one of {', '.join(TRAIN_FIELDS)}; {got}", field=given[1] if given else "net")
    field, = given
    place = f"specified in {field}." if field.endswith("_param") else f"from {field} file: {getattr(param, field)}"
    log.info("Creating training net %s", place)
    net = _make_net(solver, field, getattr(param, field), field, caffe_pb2.TRAIN, param.train_state, files, options)
    if not any(net.loss_weights.values()):
        warnings.warn(ConfigWarning("the net has no loss in its TRAIN phase, so it learns nothing; give it a loss layer, such "
                                    "as SoftmaxWithLoss, or a layer a loss_weight; a deploy net cannot be trained",
                                    file=net.file), stacklevel=2)
    return net


def test_nets(solver, files, options):
    """Return the test nets: those of test_net_param, then test_net, then copies of net_param or net for the rest of test_iter.

    Raises ConfigError if test_iter, test_state or test_interval do not fit; and whatever `Net` raises.
    """
    param = solver.param
    count = len(param.test_iter)
    sources = [(field, value, f"{field}[{i}]") for field in ("test_net_param", "test_net")
               for i, value in enumerate(getattr(param, field))]
    shared = [(field, getattr(param, field), field) for field in ("net_param", "net") if param.HasField(field)]
    if shared and count < len(sources):
        raise ConfigError(f"needs an entry for each of the {len(sources)} test nets, got {count}", field="test_iter")
    if not shared and count != len(sources):
        raise ConfigError(f"needs exactly one entry for each of the {len(sources)} test nets, got {count}; a solver without net or "
                          "net_param tests only what test_net and test_net_param name", field="test_iter")
    if len(param.test_state) not in (0, count):
        raise ConfigError(f"give none or one for each of the {count} test nets, got {len(param.test_state)}", field="test_state")
    if count and param.test_interval <= 0:
        raise ConfigError(f"must be at least 1 where test_iter is given, got {param.test_interval}", field="test_interval")
    for i, batches in enumerate(param.test_iter):
        if batches < 0:
            raise ConfigError(f"must be at least 0, got {batches}", field=f"test_iter[{i}]")
    nets = []
    for i, (field, value, path) in enumerate(sources + shared[:1] * (count - len(sources))):
        log.info("Creating test net (#%d) specified by %s", i, field if field.endswith("_param") else f"{field} file: {value}")
        state = param.test_state[i] if param.test_state else caffe_pb2.NetState()
        nets.append(_make_net(solver, field, value, path, caffe_pb2.TEST, state, files, options))
        nets[-1].debug_info = param.debug_info
    return nets


def _make_net(solver, field, value, field_path, phase, state, files, options):
    """Return the net that `field` gives as `value`; `field_path` is the value's in the solver's file, such as ``test_net[0]``.

    `phase` is the default, the net's own state overrides it, and the solver's `state` both; stages add up. `files` has the nets
    that were read already. The program itself has set `solver.own_fields`, so their paths need no check.
    """
    if field.endswith("_param"):
        param, _ = upgrade.upgrade_net(value, solver.positions, field_path + ".")
        file, positions = solver.file, solver.positions and solver.positions.below(field_path)
    else:
        if field not in solver.own_fields:
            caffe.check_path(value, field_path, who="solver")
        if value not in files:
            files[value] = upgrade.read_net_file(value, solver.skip_unknown_fields)
        file, (param, positions) = value, files[value]
    merged = caffe_pb2.NetState(phase=phase)
    merged.MergeFrom(param.state)
    merged.MergeFrom(state)
    param = copy_of(param)
    param.state.CopyFrom(merged)
    return solver.make_net(param, file=file, positions=positions, skip_unknown_fields=solver.skip_unknown_fields, **options)


def load_weights(nets, param, own_fields=()):
    """Load the files of the `weights` field into `nets`, the train net first, and log what each took.

    An entry may list several files with commas, as Caffe's ``--weights`` does. Layers that any of the files has count as given.
    """
    loaded = []
    for i, entry in enumerate(param.weights):
        for path in map(str.strip, entry.split(",")):
            if "weights" not in own_fields:
                caffe.check_path(path, f"weights[{i}]", who="solver")
            log.info("Finetuning from %s", path)
            loaded.append([weights.load(net, path) for net in nets][0])     # the LoadReport of the train net
    for one in loaded:
        one.log_summary(given={name for other in loaded for name in other.taken})
