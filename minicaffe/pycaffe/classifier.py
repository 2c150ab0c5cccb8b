"""Classifier: a net that takes pictures and gives class scores (pycaffe ``caffe.classifier``)."""

import numpy as np

from minicaffe.common import TEST
from minicaffe.errors import ConfigError
from minicaffe.pycaffe import io, settings
from minicaffe.pycaffe.net import Net


class Classifier(Net):
    """A net in phase TEST whose first input is a picture.

    Parameters
    ----------
    model_file : str, or NetParameter
    pretrained_file : str
    image_dims : (height, width), optional
        Pictures are resized to this before the crops are taken; by default the size of the input.
    mean, input_scale, raw_scale, channel_swap : optional
        Preprocessing, see `minicaffe.io.Transformer`.
    gpu : bool, optional
        As in 2014; today `minicaffe.set_mode_gpu`.
    **options
        Of `minicaffe.Net`.

    Attributes
    ----------
    transformer : Transformer
    crop_dims, image_dims : ndarray of (height, width)
    """

    def __init__(self, model_file, pretrained_file, image_dims=None, mean=None, input_scale=None, raw_scale=None,
                 channel_swap=None, gpu=None, **options):
        if gpu is not None:
            (settings.set_mode_gpu if gpu else settings.set_mode_cpu)()
        super().__init__(model_file, TEST, weights=pretrained_file, **options)
        self.transformer = picture_transformer(self, mean, input_scale, raw_scale, channel_swap)
        self.crop_dims = np.array(self.blobs[self.inputs[0]].shape[2:])
        self.image_dims = np.array(image_dims if image_dims else self.crop_dims)

    def predict(self, inputs, oversample=True):
        """Return the scores of pictures.

        Parameters
        ----------
        inputs : iterable of array, shape (H, W, K)
        oversample : bool
            Average the scores of ten crops (corners, centre, mirrored); otherwise the centre alone.

        Returns
        -------
        array, shape (N, classes), with `oversample`; otherwise the first output as it is
        """
        images = [io.resize_image(image, self.image_dims) for image in inputs]
        if oversample:
            crops = io.oversample(images, self.crop_dims)
        else:
            top, left = ((self.image_dims - self.crop_dims) / 2).astype(int)
            crops = [image[top:top + self.crop_dims[0], left:left + self.crop_dims[1]] for image in images]
        name = self.inputs[0]
        data = np.stack([self.transformer.preprocess(name, crop) for crop in crops])
        predictions = self.forward_all(**{name: data})[self.outputs[0]]
        return predictions.reshape(len(images), 10, -1).mean(axis=1) if oversample else predictions


def picture_transformer(net, mean=None, input_scale=None, raw_scale=None, channel_swap=None):
    """Return a Transformer of (H, W, K) pictures for the first input of `net`: for Classifier, Detector and ``classify``.

    Steps that are None are left out. Raises ConfigError if the net has no input of four axes.
    """
    if not net.inputs:
        raise ConfigError("the net has no input, as it reads its data itself; give its deploy net, which has an Input layer",
                          file=net.file)
    in_ = net.inputs[0]
    if len(net.blobs[in_].shape) != 4:
        raise ConfigError(f"the input '{in_}' is {list(net.blobs[in_].shape)}; pictures need (batch, channels, height, width)",
                          file=net.file)
    transformer = io.Transformer({in_: net.blobs[in_].shape})
    transformer.set_transpose(in_, (2, 0, 1))
    for value, setter in ((mean, transformer.set_mean), (input_scale, transformer.set_input_scale),
                          (raw_scale, transformer.set_raw_scale), (channel_swap, transformer.set_channel_swap)):
        if value is not None:
            setter(in_, value)
    return transformer
