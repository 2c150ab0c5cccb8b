"""An interface for programs written for OpenCV's ``cv2.dnn``: `readNetFromCaffe`, and a `Net` with its methods.

OpenCV 5 removed its Caffe importer; ``from minicaffe import dnn`` in place of ``cv2.dnn`` keeps such programs running
(docs/opencv_migration.md). Names, order of arguments and numbers are those of OpenCV 4.12. Different from it: every layer
type of minicaffe can be loaded. Layers that are for training only are left out, which OpenCV keeps. A layer is found by its own
name, by OpenCV's (see `Net`), or by the name of its blob. Returned arrays are copies; wrong input raises minicaffe.errors
instead of cv2.error. `FUNCTIONS`, which OpenCV 5 has, too, are OpenCV's own.
"""

import logging
import os
import tempfile
import time

import numpy as np

from minicaffe import cuda, pycaffe
from minicaffe.common import TEST, caffe
from minicaffe.data.datum import opencv
from minicaffe.errors import ConfigError, MissingNameError, ShapeError, WrongTypeError, close_matches, float_of, names_of, shown
from minicaffe.proto.files import path_of
from minicaffe.proto.upgrade import load_net

__all__ = [
    "DNN_BACKEND_CUDA", "DNN_BACKEND_DEFAULT", "DNN_BACKEND_INFERENCE_ENGINE", "DNN_BACKEND_OPENCV",
    "DNN_TARGET_CPU", "DNN_TARGET_CUDA", "DNN_TARGET_CUDA_FP16", "DNN_TARGET_OPENCL", "DNN_TARGET_OPENCL_FP16", "Net",
    "readNet", "readNetFromCaffe",
]
FUNCTIONS = "NMSBoxes", "blobFromImage", "blobFromImages"
__all__ += FUNCTIONS
log = logging.getLogger(__name__)

DNN_BACKEND_DEFAULT, DNN_BACKEND_INFERENCE_ENGINE, DNN_BACKEND_OPENCV, DNN_BACKEND_CUDA = 0, 2, 3, 5
DNN_TARGET_CPU, DNN_TARGET_OPENCL, DNN_TARGET_OPENCL_FP16, DNN_TARGET_CUDA, DNN_TARGET_CUDA_FP16 = 0, 1, 2, 6, 7


def __getattr__(name):
    if name not in FUNCTIONS:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(opencv().dnn, name)


def readNetFromCaffe(prototxt, caffeModel=None, *, skip_unknown_fields=False, trusted=True, plan="memory", keep=()):
    """Read a net.

    Parameters
    ----------
    prototxt, caffeModel : str or path, or bytes-like
        Files, or their contents (bytes, bytearray, or an array of uint8). Without a model the weights are the fillers'.
    skip_unknown_fields, trusted, plan, keep
        As of `minicaffe.Net`; OpenCV has none of them. `plan` and `keep` define which blobs of `Net.caffe` can be read after a run.

    Returns
    -------
    Net

    Raises
    ------
    FileError, ConfigError, ShapeError, DataError
        Naming file, line, layer and field.
    """
    file, content = (prototxt, None) if isinstance(prototxt, (str, os.PathLike)) else ("<prototxt>", _content(prototxt))
    with caffe.trusting(trusted):
        definition = load_net(file, TEST, skip_unknown_fields=skip_unknown_fields, content=content)
    net = pycaffe.Net(definition, TEST, skip_unknown_fields=skip_unknown_fields, trusted=trusted, plan=plan, keep=keep)
    if isinstance(caffeModel, (str, os.PathLike)):
        if os.fspath(caffeModel):
            net.copy_from(os.fspath(caffeModel))
    elif caffeModel is not None and len(content := _content(caffeModel)):
        with tempfile.NamedTemporaryFile(suffix=".caffemodel") as model:
            model.write(content)
            model.flush()
            net.copy_from(model.name)
    return Net(net, {layer.name for layer in definition.param.layer})


