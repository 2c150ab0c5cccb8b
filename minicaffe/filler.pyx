"""Fillers: the initial values of parameters (Caffe filler.hpp).

The distributions are Caffe's; the numbers are not, since Caffe's come from Boost and a Mersenne Twister and ours from a
counter-based generator (kernels/random.hpp).
"""

import math

import numpy as np

from minicaffe.blob cimport Blob, checked_blob
from minicaffe.common cimport Generator
from minicaffe.device.threads cimport Threads, num_threads
from minicaffe.memory.buffer cimport this_thread

from minicaffe.errors import ConfigError, Error, check_message, check_type

cdef extern from "minicaffe/ops/random/caffe.hpp" nogil:
    void uniform_numbers "MC_TYPED(mc::fill_uniform)"(int dtype, Threads, long long n, unsigned long long seed,
                                                      unsigned long long start, double lo, double hi, void* y)
    void gaussian_numbers "MC_TYPED(mc::fill_gaussian)"(int dtype, Threads, long long n, unsigned long long seed,
                                                        unsigned long long start, double mean, double std, void* y)
    void keep_some "MC_TYPED(mc::keep_some)"(int dtype, Threads, long long n, unsigned long long seed, unsigned long long start,
                                             double p, void* y)


def constant(Blob blob not None, filler, Generator generator not None):
    """Fill with ``value`` of FillerParameter, 0 unless given."""
    blob.data[...] = filler.value


def uniform(Blob blob not None, filler, Generator generator not None):
    """Fill with U[min, max), by default [0, 1)."""
    if not filler.min <= filler.max:  # nan is neither
        raise ConfigError(f"must be at most max, got min {filler.min:g} and max {filler.max:g}", field="min")
    fill_uniform(blob, generator, filler.min, filler.max)


def gaussian(Blob blob not None, filler, Generator generator not None):
    """Fill with N(mean, std); with ``sparse`` s >= 0 (-1: not given) each value is kept with probability s / shape[0], else 0."""
    if not filler.std > 0:
        raise ConfigError(f"must be more than 0, got {filler.std:g}", field="std")
    fill_gaussian(blob, generator, filler.mean, filler.std)
    if filler.sparse < 0:   # not given
        return
    outputs = blob.shape[0] if blob.num_axes else 1
    if filler.sparse > outputs:
        raise ConfigError(f"must be at most the number of outputs {outputs}, got {filler.sparse}", field="sparse")
    keep_some(blob.dtype, num_threads(), blob.count, generator.seed, generator.reserve(blob.count), filler.sparse / outputs,
              blob.mutable_cpu_data_ptr())


def positive_unitball(Blob blob not None, filler, Generator generator not None):
    """Fill with U[0, 1), then divide each slice along axis 0 by its sum."""
    fill_uniform(blob, generator, 0, 1)
    rows = blob.data.reshape(blob.shape[0] if blob.num_axes else 1, -1)
    rows /= rows.sum(axis=1, keepdims=True)


def xavier(Blob blob not None, filler, Generator generator not None):
    """Fill with U[-a, a), a = sqrt(3 / n); n is the fan that ``variance_norm`` names (Glorot and Bengio 2010)."""
    bound = math.sqrt(3 / _fan(blob, filler))
    fill_uniform(blob, generator, -bound, bound)


def msra(Blob blob not None, filler, Generator generator not None):
    """Fill with N(0, sqrt(2 / n)), mean and deviation; n is the fan that ``variance_norm`` names (He et al. 2015)."""
    fill_gaussian(blob, generator, 0, math.sqrt(2 / _fan(blob, filler)))


def bilinear(Blob blob not None, filler, Generator generator not None):
    """Fill with bilinear upsampling: (1 - |i/f - c|)(1 - |j/f - c|), f = ceil(K/2), c = (K-1)/(2f), in every K x K plane."""
    if blob.num_axes != 4 or blob.shape[2] != blob.shape[3]:
        raise ConfigError(f"bilinear needs 4 axes, square in the last two, the blob has shape {list(blob.shape)}", field="type")
    size = blob.shape[3]
    factor = -(-size // 2)
    line = 1 - np.abs(np.arange(size) / factor - (size - 1) / (2 * factor))
    blob.data[...] = np.outer(line, line)


# By the `type` of FillerParameter. Each writes the data of the whole blob on the host and draws from the generator.
FILLERS = {f.__name__: f for f in (constant, uniform, gaussian, positive_unitball, xavier, msra, bilinear)}


def fill(blob, filler, generator, field=""):
    """Fill the data of `blob` as a FillerParameter says.

    Raises ConfigError with the field inside the FillerParameter, behind the `field` that holds it, for an unknown type or values
    the type does not allow. Raises WrongTypeError for arguments of other types.
    """
    check_message(filler, "FillerParameter", "filler")
    check_type(generator, Generator, "generator", "a Generator of minicaffe.common")
    cdef Blob to_fill = checked_blob(blob, "blob")
    try:
        if filler.type not in FILLERS:
            raise ConfigError(f"unknown filler '{filler.type}'; known are {', '.join(FILLERS)}", field="type")
        if to_fill.count == 0:
            raise ConfigError(f"cannot fill an empty blob, shape {list(blob.shape)}")
        if filler.sparse != -1 and filler.type != "gaussian":
            raise ConfigError(f"only the gaussian filler knows it, the type is {filler.type}", field="sparse")
        to_fill.begin_use(this_thread())    # no other thread may reshape it now
        try:
            FILLERS[filler.type](blob, filler, generator)
        finally:
            to_fill.end_use()
    except Error as error:
        error.field = ".".join(filter(None, (field, error.field))) or None
        raise


def fill_uniform(Blob blob not None, Generator generator not None, double lo, double hi):
    """Fill with U[lo, hi)."""
    uniform_numbers(blob.dtype, num_threads(), blob.count, generator.seed, generator.reserve(blob.count), lo, hi,
                    blob.mutable_cpu_data_ptr())


def fill_gaussian(Blob blob not None, Generator generator not None, double mean, double std):
    """Fill with N(mean, std)."""
    gaussian_numbers(blob.dtype, num_threads(), blob.count, generator.seed, generator.reserve(blob.count), mean, std,
                     blob.mutable_cpu_data_ptr())


def _fan(Blob blob not None, filler):
    """Return the n of xavier and msra: fan-in count / shape[0], fan-out count / shape[1], their mean (VarianceNorm 0, 1, 2)."""
    if blob.num_axes == 0:
        raise ConfigError(f"{filler.type} needs a blob with an axis, got a scalar", field="type")
    fan_in = blob.count / blob.shape[0]
    fan_out = blob.count / blob.shape[1] if blob.num_axes > 1 else blob.count
    return (fan_in, fan_out, (fan_in + fan_out) / 2)[filler.variance_norm]
