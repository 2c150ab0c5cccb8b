"""OpenCV's models: a net with its preprocessing, `classify`, `detect` or `segment` of a picture.

A model is made of a `minicaffe.dnn` Net or of the files that `readNet` takes. Different from OpenCV: `detect` is for nets that end
with DetectionOutput, as SSD's do; Region layers are Darknet's, and Caffe's files have none.
"""

import os

import numpy as np

from minicaffe.addons.opencv.blobs import blobFromImage, size_of
from minicaffe.errors import ConfigError, ShapeError, WrongTypeError, shown


class Model:
    """A net and the preprocessing of its pictures; the setters return the model.

    Parameters
    ----------
    model : Net, or str or path
        A net, or a file for `readNet`.
    config : str or path
        The other file.
    """

    read_net = None     # set by `minicaffe.dnn`, which imports this module

    def __init__(self, model, config=""):
        self.net = type(self).read_net(model, config) if isinstance(model, (str, os.PathLike)) else model
        if not hasattr(self.net, "caffe"):
            raise WrongTypeError(f"must be a Net of minicaffe.dnn, or a path, got {shown(model)} ({type(model).__name__})",
                                 field="model")
        self._scale, self._mean, self._swap, self._crop = 1.0, (0, 0, 0, 0), False, False
        inputs = self.net.caffe.inputs
        shape = self.net.caffe.blobs[inputs[0]].shape if inputs else ()
        self._size = (shape[3], shape[2]) if len(shape) == 4 else (0, 0)

    def setInputParams(self, scale=1.0, size=(0, 0), mean=(0, 0, 0, 0), swapRB=False, crop=False):
        """Set all of the preprocessing; see `blobFromImage`."""
        self._scale, self._size, self._mean, self._swap, self._crop = scale, size_of(size), mean, swapRB, crop

    def setInputSize(self, *size):
        """Set the size that pictures are resized to: (width, height), or two arguments."""
        self._size = size_of(size[0] if len(size) == 1 else size)
        return self

    def setInputMean(self, mean):
        """Set what is subtracted from each channel."""
        self._mean = mean
        return self

    def setInputScale(self, scale):
        """Set the factor that is applied after the mean."""
        self._scale = scale
        return self

    def setInputCrop(self, crop):
        """Set whether pictures are cropped rather than stretched."""
        self._crop = crop
        return self

    def setInputSwapRB(self, swapRB):
        """Set whether the first and the third channel are swapped."""
        self._swap = swapRB
        return self

    def setPreferableBackend(self, backendId):
        """As of `Net`."""
        self.net.setPreferableBackend(backendId)
        return self

    def setPreferableTarget(self, targetId):
        """As of `Net`."""
        self.net.setPreferableTarget(targetId)
        return self

    def predict(self, frame):
        """Return the outputs of the net for a picture (H, W, C), as a tuple in the order of `getUnconnectedOutLayersNames`."""
        self.net.setInput(blobFromImage(frame, self._scale, self._size, self._mean, self._swap, self._crop))
        return tuple(self.net.forward(list(self.net.getUnconnectedOutLayersNames())))

    def _only_output(self, frame):
        outputs = self.predict(frame)
        if len(outputs) != 1:
            names = ", ".join(self.net.getUnconnectedOutLayersNames())
            raise ConfigError(f"the net of a {type(self).__name__} has one output, this one has {names}", file=self.net.caffe.file)
        return outputs[0]


class ClassificationModel(Model):
    """A net whose output is one score for each class."""

    _softmax = False

    def setEnableSoftmaxPostProcessing(self, enable):
        """Set whether `classify` applies a softmax to the scores."""
        self._softmax = enable
        return self

    def getEnableSoftmaxPostProcessing(self):
        """Return whether `classify` applies a softmax to the scores."""
        return self._softmax

    def classify(self, frame):
        """Return the class of the highest score and that score."""
        scores = self._only_output(frame).ravel()
        if self._softmax:
            scores = np.exp(scores - scores.max())
            scores /= scores.sum()
        return int(scores.argmax()), float(scores.max())


class SegmentationModel(Model):
    """A net whose output is a score for each class at each place."""

    def segment(self, frame):
        """Return the class of the highest score at each place of the output, uint8 (H, W)."""
        scores = self._only_output(frame)
        if scores.ndim != 4 or scores.shape[0] != 1 or scores.shape[1] > 256:
            raise ShapeError(f"segment needs an output (1, classes up to 256, height, width), the net's is {list(scores.shape)}",
                             file=self.net.caffe.file)
        return scores[0].argmax(axis=0).astype(np.uint8)


class DetectionModel(Model):
    """A net that ends with DetectionOutput, as SSD's deploy nets do."""

    def detect(self, frame, confThreshold=0.5, nmsThreshold=0.0):
        """Return the objects of a picture.

        Parameters
        ----------
        confThreshold : float
            Least confidence.
        nmsThreshold : float
            Not used, as in OpenCV: DetectionOutput has already removed overlapping boxes (``nms_param``).

        Returns
        -------
        classIds, confidences, boxes : arrays (N,) int32, (N,) float32, (N, 4) int32, or empty tuples if there are none
            A box is (x, y, width, height) in pixels of `frame`.

        Raises
        ------
        ConfigError
            If the net does not end with DetectionOutput.
        """
        last = self.net.caffe.nodes[-1]
        if last.type != "DetectionOutput":
            raise ConfigError(f"detect needs a net that ends with DetectionOutput, the last layer is '{last.name}' ({last.type})",
                              file=self.net.caffe.file)
        rows = self._only_output(frame).reshape(-1, 7)
        height, width = np.shape(frame)[:2]
        found = []
        for _, label, confidence, *corners in rows:
            if confidence >= np.float32(confThreshold) and label >= 0:
                found.append((int(label), confidence, _box(corners, width, height)))
        if not found:
            return (), (), ()
        labels, confidences, boxes = zip(*found)
        return np.array(labels, np.int32), np.array(confidences, np.float32), np.array(boxes, np.int32)


def _box(corners, frame_width, frame_height):
    """Return (x, y, width, height) in pixels, clipped to the picture; corners are pixels, or fractions if they are tiny."""
    left, top, right, bottom = (int(corner) for corner in corners)
    if right - left + 1 <= 2 or bottom - top + 1 <= 2:
        sides = np.array([frame_width, frame_height] * 2, np.float32)
        left, top, right, bottom = (int(corner) for corner in np.array(corners, np.float32) * sides)
    width, height = right - left + 1, bottom - top + 1
    left, top = max(0, min(left, frame_width - 1)), max(0, min(top, frame_height - 1))
    return left, top, max(1, min(width, frame_width - left)), max(1, min(height, frame_height - top))
