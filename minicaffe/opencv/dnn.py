"""An interface for programs written for OpenCV's ``cv2.dnn``: `readNetFromCaffe`, `blobFromImage`, and a `Net` with its methods.

OpenCV 5 removed its Caffe importer; ``from minicaffe import dnn`` in place of ``cv2.dnn`` keeps such programs running
(docs/opencv_migration.md). Names, order of arguments and numbers are those of OpenCV 4.12. Different from it: every layer
type of minicaffe can be loaded; layers that are for training only are left out, which OpenCV left in; a layer goes by its own
name, by OpenCV's (see `Net`), and by the name of its blob; arrays returned are copies; wrong input raises minicaffe.errors
instead of cv2.error.
"""

import os
import tempfile

import numpy as np

from minicaffe import cuda, pycaffe
from minicaffe.common import TEST, caffe
from minicaffe.errors import ConfigError, DependencyError, MissingNameError, ShapeError, close_matches
from minicaffe.net import net as net_room
from minicaffe.proto import caffe_pb2, text, upgrade

CV_8U, CV_32F = 0, 5
DNN_BACKEND_DEFAULT, DNN_BACKEND_OPENCV, DNN_BACKEND_CUDA = 0, 3, 5
DNN_TARGET_CPU, DNN_TARGET_CUDA = 0, 6


def readNetFromCaffe(prototxt, caffeModel=None, *, skip_unknown_fields=False, trusted=True, plan="memory", keep=()):
    """Read a net.

    Parameters
    ----------
    prototxt, caffeModel : str or path, or bytes-like
        Files, or their contents (bytes, bytearray, or an array of uint8). Without a model the weights are the fillers'.
    skip_unknown_fields, trusted, plan, keep
        As of `minicaffe.Net`; OpenCV has none of them. `plan` and `keep` say what can be read in `Net.caffe` after a run.

    Returns
    -------
    Net

    Raises
    ------
    FileError, ConfigError, ShapeError, DataError
        Naming file, line, layer and field.
    """
    if isinstance(prototxt, (str, os.PathLike)):
        file = os.fspath(prototxt)
        param, positions = net_room.read_net(file, TEST, skip_unknown_fields=skip_unknown_fields)
    else:
        file = "<prototxt>"
        param, positions = text.parse_text(_content(prototxt).decode(errors="replace"), caffe_pb2.NetParameter, file,
                                           keep_layer_fields=True, skip_unknown_fields=skip_unknown_fields)
        param, _ = upgrade.upgrade_net(param, positions)
        param.state.phase = TEST
    net = pycaffe.Net(param, TEST, file=file, positions=positions, skip_unknown_fields=skip_unknown_fields, trusted=trusted,
                      plan=plan, keep=keep)
    if isinstance(caffeModel, (str, os.PathLike)):
        if os.fspath(caffeModel):
            net.copy_from(os.fspath(caffeModel))
    elif caffeModel is not None and len(caffeModel):
        with tempfile.NamedTemporaryFile(suffix=".caffemodel") as model:
            model.write(_content(caffeModel))
            model.flush()
            net.copy_from(model.name)
    return Net(net, {layer.name for layer in param.layer})


def _content(buffer):
    return bytes(np.asarray(buffer, np.uint8)) if isinstance(buffer, (np.ndarray, list)) else bytes(buffer)


class Net:
    """What `readNetFromCaffe` returns; `caffe` is the minicaffe Net inside, whose blobs share memory when it runs to its end.

    A layer's output is what the layer itself gives: a ReLU that works in place after it does not show in it. As in OpenCV, a
    Convolution is listed by the name of its top, every other layer by its own.
    """

    def __init__(self, net, names):
        self.caffe = net
        self._given = {}  # input: array, kept as a net may overwrite its input
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

    def getParam(self, layer, numParam=0):
        """Return parameter number `numParam` of a layer, given by name or number, as an array."""
        name = self.getLayerNames()[layer - 1] if isinstance(layer, int) else layer
        blobs = self.caffe.layers[self._index(name)].blobs
        if not 0 <= numParam < len(blobs):
            raise ConfigError(f"layer '{name}' has {len(blobs)} parameters, counted from 0; got {numParam}", field="numParam")
        return blobs[numParam].cpu_data.copy()

    def setPreferableBackend(self, backendId):
        """Accept any backend: there is one."""

    def setPreferableTarget(self, targetId):
        """Compute on the CPU, or with DNN_TARGET_CUDA on the GPU; counts for the whole process."""
        if targetId == DNN_TARGET_CUDA:
            cuda.use_gpu()
        elif targetId == DNN_TARGET_CPU and caffe.mode != "cpu":
            cuda.use_cpu()

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
        blob = np.array(blob, np.float32)
        mean = _scalar(mean)
        if any(mean):
            if blob.ndim < 2 or blob.shape[1] > 4:
                raise ShapeError(f"is for blobs of 1 to 4 channels, the blob is {list(blob.shape)}", field="mean")
            blob -= np.array(mean[:blob.shape[1]], np.float32).reshape(-1, *[1] * (blob.ndim - 2))
        if scalefactor != 1:
            blob *= np.float32(scalefactor)
        self._given[name] = blob

    def forward(self, outputName=None):
        """Run the net and return the output of a layer.

        Parameters
        ----------
        outputName : str, or list of str, optional
            A layer; by default the last. The net runs no farther than that.

        Returns
        -------
        array, or for a list a tuple of arrays
        """
        if outputName is None or isinstance(outputName, str):
            return self._run([outputName or self.getLayerNames()[-1]])[0][0]
        return tuple(tops[0] for tops in self._run(list(outputName)))

    def forwardAndRetrieve(self, outBlobNames):
        """Run the net and return for each layer a tuple of all its outputs."""
        return tuple(tuple(tops) for tops in self._run(list(outBlobNames)))

    def _index(self, name):
        """Return the place of a layer, or of the last layer that makes the blob of that name."""
        if name in self._layers:
            return self._layers[name]
        if name in self.caffe.layer_names:
            return self.caffe.layer_index(name)
        makers = [index for index, node in enumerate(self.caffe.nodes) if name in [top.name for top in node.tops]]
        if not makers:
            raise MissingNameError(f"the net has no layer '{name}'{close_matches(name, self._layers)}")
        return makers[-1]

    def _run(self, names):
        """Run as far as the layers `names` need; return copies of the outputs of each, taken when it has run."""
        net = self.caffe
        for name, array in self._given.items():
            blob = net.blobs[name]
            if blob.shape != array.shape:
                blob.reshape(*array.shape)
            blob.data[...] = array
        wanted = [self._index(name) for name in names]
        outputs, first = {}, 0
        for index in sorted(set(wanted)):
            net.forward_from_to(first, index)
            outputs[index] = [blob.cpu_data.copy() for blob in net.tops[index]]
            first = index + 1
        return [outputs[index] for index in wanted]


