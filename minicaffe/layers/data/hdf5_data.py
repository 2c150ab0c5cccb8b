"""HDF5Data: batches from the HDF5 files of a list (Caffe hdf5_data_layer.cpp).

Each top's name is the dataset that it reads from every file. Rows come in order, batches run across file ends, the files
repeat. Different from Caffe: shuffling follows the net's random seed, and a snapshot holds the position. A net that came with
``trusted=False`` reads what lies in the files themselves, not what they point at in other files.
"""

import numpy as np

from minicaffe.common import caffe
from minicaffe.errors import ConfigError, DataError, in_field
from minicaffe.layers.base.checks import check_size, state_numbers
from minicaffe.layers.data.sources import NumberedSource
from minicaffe.proto.files import read_lines
from minicaffe.proto.hdf5 import find, is_numbers, read_array, reading


class HDF5DataLayer(NumberedSource):
    """Tops: (batch, rest of the dataset's shape), one or more."""

    min_top_blobs = 1

    def layer_setup(self, bottom, top):
        param = self.param.hdf5_data_param
        if self.param.HasField("transform_param"):
            raise ConfigError("HDF5Data does not transform data; transform them when the files are made", field="transform_param")
        check_size(param.batch_size, "hdf5_data_param.batch_size")
        caffe.check_path(param.source, "hdf5_data_param.source")
        self.batch_size = param.batch_size
        self.shuffle = param.shuffle
        self.within = caffe.within
        self.files = _read_list(param.source)
        caffe.check_listed(self.files, param.source, "hdf5_data_param.source")
        self.seed = self.generator.reserve_counters() ^ self.generator.seed
        self.names = list(self.param.top)
        self.arrays, self.loaded = (), None  # of the file in memory: its datasets, one for each top, and its path
        self.lengths = {}  # path -> number of rows, of files that were opened
        self.orders = {}   # the latest orders, of files (key 1) and of rows (2), each with the seed and place that it depends on
        self._rows_from(0)
        self.position = 0
        self.reshape(bottom, top)

    def reshape(self, bottom, top):
        for blob, array in zip(top, self.arrays):
            with in_field("hdf5_data_param.batch_size"):
                blob.reshape(len(self.records()[0]), *array.shape[1:])

    def count_records(self):    # opens all files
        return sum(map(self._rows, self.files))

    def _order(self, count, *place):
        """Return the order of `count` files (`place`: the epoch) or rows (epoch, file); it follows from seed, count and place."""
        key = self.seed, count, *(place if self.shuffle else ())
        found = self.orders.get(len(place))
        if found is None or found[0] != key:
            order = np.random.default_rng([self.seed, *place]).permutation(count) if self.shuffle else np.arange(count)
            self.orders[len(place)] = found = key, order
        return found[1]

    def _rows_from(self, number):
        """Load the file of row `number`, counted from the start of training; return the order of its rows from that one on.

        Of the files before it only the lengths are read.
        """
        epoch, rest = 0, number
        while True:
            for place, index in enumerate(self._order(len(self.files), epoch)):
                path = self.files[index]
                if rest < self._rows(path):
                    if path != self.loaded:
                        self._read(path)
                    return self._order(len(self.arrays[0]), epoch, place + 1)[rest:]
                rest -= self._rows(path)
            epochs, rest = divmod(rest, self.count_records())
            epoch += 1 + epochs

    def _read(self, path):
        """Read the datasets of a file into `arrays`; raise DataError if rows have another shape than in the file before."""
        with in_field("hdf5_data_param.source"):
            with reading(path, self.within) as file:
                arrays = [read_array(dataset) for dataset in _datasets(file, self.names, self.within)]
            for array, before in zip(arrays, self.arrays):
                if array.shape[1:] != before.shape[1:]:
                    raise DataError(f"rows have shape {array.shape[1:]}, those of the file before {before.shape[1:]}", file=path)
        self.arrays, self.loaded, self.lengths[path] = arrays, path, len(arrays[0])

    def forward_cpu(self, bottom, top):     # rows of several files may be in one batch
        filled = 0
        numbers, step = self.records()      # of this batch; to those of the next one
        if len(numbers) != top[0].shape[0]:    # the last batch of a test, or the one after it
            self.reshape(bottom, top)
        views = [blob.data for blob in top]
        while filled < len(numbers):
            chosen = self._rows_from(numbers[filled])[::numbers.step][:len(numbers) - filled]
            for view, array in zip(views, self.arrays):
                view[filled:filled + len(chosen)] = array[chosen]
            filled += len(chosen)
        self.position += step

    def _rows(self, path):
        """Return how many rows a file has; it is opened once for that."""
        if path not in self.lengths:
            with in_field("hdf5_data_param.source"), reading(path, self.within) as file:
                self.lengths[path] = len(_datasets(file, self.names, self.within)[0])
        return self.lengths[path]

    def get_state(self):    # for a snapshot: shuffled orders follow from the seed
        return {"seed": self.seed, "position": self.position}

    def set_state(self, state):    # raises DataError for another layer's state
        self.seed, self.position = state_numbers(state, {"seed": 1 << 64, "position": 1 << 63})


def _read_list(source):
    """Return the paths in a list file, separated by white space."""
    with in_field("hdf5_data_param.source"):
        files = " ".join(read_lines(source, "a list of HDF5 files")).split()
    if not files:
        raise ConfigError(f"the list '{source}' names no file", field="hdf5_data_param.source")
    return files


def _datasets(file, names, within):
    """Return the datasets `names` of an open HDF5 file; raise DataError if one is missing or their first dimensions differ."""
    datasets = []
    for name in names:
        dataset = find(file, name, within is None)
        if dataset is None:
            raise DataError(f"has no dataset '{name}' for the top of that name; it has {', '.join(file)}")
        if not is_numbers(dataset) or dataset.ndim < 1:
            raise DataError(f"dataset '{name}' must hold numbers and have at least one axis")
        datasets.append(dataset)
    lengths = {name: len(dataset) for name, dataset in zip(names, datasets)}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        raise DataError(f"datasets must have equally many rows and at least one, got {lengths}")
    return datasets
