"""Repeated blocks of a net, such as those of ResNet, which a picture shows once.

Where all data of a net go through the blobs of one layer the net is cut into segments: layers in a row are a segment each, the
branches of a block one together. Runs of equal segments, or of equal groups of them, are repeats. Equal are types, windows and
connections; numbers of outputs may differ.
"""

from dataclasses import dataclass

from minicaffe.net.blocks import shared_name
from minicaffe.net.summary import CONVOLUTIONS, sizes

LONGEST = 12        # segments of a block
LEAST_SAVED = 3     # boxes that a fold must save


@dataclass
class Repeat:
    """A block of `length` boxes that begins at box `first` and is there `times` times in a row."""

    first: int
    length: int
    times: int


def repeats(boxes, edges):
    """Return the repeats of a drawing, in order.

    Parameters
    ----------
    boxes : list of LayerDrawing
        In the order of the net.
    edges : list of (int, int, int)
        From box, number of the blob there, to box.

    Returns
    -------
    list of Repeat
    """
    inputs = {i for i, box in enumerate(boxes) if not box.layers[0][1].bottom}
    fed = {target for source, _, target in edges if source not in inputs}
    # What such a box reads of an input is left out: a label goes round all blocks to the loss.
    segments = _segments(len(boxes), [(source, target) for source, _, target in edges if source not in inputs or target not in fed])
    keys = [_key(boxes, edges, inputs, segment) for segment in segments]
    taken, found = [False] * len(segments), []

    def times_at(at, length):
        times = 1
        while (end := at + (times + 1) * length) <= len(segments) and not any(taken[at:end]) and (
                keys[end - length:end] == keys[at:at + length]):
            times += 1
        return times

    def boxes_of(at, length):
        return range(segments[at][0], segments[at + length - 1][-1] + 1)

    def name_length(at, length):
        return len(shared_name([boxes[i].layers[0][1].name for i in boxes_of(at, length)]))

    for length in range(1, LONGEST + 1):    # the shortest first: a stage of ResNet is one block several times, not itself a block
        for start in range(len(segments) - 2 * length + 1):
            times = times_at(start, length)
            if (times - 1) * len(boxes_of(start, length)) < LEAST_SAVED:
                continue
            # Of the places where as many begin, that whose blocks have a name: conv5_1/dw and conv5_1/sep, not sep and the next dw.
            begins = [at for at in range(start, start + length) if at == start or times_at(at, length) >= times]
            at = max(begins, key=lambda at, length=length: (name_length(at, length), -at))
            times = times_at(at, length)
            found.append(Repeat(segments[at][0], len(boxes_of(at, length)), times))
            taken[at:at + times * length] = [True] * (times * length)
    return sorted(found, key=lambda repeat: repeat.first)


def _segments(count, edges):
    """Return ranges of boxes between the places that only blobs of the box right before cross."""
    furthest = [-1] * count     # the last box that reads each box
    for source, target in edges:
        furthest[source] = max(furthest[source], target)
    segments, begin, reach = [], 0, -1
    for i in range(count):
        if reach <= i:      # nothing before box i is read behind it
            segments.append(range(begin, i + 1))
            begin = i + 1
        reach = max(reach, furthest[i])
    if begin < count:
        segments.append(range(begin, count))
    return segments


def _key(boxes, edges, inputs, segment):
    """What two equal segments have in common."""
    into = {i: [] for i in segment}
    for source, number, target in edges:
        if target in into:
            into[target].append("input" if source in inputs and source < segment[0] - 1 else (max(source - segment[0], -1), number))
    return [([_kind(layer) for _, layer in boxes[i].layers], len(boxes[i].blobs), into[i]) for i in segment]


def _kind(layer):
    said = sizes(layer)
    if layer.type in CONVOLUTIONS:      # 3x3/2+1 64/8
        said = said.partition(" ")[0], layer.convolution_param.group > 1
    return layer.type, said if layer.type != "InnerProduct" else ""
