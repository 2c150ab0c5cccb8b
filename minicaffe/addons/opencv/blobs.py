"""From pictures to blobs under OpenCV's names: `blobFromImage`, `blobFromImages`."""

import operator

import numpy as np

from minicaffe.errors import ConfigError, DependencyError, ShapeError, WrongTypeError, shown

CV_8U, CV_32F = 0, 5


def number(value, field):
    """Return the argument `field` as a float."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise WrongTypeError(f"must be a number, got {shown(value)}", field=field) from None


def numbers(value, field, dtype=None):
    """Return the argument `field` as an array of real numbers."""
    try:
        array = np.asarray(value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise WrongTypeError(f"must be an array of numbers: {error}", field=field) from None
    if value is None or array.dtype.kind not in "biuf":
        remedy = "; cv2.imread gives None for a file that it cannot read" if value is None and field == "images" else ""
        raise WrongTypeError(f"must be an array of real numbers, got {shown(value)}{remedy}", field=field)
    return array


def size_of(size):
    """Return a size as two ints (width, height); both are 0 for that of the picture."""
    try:
        width, height = map(operator.index, size)
    except (TypeError, ValueError):
        raise WrongTypeError(f"must be (width, height), two whole numbers, got {shown(size)}", field="size") from None
    if (width, height) != (0, 0) and min(width, height) < 1:
        raise ShapeError(f"must be at least 1 x 1, or (0, 0) for the size of the picture, got {shown(size)}", field="size")
    return width, height


def scalar(value):
    """Return OpenCV's Scalar of a number or of up to four: what is missing is 0."""
    values = [number(v, "mean") for v in np.atleast_1d(numbers(value, "mean"))]
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
    if not hasattr(images, "__len__"):
        raise WrongTypeError(f"must be a sequence of pictures, got {shown(images)}", field="images")
    if len(images) == 0:
        raise ConfigError("give at least one picture", field="images")
    mean, scalefactor = scalar(mean), number(scalefactor, "scalefactor")
    if ddepth not in (CV_32F, CV_8U) or ddepth == CV_8U and (scalefactor != 1 or any(mean)):
        raise ConfigError("must be CV_32F, or CV_8U without scalefactor and mean", field="ddepth")
    size = size_of(size)
    planes = []
    for image in images:
        image = numbers(image, "images")
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


def _resized(image, size, crop):
    """Return a picture of `size` (width, height), resized by OpenCV itself if it has another."""
    if image.shape[1::-1] == size:
        return image
    try:
        import cv2
    except ImportError:
        raise DependencyError('resizing as OpenCV does needs OpenCV: pip install "minicaffe[images]"; or give pictures of the size '
                              "that the net takes") from None
    try:
        if not crop:
            return cv2.resize(image, size, interpolation=cv2.INTER_LINEAR)
        factor = max(np.float32(size[0]) / np.float32(image.shape[1]), np.float32(size[1]) / np.float32(image.shape[0]))
        image = cv2.resize(image, None, fx=float(factor), fy=float(factor), interpolation=cv2.INTER_LINEAR)
    except cv2.error as error:
        raise ConfigError(f"OpenCV cannot resize a picture {list(image.shape)} of {image.dtype} to {size[0]} x {size[1]}; "
                          f"give uint8 or float32: {' '.join(str(error.err).split())}", field="images") from None
    top, left = int(0.5 * (image.shape[0] - size[1])), int(0.5 * (image.shape[1] - size[0]))
    return image[top:top + size[1], left:left + size[0]]
