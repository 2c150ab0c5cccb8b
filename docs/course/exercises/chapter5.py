"""Exercises of chapter 5: replace each `...`, then run ``pytest test_chapter5.py`` here."""


def pooled_size(size, kernel, stride, pad):
    """Return the size of Caffe's pooling output along one axis, for an axis of `size` pixels."""
    ...


def im2col(picture, kernel, stride, pad):
    """Return the column matrix of a picture (H, W), for a square kernel: (kernel * kernel, positions)."""
    ...


def weight_gradient(x, dY, kernel, stride, pad, group):
    """Return the gradient of a convolution's weights, (M, C / group, kernel, kernel), given that of its output.

    x is (N, C, H, W), dY is (N, M, out_h, out_w).
    """
    ...


def receptive_field(layers):
    """Return how many input pixels, along one axis, one output of a stack of convolutions covers from its first to its last.

    `layers` is a list of (kernel, stride, dilation), from the first layer to the last.
    """
    ...


def needs_columns(kernel, stride, pad, dilation):
    """Return whether the column matrix of a convolution can differ from the picture itself; the kernel is square."""
    ...
