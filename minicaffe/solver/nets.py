"""Which nets a solver trains and tests, from the fields of SolverParameter (Caffe solver.cpp, InitTrainNet and InitTestNets).

Different from Caffe: nets given inline (`net_param` and its like) are upgraded as files are, and what aborted raises
ConfigError with the field.
"""

import logging
import os
import warnings
from collections import namedtuple

from minicaffe.common import caffe
from minicaffe.errors import ConfigError, ConfigWarning
from minicaffe.net import weights
from minicaffe.proto import caffe_pb2, upgrade

log = logging.getLogger("minicaffe.solver")

Source = namedtuple("Source", "param file positions words")
Source.__doc__ = "A NetParameter ready for its state, where it is, and what Caffe's log calls the place."

TRAIN_FIELDS = ("net", "net_param", "train_net", "train_net_param")


class InlinePositions:
    """The lines of a net inside a solver file, below the field `path`."""

    def __init__(self, positions, path):
        self.positions = positions
        self.path = path

    def place_of(self, path):
        """Return line and column of a path of the net; None twice if it is unknown."""
        return self.positions.place_of(f"{self.path}.{path}")

    def layer_line(self, index):
        """Return the line where layer `index` begins; None if unknown."""
        return self.positions.line(f"{self.path}.layer[{index}]")


def build_train_net(param, file, positions, make_net, skip_unknown_fields=False, own_fields=()):
    """Return the net to train, made by ``make_net(net_param, file=, positions=, skip_unknown_fields=)``.

    Parameters
    ----------
    skip_unknown_fields, own_fields
        As of `minicaffe.solver.solver.Solver`.

    Raises
    ------
    ConfigError
        Unless exactly one of net, net_param, train_net and train_net_param is given; and whatever `Net` raises.

    Warns
    -----
    ConfigWarning
        If the net has no loss.
    """
    given = [name for name in TRAIN_FIELDS if param.HasField(name)]
    if len(given) != 1:
        got = "none is given" if not given else f"{' and '.join(given)} are given"
        raise ConfigError(f"a solver needs exactly one of {', '.join(TRAIN_FIELDS)}; {got}", field=given[1] if given else "net")
    source = _source(param, given[0], None, file, positions, skip_unknown_fields, own_fields)
    place = f"specified in {given[0]}." if given[0].endswith("_param") else f"from {source.words}"
    log.info("Creating training net %s", place)
    net = _build(source, caffe_pb2.TRAIN, param.train_state, make_net, skip_unknown_fields)
    if not any(net.loss_weights.values()):
        warnings.warn(ConfigWarning("the net has no loss in its TRAIN phase, so it learns nothing; give it a loss layer, such as "
                                    "SoftmaxWithLoss, or a layer a loss_weight; a deploy net cannot be trained", file=net.file),
                      stacklevel=2)
    return net


def build_test_nets(param, file, positions, make_net, skip_unknown_fields=False, own_fields=()):
    """Return the test nets: those of test_net_param, then test_net, then copies of net_param or net for the rest of test_iter.

    The parameters are those of `build_train_net`.

    Raises
    ------
    ConfigError
        If test_iter, test_state or test_interval do not fit; and whatever `Net` raises.
    """
    count = len(param.test_iter)
    explicit = len(param.test_net_param) + len(param.test_net)
    shared = [name for name in ("net_param", "net") if param.HasField(name)]
    if shared and count < explicit:
        raise ConfigError(f"needs an entry for each of the {explicit} test nets, got {count}", field="test_iter")
    if not shared and count != explicit:
        raise ConfigError(f"needs exactly one entry for each of the {explicit} test nets, got {count}; a solver without net or "
                          "net_param tests only what test_net and test_net_param name", field="test_iter")
    if len(param.test_state) not in (0, count):
        raise ConfigError(f"give none or one for each of the {count} test nets, got {len(param.test_state)}",
                          field="test_state")
    if count and param.test_interval <= 0:
        raise ConfigError(f"must be at least 1 where test_iter is given, got {param.test_interval}", field="test_interval")
    for i, batches in enumerate(param.test_iter):
        if batches < 0:
            raise ConfigError(f"must be at least 0, got {batches}", field=f"test_iter[{i}]")
    fields = [(name, i) for name in ("test_net_param", "test_net") for i in range(len(getattr(param, name)))]
    fields += [(shared[0], None)] if count > explicit else []
    sources = [_source(param, name, i, file, positions, skip_unknown_fields, own_fields) for name, i in fields]
    sources += sources[-1:] * (count - len(sources))
    nets = []
    for i, source in enumerate(sources):
        log.info("Creating test net (#%d) specified by %s", i, source.words)
        state = param.test_state[i] if param.test_state else caffe_pb2.NetState()
        nets.append(_build(source, caffe_pb2.TEST, state, make_net, skip_unknown_fields))
        nets[-1].debug_info = param.debug_info
    return nets


def load_weights(nets, param, own_fields=()):
    """Load the files of the `weights` field into `nets`, the train net first; an entry may list several with commas."""
    loaded = []
    for i, entry in enumerate(param.weights):
        for path in map(str.strip, entry.split(",")):
            if "weights" not in own_fields:
                caffe.check_path(path, f"weights[{i}]", who="solver")
            log.info("Finetuning from %s", path)
            loaded.append([weights.load(net, path) for net in nets][0])
    for one in loaded:
        one.tell(given={name for other in loaded for name in other.taken})


def _source(param, field, index, file, positions, skip_unknown_fields, own_fields):
    """Read and upgrade the net that `field` (entry `index` of a repeated one) gives."""
    value = getattr(param, field) if index is None else getattr(param, field)[index]
    if not field.endswith("_param"):
        if field not in own_fields:
            caffe.check_path(value, field if index is None else f"{field}[{index}]", who="solver")
        net_param, net_positions = upgrade.read_net_file(value, skip_unknown_fields)
        return Source(net_param, value, net_positions, f"{field} file: {value}")
    path = field if index is None else f"{field}[{index}]"
    net_param, _ = upgrade.upgrade_net(value, positions, path + ".")
    return Source(net_param, file, InlinePositions(positions, path) if positions is not None else None, field)


def _build(source, phase, state, make_net, skip_unknown_fields):
    """Build a net: `phase` is the default, the net's own state overrides it, the solver's `state` both."""
    merged = caffe_pb2.NetState(phase=phase)
    merged.MergeFrom(source.param.state)
    merged.MergeFrom(state)
    net_param = caffe_pb2.NetParameter()
    net_param.CopyFrom(source.param)
    net_param.state.CopyFrom(merged)
    file = os.fspath(source.file) if source.file is not None else None
    return make_net(net_param, file=file, positions=source.positions, skip_unknown_fields=skip_unknown_fields)
