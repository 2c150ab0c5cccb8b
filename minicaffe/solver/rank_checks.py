"""Checks before a training of several processes that all have the same versions, solvers, nets, files and numbers of records.

Paths may differ, since each machine may have the data on a disk of its own. Differences that only change rounding are logged.
"""

import logging
import os
import platform
import zlib
from importlib.metadata import version

from google.protobuf.message import Message

from minicaffe.common import caffe
from minicaffe.device.processor import cpuinfo_value
from minicaffe.engines.engine import get_precision
from minicaffe.engines.onednn import library
from minicaffe.errors import DependencyError
from minicaffe.layers.data.sources import NumberedSource
from minicaffe.proto import text
from minicaffe.proto.files import PIECE

log = logging.getLogger("minicaffe.solver")
PATHS = {"source", "root_folder", "mean_file", "label_map_file", "name_size_file", "output_directory", "file_name"}
# Fields of a solver that may differ: nets (compared separately), files, what rank 0 sends to all, and what only affects display.
MAY_DIFFER = {"net", "net_param", "train_net", "train_net_param", "test_net", "test_net_param", "weights", "random_seed",
              "snapshot_prefix", "solver_mode", "device_id", "display", "debug_info"}


def check(solver, group):
    """Make sure that the solvers of all ranks of a Group compute the same.

    Raises
    ------
    ConfigError
        Names what differs, the ranks and their machines.
    """
    group.check_equal({"the version of minicaffe": version("minicaffe"), "the type of the solver": type(solver).__name__,
                       **{f"{field.name} of the solver": _value(value) for field, value in solver.param.ListFields()
                          if field.name not in MAY_DIFFER}})
    nets = {"the train net": solver.net, **{f"test net {i}": net for i, net in enumerate(solver.test_nets)}}
    group.check_equal({f"layer '{node.name}' of {which}": " ".join(text.write_text(_without_paths(node.param)).split())
                       for which, net in nets.items() for node in net.nodes})
    group.check_equal({f"the number of records of layer '{node.name}' of {which}": node.layer.count_records()
                       for which, net in nets.items() for node in net.nodes if isinstance(node.layer, NumberedSource)})
    params = [blob for net in nets.values() for blob in net.param_table.params]
    group.check_equal({"the shapes of the parameters": [list(blob.shape) for blob in params],
                       "the types of the parameters": [blob.dtype.name for blob in params], "the precision": get_precision()})
    group.check_equal({f"the weights file '{os.path.basename(path)}'": _file(path) for entry in solver.param.weights
                       for path in map(str.strip, entry.split(","))})
    for difference in group.differences({"the processor": _processor(), "oneDNN": _onednn(), "where ranks compute": caffe.mode}):
        if group.rank == 0:
            log.warning("%s; results differ by rounding", difference)


def _value(value):
    """Return the value of a field as messages show it, float32 with the digits that it has."""
    return float(f"{value:.7g}") if isinstance(value, float) else value if isinstance(value, (int, str)) else str(value).strip()


def _without_paths(message):
    """Return a copy of a message without the paths that it or messages in it hold."""
    copy = type(message)()
    copy.CopyFrom(message)
    _clear_paths(copy)
    return copy


def _clear_paths(message):
    for field, value in message.ListFields():
        if field.name in PATHS:
            message.ClearField(field.name)
        elif field.message_type is not None:
            for inner in [value] if isinstance(value, Message) else value:
                _clear_paths(inner)


def _file(path):
    """Return size and checksum of a file, as text."""
    crc, size = 0, 0
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            crc, size = zlib.crc32(piece, crc), size + len(piece)
    return f"{size} bytes, checksum {crc:08x}"


def _processor():
    """Return what decides how sums are rounded on the CPU: its kind, and the widest vectors that it has."""
    flags = cpuinfo_value("flags", "Features").split()
    return " ".join([platform.machine(), *(unit for unit in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if unit in flags)])


def _onednn():
    try:
        return library.version()[0]
    except DependencyError:
        return "not there"
