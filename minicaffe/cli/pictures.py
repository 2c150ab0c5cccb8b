"""Pictures for people, as a PNG file without any library."""

import struct
import zlib

import numpy as np

from minicaffe.proto.atomic import write_bytes

GAP = 1  # pixels between pictures


def to_rgb(picture):
    """Turn a picture as nets see it, (C, H, W), into one for people, uint8 of (H, W, 3).

    Floats are stretched from their lowest to 0 and their highest to 255; what is not finite counts as 0. Three channels count as
    BGR; of any other number the first is shown in grey.
    """
    if picture.dtype != np.uint8:
        finite = np.nan_to_num(picture.astype(np.float64), posinf=0.0, neginf=0.0)
        low, high = finite.min(), finite.max()
        picture = np.rint((finite - low) * (255.0 / (high - low) if high > low else 0.0)).astype(np.uint8)
    planes = picture[2::-1] if len(picture) == 3 else np.repeat(picture[:1], 3, axis=0)
    return planes.transpose(1, 2, 0)


def sheet(images, columns):
    """Return (H, W, 3) images on one black sheet, `columns` a row: the contact sheet of ``data info --png``."""
    height = max(image.shape[0] for image in images) + GAP
    width = max(image.shape[1] for image in images) + GAP
    rows = -(-len(images) // columns)
    canvas = np.zeros((rows * height - GAP, min(columns, len(images)) * width - GAP, 3), np.uint8)
    for i, image in enumerate(images):
        top, left = i // columns * height, i % columns * width
        canvas[top : top + image.shape[0], left : left + image.shape[1]] = image
    return canvas


def write_png(path, image):
    """Write an (H, W, 3) uint8 image as a PNG file (ISO/IEC 15948: 8 bits, RGB, rows with filter type 0)."""
    height, width, _ = image.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)
    rows[:, 1:] = image.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = {b"IHDR": head, b"IDAT": zlib.compress(rows.tobytes(), 9), b"IEND": b""}
    write_bytes(path, b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks.items()))
