"""HDF5Data: batches from the HDF5 files of a list (Caffe hdf5_data_layer.cpp).

Each top's name is the dataset that it reads from every file. Rows come in order, batches run across file ends, the files
repeat. Different from Caffe: shuffling follows the net's random seed, and a snapshot holds the position. A net that came with
``trusted=False`` reads what lies in the files themselves, not what they point at in other files.
"""

import os

import numpy as np

from minicaffe.common import TRAIN, caffe
from minicaffe.errors import ConfigError, DataError, Error, FileError
from minicaffe.layer import Layer, register_layer
from minicaffe.layers.base.checks import state_numbers
from minicaffe.layers.data.base_data import in_field
from minicaffe.proto.files import read_bytes
from minicaffe.proto.hdf5 import find, is_numbers, read_array, reading


class HDF5DataLayer(Layer):
    """Tops: (batch, rest of the dataset's shape), one or more."""

    host_only = True
    flops_per_value = 0, 0
    exact_num_bottom_blobs = 0
    min_top_blobs = 1

    def layer_setup(self, bottom, top):
        param = self.param.hdf5_data_param
        if self.param.HasField("transform_param"):
            raise ConfigError("HDF5Data does not transform data; transform them when the files are made", field="transform_param")
        if param.batch_size < 1:
            raise ConfigError(f"must be at least 1, got {param.batch_size}", field="hdf5_data_param.batch_size")
        caffe.check_path(param.source, "hdf5_data_param.source")
        self.batch_size = param.batch_size
        self.shuffle = param.shuffle
        self.within = caffe.within
        self.files = _read_list(param.source)
        caffe.check_listed(self.files, param.source, "hdf5_data_param.source")
        self.seed = self.generator.take() ^ self.generator.seed
        self.names = list(self.param.top)
        self.epoch = self.place = self.row = self.offset = 0
        self.arrays, self.loaded = (), None  # the datasets of the file that is in memory, and its path
        self._load()
        self.reshape(bottom, top)

    def reshape(self, bottom, top):
        for blob, array in zip(top, self.arrays):
            try:
                blob.reshape(self.batch_size, *array.shape[1:])
            except Error as error:
                raise error.at(field="hdf5_data_param.batch_size")

    def _random(self, *path):
        """A generator that depends on the seed and a place in the run only, so that a resumed run shuffles alike."""
        return np.random.default_rng([self.seed, *path])

    def _load(self):
        """Read the file at `place` of this epoch's order into memory, unless it is there, and order its rows."""
        order = range(len(self.files))
        if self.shuffle:
            order = self._random(self.epoch).permutation(len(self.files))
        path = self.files[order[self.place]]
        if path != self.loaded:
            self._read(path)
        self.rows = np.arange(len(self.arrays[0]))
        if self.shuffle:
            self.rows = self._random(self.epoch, self.place + 1).permutation(len(self.rows))

    def _read(self, path):
        try:
            arrays = _read_file(path, self.names, self.within)
        except Error as error:
            raise in_field(error, "hdf5_data_param.source")
        for array, before in zip(arrays, self.arrays):
            if array.shape[1:] != before.shape[1:]:
                raise in_field(DataError(f"rows have shape {array.shape[1:]}, those of the file before {before.shape[1:]}",
                                         file=path), "hdf5_data_param.source")
        self.arrays, self.loaded = arrays, path

    def forward_cpu(self, bottom, top):
        filled = 0
        views = [blob.data for blob in top]
        count, rank = (caffe.solver_count, caffe.solver_rank) if self.phase == TRAIN else (1, 0)
        while filled < self.batch_size:
            if self.row == len(self.rows):
                self._next_file()
            # With several solvers this one keeps every count-th row.
            wait = (rank - self.offset) % count
            chosen = self.rows[self.row + wait:self.row + wait + (self.batch_size - filled - 1) * count + 1:count]
            used = min(len(self.rows) - self.row, wait + max(0, len(chosen) - 1) * count + (1 if len(chosen) else 0))
            for view, array in zip(views, self.arrays):
                view[filled:filled + len(chosen)] = array[chosen]
            filled += len(chosen)
            self.row += used
            self.offset += used

    def _next_file(self):
        self.row = 0
        self.place += 1
        if self.place == len(self.files):
            self.place, self.epoch = 0, self.epoch + 1
        if len(self.files) > 1 or self.shuffle:
            self._load()

    def backward_cpu(self, top, propagate_down, bottom):
        """Data have no gradient."""

    def get_state(self):
        return {name: getattr(self, name) for name in ("seed", "epoch", "place", "row", "offset")}

    def set_state(self, state):
        self.seed, self.epoch, self.place, self.offset = state_numbers(
            state, {"seed": 1 << 64, "epoch": 1 << 63, "place": len(self.files), "offset": 1 << 63})
        self._load()
        self.row, = state_numbers(state, {"row": len(self.rows) + 1})


def _read_list(source):
    """The paths in a list file, separated by white space."""
    try:
        files = os.fsdecode(read_bytes(source)).split()
    except FileError as error:
        raise in_field(error, "hdf5_data_param.source")
    if not files:
        raise ConfigError(f"the list '{source}' names no file", field="hdf5_data_param.source")
    return files


def _read_file(path, names, within):
    """The datasets `names` of an HDF5 file, which must lie below `within`, as arrays with equal first dimensions."""
    with reading(path, within) as file:
        arrays = []
        for name in names:
            dataset = find(file, name, within is None)
            if dataset is None:
                raise DataError(f"has no dataset '{name}' for the top of that name; it has {', '.join(file)}")
            if not is_numbers(dataset) or dataset.ndim < 1:
                raise DataError(f"dataset '{name}' must hold numbers and have at least one axis")
            arrays.append(read_array(dataset))
    lengths = {name: len(array) for name, array in zip(names, arrays)}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        raise DataError(f"datasets must have equally many rows and at least one, got {lengths}", file=path)
    return arrays


register_layer("HDF5Data", HDF5DataLayer)
