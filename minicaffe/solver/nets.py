"""Which nets a solver trains and tests, from the fields of SolverParameter (Caffe solver.cpp, InitTrainNet and InitTestNets).

Different from Caffe: nets given inline (`net_param` and its like) are upgraded as files are, and what aborted raises
ConfigError with the field.
"""

import logging
import warnings
from collections import namedtuple

from minicaffe.common import caffe
from minicaffe.errors import ConfigError, ConfigWarning
from minicaffe.net import weights
from minicaffe.proto import caffe_pb2, upgrade
from minicaffe.proto.fields import copy_of

log = logging.getLogger("minicaffe.solver")

NetSource = namedtuple("NetSource", "param file positions words")
NetSource.__doc__ = "A NetParameter ready for its state, where it is, and what Caffe's log calls the place."

TRAIN_FIELDS = ("net", "net_param", "train_net", "train_net_param")


class NetMaker:
    """Makes the nets of a solver; a file that several of them come from is read once.

    ``make_net(net_param, file=, positions=, skip_unknown_fields=)`` returns a net; the rest is as of
    `minicaffe.solver.solver.Solver`.
    """

    def __init__(self, param, file, positions, make_net, skip_unknown_fields=False, own_fields=(), net_files=None):
        self.param, self.file, self.positions, self.make_net = param, file, positions, make_net
        self.skip_unknown_fields, self.own_fields = skip_unknown_fields, own_fields
        self.net_files = net_files if net_files is not None else {}

    def train_net(self):
        """Return the net to train; a ConfigWarning says if it has no loss.

        Raises ConfigError unless exactly one of net, net_param, train_net and train_net_param is given; and whatever `Net` raises.
        """
        param = self.param
        given = [name for name in TRAIN_FIELDS if param.HasField(name)]
        if len(given) != 1:
            got = "none is given" if not given else f"{' and '.join(given)} are given"
            raise ConfigError(f"a solver needs exactly one of {', '.join(TRAIN_FIELDS)}; {got}", field=given[1] if given else "net")
        source = self._source(given[0])
        place = f"specified in {given[0]}." if given[0].endswith("_param") else f"from {source.words}"
        log.info("Creating training net %s", place)
        net = self._build(source, caffe_pb2.TRAIN, param.train_state)
        if not any(net.loss_weights.values()):
            warnings.warn(ConfigWarning("the net has no loss in its TRAIN phase, so it learns nothing; give it a loss layer, such "
                                        "as SoftmaxWithLoss, or a layer a loss_weight; a deploy net cannot be trained",
                                        file=net.file), stacklevel=2)
        return net

    def test_nets(self):
        """Return the test nets: those of test_net_param, then test_net, then copies of net_param or net for the rest of test_iter.

        Raises ConfigError if test_iter, test_state or test_interval do not fit; and whatever `Net` raises.
        """
        param = self.param
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
        sources = [self._source(name, i) for name in ("test_net_param", "test_net") for i in range(len(getattr(param, name)))]
        sources += [self._source(shared[0])] * (count - explicit) if count > explicit else []
        nets = []
        for i, source in enumerate(sources):
            log.info("Creating test net (#%d) specified by %s", i, source.words)
            nets.append(self._build(source, caffe_pb2.TEST, param.test_state[i] if param.test_state else caffe_pb2.NetState()))
            nets[-1].debug_info = param.debug_info
        return nets

    def _source(self, field, index=None):
        """Read and upgrade the net that `field` (entry `index` of a repeated one) gives."""
        value = getattr(self.param, field) if index is None else getattr(self.param, field)[index]
        path = field if index is None else f"{field}[{index}]"
        if field.endswith("_param"):
            net_param, _ = upgrade.upgrade_net(value, self.positions, path + ".")
            return NetSource(net_param, self.file, self.positions and self.positions.below(path), field)
        if field not in self.own_fields:
            caffe.check_path(value, path, who="solver")
        if value not in self.net_files:
            self.net_files[value] = upgrade.read_net_file(value, self.skip_unknown_fields)
        net_param, positions = self.net_files[value]
        return NetSource(net_param, value, positions, f"{field} file: {value}")

    def _build(self, source, phase, state):
        """Build a net: `phase` is the default, the net's own state overrides it, the solver's `state` both."""
        merged = caffe_pb2.NetState(phase=phase)
        merged.MergeFrom(source.param.state)
        merged.MergeFrom(state)
        net_param = copy_of(source.param)
        net_param.state.CopyFrom(merged)
        return self.make_net(net_param, file=source.file, positions=source.positions, skip_unknown_fields=self.skip_unknown_fields)


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
        one.log_summary(given={name for other in loaded for name in other.taken})
