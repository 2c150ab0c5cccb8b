"""Data: batches of pictures and labels from an LMDB or LevelDB (Caffe data_layer.cpp).

Different from Caffe: `data_param.label_size` takes labels that are real numbers (data/numbers.py).
"""

import logging
import os
from contextlib import closing, contextmanager

from minicaffe.common import caffe
from minicaffe.data.datum import labels_of, read_datum
from minicaffe.data.db import open_db
from minicaffe.data.record_batches import RecordBatches
from minicaffe.errors import ConfigError, DataError, Error, in_field
from minicaffe.layers.data.base_data import PrefetchingLayer
from minicaffe.proto import caffe_pb2

log = logging.getLogger(__name__)


class DataLayer(PrefetchingLayer):
    """Tops: data (batch, channels, height, width), and label (batch,) unless only one top is named.

    With `data_param.label_size` label is (batch, label_size), the float_data of records that have their picture in `data`.

    SSD's resize_param, noise_param, distort_param and expand_param of `transform_param` come before crop and mirror.
    """

    min_top_blobs = 1
    max_top_blobs = 2
    batch_field = "data_param.batch_size"
    label_param = "data_param"

    @staticmethod
    def datum_of(record):
        """Return the Datum of a record of the database, as bytes, for cli/picture_nets.py; AnnotatedData overrides it."""
        return record

    def check_files(self):    # for a net that is not trusted
        super().check_files()
        check_database(self.param.data_param)

    def prepare(self):      # returns the shape of a record; called by `layer_setup` of the base
        self.transformer()  # before the database is opened, to check its fields
        with first_record(self.param.data_param) as record:
            if len(self.param.top) > 1:
                self._check_labels(record)
            with closing(self.make_batches()) as reader:
                return reader.load([record], range(1))[0].shape[1:]

    def _check_labels(self, record):
        """Raise DataError unless the first record has labels of the kind that `label_size` says."""
        datum = read_datum(record)
        floats = len(datum.float_data)
        if self.label_size is not None:
            labels_of(datum, self.label_size)
        elif datum.data and floats:
            said = f"has {floats} elements of float_data beside the picture"
            if not datum.HasField("label"):
                raise DataError(f"{said} and no label; label_size: {floats} in data_param reads them as labels")
            log.warning("layer '%s' (%s): %s: its first record %s; they are not read, as data_param has no label_size",
                        self.name, self.type, self.param.data_param.source, said)

    def make_batches(self):     # for the prefetch thread
        param = self.param.data_param
        return RecordBatches(param.source, param.backend, self.transformer(), self.augmenter(),
                             label_size=self.label_size if len(self.param.top) > 1 else None)

    def count_records(self):    # compared by the ranks of a training, see sources.py
        return count_records(self.param.data_param)


def count_records(param):
    """Return the number of records of a DataParameter's database; raise ConfigError if a net being built may not open it."""
    if not caffe.trusted:
        check_database(param)
    with closing(open_db(param.source, param.backend)) as db:
        return len(db)


@contextmanager
def first_record(param):
    """Yield the first record, as bytes, of a DataParameter's database; an Error in the ``with`` block gets its number and key."""
    with in_field("data_param.source", but=ConfigError), closing(open_db(param.source, param.backend)) as db:
        key, record = next(db.cursor())()
        try:
            yield record
        except ConfigError:
            raise
        except Error as error:
            raise db.locate(error, 0, key)


def check_database(param):
    """Raise ConfigError unless the net being built may open the database of a DataParameter (`Caffe.check_path`)."""
    if caffe.trusted:
        return
    caffe.check_path(param.source, "data_param.source")
    if param.backend == caffe_pb2.DataParameter.LEVELDB:
        raise ConfigError(f"the net is not trusted, and LevelDB writes into '{param.source}' even to read it; convert it to LMDB, "
                          "or load the net without trusted=False (--untrusted) if you trust it", field="data_param.backend")
    caffe.check_path(os.path.join(param.source, "data.mdb"), "data_param.source")  # it may be a link itself