def _scalar(value):
    """Return OpenCV's Scalar of a number or of up to four: what is missing is 0."""
    values = [float(v) for v in np.atleast_1d(value)]
    if len(values) > 4:
        raise ShapeError(f"must be a number or up to 4, got {len(values)}", field="mean")
    return values + [0.0] * (4 - len(values))


def blobFromImage(image, scalefactor=1.0, size=(0, 0), mean=(0, 0, 0, 0), swapRB=False, crop=False, ddepth=CV_32F):
    """Return a picture as a blob (1, C, H, W), ``scalefactor * (image - mean)``; see `blobFromImages`."""
    return blobFromImages([image], scalefactor, size, mean, swapRB, crop, ddepth)


def blobFromImages(images, scalefactor=1.0, size=(0, 0), mean=(0, 0, 0, 0), swapRB=False, crop=False, ddepth=CV_32F):
    """Return pictures as a blob (N, C, H, W), ``scalefactor * (image - mean)``.

    Parameters
    ----------
    images : sequence of array, shape (H, W) or (H, W, C), C up to 4
    size : (width, height)
        Pictures are resized to it; by default the size of the first.
    mean : number or sequence
        One value for each channel of the blob, thus after `swapRB`.
    swapRB : bool
        Swap the first and the third channel.
    crop : bool
        Resize so that the picture covers `size`, and cut out the middle; otherwise proportions change.
    ddepth : {CV_32F, CV_8U}
        Type of the blob; CV_8U takes neither `scalefactor` nor `mean`.
    """
    if len(images) == 0:
        raise ConfigError("give at least one picture", field="images")
    mean = _scalar(mean)
    if ddepth not in (CV_32F, CV_8U) or ddepth == CV_8U and (scalefactor != 1 or any(mean)):
        raise ConfigError("must be CV_32F, or CV_8U without scalefactor and mean", field="ddepth")
    size = int(size[0]), int(size[1])
    planes = []
    for image in images:
        image = np.asarray(image)
        if image.ndim not in (2, 3) or image.size == 0 or image.ndim == 3 and image.shape[2] > 4:
            raise ShapeError(f"a picture is (H, W) or (H, W, C) with 1 to 4 channels, got {list(image.shape)}", field="images")
        size = size if any(size) else image.shape[1::-1]
        image = np.atleast_3d(_resized(image, size, crop))
        if swapRB and image.shape[2] > 2:
            image = image[:, :, [2, 1, 0, *range(3, image.shape[2])]]
        if ddepth == CV_8U:
            if image.dtype != np.uint8:
                raise ConfigError(f"CV_8U takes pictures of uint8, got {image.dtype}", field="ddepth")
        else:
            image = image.astype(np.float32)
            if any(mean):
                image -= np.array(mean[:image.shape[2]], np.float32)
            if scalefactor != 1:
                image *= np.float32(scalefactor)
        if planes and image.shape != planes[0].shape[1:] + planes[0].shape[:1]:
            raise ShapeError(f"has {image.shape[2]} channels, the first one {planes[0].shape[0]}", field="images")
        planes.append(image.transpose(2, 0, 1))
    return np.stack(planes)


def imagesFromBlob(blob):
    """Return the pictures (H, W, C) of a blob (N, C, H, W) as a tuple."""
    return tuple(np.ascontiguousarray(picture.transpose(1, 2, 0)) for picture in np.asarray(blob))


def _resized(image, size, crop):
    """Return a picture of `size` (width, height), resized by OpenCV itself if it has another."""
    if image.shape[1::-1] == size:
        return image
    try:
        import cv2
    except ImportError:
        raise DependencyError('resizing as OpenCV does needs OpenCV: pip install "minicaffe[images]"; or give pictures of the size '
                              "that the net takes") from None
    if not crop:
        return cv2.resize(image, size, interpolation=cv2.INTER_LINEAR)
    factor = max(np.float32(size[0]) / np.float32(image.shape[1]), np.float32(size[1]) / np.float32(image.shape[0]))
    image = cv2.resize(image, None, fx=float(factor), fy=float(factor), interpolation=cv2.INTER_LINEAR)
    top, left = int(0.5 * (image.shape[0] - size[1])), int(0.5 * (image.shape[1] - size[0]))
    return image[top:top + size[1], left:left + size[0]]
