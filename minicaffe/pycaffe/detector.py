"""Detector: scores of windows of pictures, as R-CNN does it (pycaffe ``caffe.detector``).

Different from pycaffe: crops with context work (its bounds were floats, which NumPy refuses), a window outside of its
picture is an error, and regions that are not square work.
"""

import numpy as np

from minicaffe.common import TEST
from minicaffe.errors import DataError, ShapeError, located
from minicaffe.pycaffe import io, settings
from minicaffe.pycaffe.classifier import picture_transformer
from minicaffe.pycaffe.net import Net


class Detector(Net):
    """A net in phase TEST whose first input is a window of a picture, warped to the input's size.

    Parameters
    ----------
    model_file : str, or NetParameter
    pretrained_file : str
    mean, input_scale, raw_scale, channel_swap : optional
        Preprocessing, see `minicaffe.io.Transformer`.
    context_pad : int, optional
        Pixels of context around the window, in the warped window.
    gpu : bool, optional
        As in 2014; today `minicaffe.set_mode_gpu`.
    **options
        Of `minicaffe.Net`.
    """

    def __init__(self, model_file, pretrained_file, mean=None, input_scale=None, raw_scale=None, channel_swap=None,
                 context_pad=None, gpu=None, **options):
        if gpu is not None:
            (settings.set_mode_gpu if gpu else settings.set_mode_cpu)()
        super().__init__(model_file, TEST, weights=pretrained_file, **options)
        self.transformer = picture_transformer(self, mean, input_scale, raw_scale, channel_swap)
        self.configure_crop(context_pad)

    def detect_windows(self, images_windows):
        """Return the scores of windows.

        Parameters
        ----------
        images_windows : iterable of (filename, windows)
            A window is (ymin, xmin, ymax, xmax).

        Returns
        -------
        list of dict
            ``window``, ``prediction`` (the scores, flat) and ``filename`` of each window.
        """
        name = self.inputs[0]
        found, inputs = [], []
        for filename, windows in images_windows:
            image = io.load_image(filename, color=self.crop_dims[2] != 1)
            for window in windows:
                with located(file=str(filename)):
                    inputs.append(self.transformer.preprocess(name, self.crop(image, window)))
                found.append({"window": window, "filename": filename})
        if not found:
            return []
        predictions = self.forward_all(**{name: np.stack(inputs)})[self.outputs[0]]
        for entry, prediction in zip(found, predictions.reshape(len(found), -1)):
            entry["prediction"] = prediction
        return found

    def detect_selective_search(self, image_fnames):
        """As `detect_windows`, of the windows that ``selective_search_ijcv_with_python`` proposes, which needs MATLAB."""
        import selective_search_ijcv_with_python as selective_search
        image_fnames = [str(name) for name in image_fnames]
        windows = selective_search.get_windows(image_fnames, cmd="selective_search_rcnn")
        return self.detect_windows(zip(image_fnames, windows))

    def crop(self, im, window):
        """Return the window of a picture; with `context_pad` warped to the input's size, context and mean values around it.

        Raises
        ------
        DataError
            If the window holds no pixel of the picture.
        """
        ymin, xmin, ymax, xmax = (int(round(float(v))) for v in window)
        height, width = im.shape[:2]
        inside = im[max(ymin, 0):max(ymax, 0), max(xmin, 0):max(xmax, 0)]
        if inside.size == 0:
            raise DataError(f"window (ymin, xmin, ymax, xmax) = {tuple(window)} holds no pixel of a picture of {height}x{width}")
        if not self.context_pad:
            return inside
        rows, cols = self.crop_dims[:2]
        y_scale, x_scale = rows / (rows - 2 * self.context_pad), cols / (cols - 2 * self.context_pad)
        y_half, x_half = (ymax - ymin + 1) / 2, (xmax - xmin + 1) / 2
        y_mid, x_mid = ymin + y_half, xmin + x_half
        # The window with its context (`want`), and the part of it inside the picture (`kept`).
        want = np.round([y_mid - y_scale * y_half, x_mid - x_scale * x_half, y_mid + y_scale * y_half, x_mid + x_scale * x_half])
        top, left, bottom, right = want.astype(int)
        y_fit, x_fit = rows / (bottom - top + 1), cols / (right - left + 1)
        kept = [max(0, top), max(0, left), min(height, bottom), min(width, right)]
        y_pad, x_pad = int(round((kept[0] - top) * y_fit)), int(round((kept[1] - left) * x_fit))
        part = im[kept[0]:kept[2], kept[1]:kept[3]]
        # Caffe counts one row and column more here than it cuts out.
        size = (min(round((part.shape[0] + 1) * y_fit), rows - y_pad), min(round((part.shape[1] + 1) * x_fit), cols - x_pad))
        canvas = np.ones(self.crop_dims, np.float32) * self.crop_mean
        canvas[y_pad:y_pad + size[0], x_pad:x_pad + size[1]] = io.resize_image(part, size)
        return canvas

    def configure_crop(self, context_pad):
        """Set the context of `crop`, and `crop_mean`, its values outside of a picture, which preprocessing turns into 0.

        Raises
        ------
        ShapeError
            If the context leaves no room for the window.
        """
        in_ = self.inputs[0]
        channels, *size = self.transformer.inputs[in_][1:]
        self.crop_dims = np.array([*size, channels])    # of `crop_mean`, too
        self.context_pad = context_pad
        if context_pad and 2 * context_pad >= min(size):
            raise ShapeError(f"must leave room for the window in an input of {size[0]}x{size[1]}, got {context_pad}",
                             field="context_pad")
        mean = self.transformer.mean.get(in_)
        if mean is None:
            self.crop_mean = np.zeros(self.crop_dims, np.float32)
            return
        mean = np.broadcast_to(mean, (channels, *size))
        if in_ in self.transformer.channel_swap:
            mean = mean[np.argsort(self.transformer.channel_swap[in_])]
        if in_ in self.transformer.transpose:
            mean = mean.transpose(np.argsort(self.transformer.transpose[in_]))
        self.crop_mean = mean / self.transformer.raw_scale.get(in_, 1)
