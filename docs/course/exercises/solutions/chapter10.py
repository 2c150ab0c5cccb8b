"""Answers to chapter 10."""

import numpy as np


def mean_picture(pictures):
    total, count = 0, 0
    for picture in pictures:
        total = total + picture.astype(np.float64)
        count += 1
    return total / count


def crop_corner(height, width, size, phase, draw):
    if phase == "TEST":
        return (height - size) // 2, (width - size) // 2
    top = draw(height - size + 1)
    return top, draw(width - size + 1)


def records_of(step, batch, rank, ranks, count):
    first = step * batch * ranks + rank
    return [number % count for number in range(first, first + batch * ranks, ranks)]


def decode_datum(record):
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = record[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    fields = {5: 0}
    while at < len(record):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            fields[number] = varint()
            continue
        size = varint() if kind == 2 else 4 if kind == 5 else 8
        fields[number] = record[at:at + size]
        at += size
    return np.frombuffer(fields[4], np.uint8).reshape(fields[1], fields[2], fields[3]), fields[5]