def readNet(model, config="", framework="", **options):
    """Read a net from its two files in either order, as OpenCV's `readNet` does; see `readNetFromCaffe`.

    Parameters
    ----------
    model, config : str or path
        A .caffemodel and a .prototxt; the caffemodel may be missing.
    framework : str
        "caffe", or nothing.
    **options
        Of `readNetFromCaffe`.

    Raises
    ------
    ConfigError
        If a file is of another kind, such as .onnx, or the .prototxt is missing.
    """
    given = [path for path in (path_of(model), path_of(config)) if path]
    files = {os.path.splitext(path)[1].lower(): path for path in given}
    if framework not in ("", "caffe", "Caffe") or len(files) < len(given) or files.keys() - {".caffemodel"} != {".prototxt"}:
        raise ConfigError(f"readNet takes a .prototxt and a .caffemodel of Caffe, or the first alone, got "
                          f"{', '.join(given) or 'nothing'}{framework and f' of {framework}'}; cv2.dnn.readNet reads others, and "
                          "readNetFromCaffe(prototxt, caffemodel) files of any name")
    return readNetFromCaffe(files[".prototxt"], files.get(".caffemodel"), **options)


def _content(buffer):
    try:
        return bytes(memoryview(np.asarray(buffer, np.uint8) if isinstance(buffer, (np.ndarray, list)) else buffer))
    except (TypeError, ValueError, OverflowError):
        raise WrongTypeError("a file is given by its path, or by its content as bytes, got "
                             f"{shown(buffer)} ({type(buffer).__name__})") from None


