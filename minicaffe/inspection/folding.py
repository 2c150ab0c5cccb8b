"""Find repeated blocks of a net, such as those of ResNet, which a drawing shows once.

A net is cut into segments after each layer whose blobs are the only way from the layers before to those after it. So each layer of
a chain is a segment, and all branches of a block together are one. Consecutive equal segments, or equal groups of segments, are
repeats. Segments are equal if types, windows and connections are; numbers of outputs may differ.
"""

from dataclasses import dataclass

from minicaffe.inspection.blocks import shared_name
from minicaffe.inspection.summary import CONVOLUTIONS, sizes

MAX_LENGTH = 12     # of a block, in segments
MIN_SAVED = 3       # a repeat that saves fewer boxes is drawn in full


@dataclass
class Repeat:
    """A block of `length` boxes, `times` times in a row; the first one begins at box number `first`."""

    first: int
    length: int
    times: int


def repeats(boxes, edges):
    """Return the repeats of a drawing, in the order of the net.

    Parameters
    ----------
    boxes : list of LayerDrawing
        In the order of the net.
    edges : list of (int, int, int)
        (source, number, target): box `target` reads blob `number` of box `source`.

    Returns
    -------
    list of Repeat
    """
    inputs = {i for i, box in enumerate(boxes) if not box.layers[0][1].bottom}
    inner = {target for source, _, target in edges if source not in inputs}    # boxes that read another layer's blob
    # The inputs of these boxes are ignored: otherwise a label, which only the loss reads, would join all blocks to one segment.
    kept = [(source, target) for source, _, target in edges if source not in inputs or target not in inner]
    segments = _segments(len(boxes), kept)
    keys = [_key(boxes, edges, inputs, segment) for segment in segments]
    taken, found = [False] * len(segments), []

    def times_at(at, length):
        """Return how often the `length` segments from number `at` on are repeated in a row, the first included."""
        times = 1
        while (end := at + (times + 1) * length) <= len(segments) and not any(taken[at:end]) and (
                keys[end - length:end] == keys[at:at + length]):
            times += 1
        return times

    def boxes_of(at, length):
        """Return the range of boxes of `length` segments from number `at` on."""
        return range(segments[at][0], segments[at + length - 1][-1] + 1)

    def name_length(at, length):
        """Return the length of the common part of the names of the block's layers."""
        return len(shared_name([boxes[i].layers[0][1].name for i in boxes_of(at, length)]))

    for length in range(1, MAX_LENGTH + 1):     # the shortest first: a stage of ResNet is a repeated block, not a block of its own
        for start in range(len(segments) - 2 * length + 1):
            times = times_at(start, length)
            if (times - 1) * len(boxes_of(start, length)) < MIN_SAVED:
                continue
            # Repeats that begin up to a block later may be as long. Choose the one whose layers share the longest part of their
            # names: blocks of conv5_1/dw and conv5_1/sep, not of conv5_1/sep and conv5_2/dw.
            candidates = [at for at in range(start, start + length) if at == start or times_at(at, length) >= times]
            at = max(candidates, key=lambda at, length=length: (name_length(at, length), -at))
            times = times_at(at, length)
            found.append(Repeat(segments[at][0], len(boxes_of(at, length)), times))
            taken[at:at + times * length] = [True] * (times * length)
    return sorted(found, key=lambda repeat: repeat.first)


def _segments(count, edges):
    """Return the segments as ranges of boxes: a segment ends after a box if no later box reads a box before this one."""
    furthest = [-1] * count     # for each box, the last box that reads it
    for source, target in edges:
        furthest[source] = max(furthest[source], target)
    segments, begin, reach = [], 0, -1
    for i in range(count):
        if reach <= i:      # no box before i is read after i
            segments.append(range(begin, i + 1))
            begin = i + 1
        reach = max(reach, furthest[i])
    return segments


def _key(boxes, edges, inputs, segment):
    """Return a value that is equal for equal segments."""
    into = {i: [] for i in segment}
    for source, number, target in edges:
        if target in into:
            into[target].append("input" if source in inputs and source < segment[0] - 1 else (max(source - segment[0], -1), number))
    return [([_kind(layer) for _, layer in boxes[i].layers], len(boxes[i].blobs), into[i]) for i in segment]


def _kind(layer):
    text = sizes(layer)
    if layer.type in CONVOLUTIONS:      # from "3x3/2+1 64/8" without the number of outputs
        text = text.partition(" ")[0], layer.convolution_param.group > 1
    return layer.type, text if layer.type != "InnerProduct" else ""
