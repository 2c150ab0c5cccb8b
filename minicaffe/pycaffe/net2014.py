"""The pycaffe of 2014: nets that set phase and mode, and prepare pictures. Each name logs its present form once.

``net = Net(deploy, model); net.set_phase_test(); net.set_mean("data", mean); net.preprocess("data", picture)``. Different from
then: the phase of a net is fixed when it is built, so a net that was built for the other phase raises.
"""

import functools
import logging
import os

import numpy as np

from minicaffe.common import TEST, TRAIN
from minicaffe.errors import ConfigError, FileError, MissingNameError, close_matches
from minicaffe.proto import kinds
from minicaffe.proto.files import file_error
from minicaffe.pycaffe import io, settings

log = logging.getLogger(__name__)
PHASES = {TRAIN: "caffe.TRAIN", TEST: "caffe.TEST"}
_phase = TEST   # of ``Net(deploy, model)``
_warned_names = set()   # names that were logged


def warn_once(old, today):
    """Log the present form of `old` once."""
    if old not in _warned_names:
        _warned_names.add(old)
        log.warning("DEPRECATION WARNING - %s is pycaffe of 2014; use %s instead", old, today)


def default_phase():
    """Return the phase of nets that are built without one."""
    return _phase


def _current_form(phase):
    return f"caffe.Net(file, {PHASES[phase]}, weights=model)"


def set_phase_test():
    """Build the nets of ``Net(deploy, model)`` for phase TEST from now on, which is the default."""
    global _phase
    warn_once("caffe.set_phase_test()", _current_form(TEST))
    _phase = TEST


def set_phase_train():
    """Build the nets of ``Net(deploy, model)`` for phase TRAIN from now on."""
    global _phase
    warn_once("caffe.set_phase_train()", _current_form(TRAIN))
    _phase = TRAIN


def use_gpu(gpu):
    """Choose where to compute, for the argument `gpu` of Classifier and Detector; None changes nothing."""
    if gpu is not None:
        warn_once(f"gpu={gpu}", "caffe.set_mode_gpu()" if gpu else "caffe.set_mode_cpu()")
        (settings.set_mode_gpu if gpu else settings.set_mode_cpu)()


def _transformer_method(name):
    """Return a method of a net that calls the one called `name` of the net's Transformer."""
    @functools.wraps(getattr(io.Transformer, name))
    def method(self, in_, *arguments):
        return getattr(self._transformer(in_, name), name)(in_, *arguments)

    return method


class Net2014:
    """The methods that nets had in 2014, for `minicaffe.Net`."""

    def set_phase_test(self):
        """Check that the net is one of phase TEST. Raises ConfigError if it was built for TRAIN."""
        self._check_phase("net.set_phase_test()", TEST)

    def set_phase_train(self):
        """Check that the net is one of phase TRAIN. Raises ConfigError if it was built for TEST."""
        self._check_phase("net.set_phase_train()", TRAIN)

    def _check_phase(self, old, phase):
        if self.phase != phase:
            raise ConfigError(f"{old}: this net was built for {PHASES[self.phase]}, and a net keeps its phase; build it by "
                              f"{_current_form(phase)}", file=self.file, field="phase")
        warn_once(old, _current_form(phase))

    def set_mode_cpu(self):
        """Compute on the CPU; counts for all nets."""
        warn_once("net.set_mode_cpu()", "caffe.set_mode_cpu()")
        settings.set_mode_cpu()

    def set_mode_gpu(self):
        """Compute on the GPU; counts for all nets."""
        warn_once("net.set_mode_gpu()", "caffe.set_mode_gpu()")
        settings.set_mode_gpu()

    def set_device(self, device_id):
        """Choose the GPU; counts for all nets."""
        warn_once("net.set_device(i)", "caffe.set_device(i)")
        settings.set_device(device_id)

    def set_mean(self, input_, mean, mode="elementwise"):
        """Set the mean that `preprocess` subtracts.

        Parameters
        ----------
        input_ : str
            An input of the net.
        mean : array, shape (C, H, W) or (C,), or path of an .npy file
        mode : {"elementwise", "channel"}
            "channel": subtract the mean of each channel.
        """
        if mode not in ("elementwise", "channel"):
            raise ConfigError(f"must be 'elementwise' or 'channel', got {mode!r}", field="mode")
        if isinstance(mean, (str, os.PathLike)):
            mean = read_npy(os.fspath(mean))
        mean = np.asarray(mean)
        if mode == "channel" and mean.ndim == 3:
            mean = mean.mean(axis=(1, 2))
        self._transformer(input_, "set_mean").set_mean(input_, mean)

    set_input_scale = _transformer_method("set_input_scale")
    set_raw_scale = _transformer_method("set_raw_scale")
    set_channel_swap = _transformer_method("set_channel_swap")
    preprocess = _transformer_method("preprocess")
    deprocess = _transformer_method("deprocess")

    def _transformer(self, input_, name):
        """Return the Transformer of the net, with the present shapes of the inputs."""
        warn_once(f"net.{name}()", f"caffe.io.Transformer({{'{input_}': net.blobs['{input_}'].data.shape}}).{name}()")
        if input_ not in self.inputs:
            raise MissingNameError(f"the net has no input '{input_}'{close_matches(input_, self.inputs)}; its inputs are "
                                   f"{', '.join(self.inputs) or 'none'}", file=self.file)
        transformer = self.__dict__.setdefault("transformer", io.Transformer({}))
        known = input_ in transformer.inputs
        transformer.inputs[input_] = self.blobs[input_].shape
        if not known and len(self.blobs[input_].shape) == 4:
            transformer.set_transpose(input_, (2, 0, 1))
        return transformer


def read_npy(path):
    """Return the array of a .npy file; raise FileError if it holds none of numbers."""
    try:
        # A map compares the file's size with its shape before memory is taken, and refuses objects.
        return np.array(np.lib.format.open_memmap(path, mode="r"))
    except OSError as error:
        raise file_error(path, error) from error
    except ValueError as error:
        found = FileError(f"is no .npy file of numbers: {error}; caffe.io.blobproto_to_array reads a .binaryproto", file=path)
        raise kinds.with_kind(found, kinds.head_of(path), "a NumPy array (.npy)", ("npy", "mean")) from None