class Net:
    """Result of `readNetFromCaffe`; `caffe` is the minicaffe Net inside, whose blobs share memory when it runs to its end.

    The output of a layer is taken before a ReLU that works in place on it. As in OpenCV, a
    Convolution is listed by the name of its top, every other layer by its own.
    """

    def __init__(self, net, names):
        self.caffe = net
        self._input_arrays = {}  # input: array; the net may overwrite its input blobs
        self._layers = {}
        for index, node in enumerate(net.nodes):
            if node.type != "Input" and node.name in names:  # no splits
                shown = node.tops[0].name if node.type == "Convolution" else node.name
                self._layers[shown if shown not in self._layers else node.name] = index

    def empty(self):
        """Return whether there are no layers."""
        return not self._layers

    def getLayerNames(self):
        """Return the names of the layers, inputs left out."""
        return tuple(self._layers)

    def getLayerId(self, layer):
        """Return the number of a layer, counted from 1, or -1."""
        return list(self._layers).index(layer) + 1 if layer in self._layers else -1

    def getUnconnectedOutLayers(self):
        """Return the numbers, from 1, of the layers whose outputs nothing reads."""
        nodes = self.caffe.nodes
        last = {top: index for index, node in enumerate(nodes) for top in node.tops if top in self.caffe.output_blobs}
        unread = [number for number, index in enumerate(self._layers.values(), 1)
                  if nodes[index].tops and all(last.get(top) == index for top in nodes[index].tops)]
        return np.array(unread, np.int32)

    def getUnconnectedOutLayersNames(self):
        """Return the names of the layers whose outputs nothing reads."""
        names = self.getLayerNames()
        return tuple(names[number - 1] for number in self.getUnconnectedOutLayers())

    def setPreferableBackend(self, backendId):
        """Accept any backend: there is one."""

    def setPreferableTarget(self, targetId):
        """Compute on the CPU, or with DNN_TARGET_CUDA as after `minicaffe.set_mode_gpu`; counts for the whole process."""
        if targetId == DNN_TARGET_CUDA_FP16:
            log.warning("DNN_TARGET_CUDA_FP16: a GPU computes in float32; minicaffe.set_precision('tf32') makes it faster")
        if targetId in (DNN_TARGET_CUDA, DNN_TARGET_CUDA_FP16):
            pycaffe.set_mode_gpu()
        else:
            if targetId != DNN_TARGET_CPU:
                log.warning("there is no target %s here, so the CPU computes; give DNN_TARGET_CPU or DNN_TARGET_CUDA",
                            targetId)
            pycaffe.set_mode_cpu()

    def setInput(self, blob, name="", scalefactor=1.0, mean=(0, 0, 0, 0)):
        """Set an input, the first by default, to ``scalefactor * (blob - mean)``; the net takes its shape.

        `mean` has one value for each channel.
        """
        inputs = self.caffe.inputs
        if not inputs:
            raise ConfigError("the net has no inputs; it reads its data itself")
        name = name or inputs[0]
        if name not in inputs:
            raise MissingNameError(f"the net has no input '{name}'{close_matches(name, inputs)}; its inputs are "
                                   f"{', '.join(inputs)}")
        blob, given = np.asarray(blob), np.atleast_1d(mean)
        if blob.dtype.kind not in "biuf":
            raise WrongTypeError(f"must be an array of real numbers, got {shown(blob)}", field="blob")
        blob, scalefactor = blob.astype(np.float32), float_of(scalefactor, "scalefactor")
        if given.any():
            if blob.ndim < 2 or blob.shape[1] > 4:
                raise ShapeError(f"is for blobs of 1 to 4 channels, the blob is {list(blob.shape)}", field="mean")
            mean = np.zeros(4, np.float32)
            mean[:len(given)] = given
            blob -= mean[:blob.shape[1]].reshape(-1, *[1] * (blob.ndim - 2))
        if scalefactor != 1:
            blob *= np.float32(scalefactor)
        self._input_arrays[name] = blob

    def forward(self, outputName=None):
        """Run the net and return the output of a layer.

        Parameters
        ----------
        outputName : str, or list of str, optional
            A layer; by default the last. Later layers are not run.

        Returns
        -------
        array, or for a list a tuple of arrays
        """
        if outputName is None or isinstance(outputName, str):
            return self._run([outputName or self.getLayerNames()[-1]])[0]
        return tuple(self._run(names_of(outputName, "outputName")))

    def getPerfProfile(self):
        """Run the net once more, layer by layer, and return the times.

        Returns
        -------
        total : int
            Nanoseconds of all layers; ``total / cv2.getTickFrequency()`` are seconds, as OpenCV's ticks are nanoseconds on Linux.
        layers : array, shape (layers,), float64
            Nanoseconds of each layer in the order of `getLayerNames`.
        """
        net, times = self.caffe, np.zeros(len(self.caffe.nodes))
        self._fill_inputs()
        for index in range(len(times)):
            start = time.perf_counter_ns()
            net.forward_from_to(index, index)
            if caffe.mode == "gpu":
                cuda.current().synchronize()
            times[index] = time.perf_counter_ns() - start
        return int(times.sum()), times[list(self._layers.values())]

    def _index(self, name):
        """Return the place of a layer, or of the last layer that makes the blob of that name."""
        if name in self._layers:
            return self._layers[name]
        if name in self.caffe.layer_names:
            return self.caffe.layer_index(name)
        makers = [index for index, node in enumerate(self.caffe.nodes) if name in [top.name for top in node.tops]]
        if not makers:
            raise MissingNameError(f"the net has no layer '{name}'{close_matches(name, [*self._layers, *self.caffe.layer_names])}")
        return makers[-1]

    def _fill_inputs(self):
        """Reshape the inputs to the arrays of `setInput` and copy them."""
        for name, array in self._input_arrays.items():
            blob = self.caffe.blobs[name]
            if blob.shape != array.shape:
                blob.reshape(*array.shape)
            blob.data[...] = array

    def _run(self, names):
        """Run as far as `names` need; return copies of the first output of each layer, and of each other name's blob.

        They are taken when the layer has run.
        """
        net, outputs, first = self.caffe, {}, 0
        self._fill_inputs()
        wanted = [self._index(name) for name in names]
        for index in sorted(set(wanted)):
            net.forward_from_to(first, index)
            outputs[index] = {blob.name: blob.cpu_data.copy() for blob in net.tops[index]}
            first = index + 1
        # A Convolution listed by its top has the top's name.
        return [next(iter(outputs[index].values())) if name in net.layer_names else outputs[index][name]
                for name, index in zip(names, wanted)]
