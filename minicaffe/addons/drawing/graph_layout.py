"""A layered layout of a directed graph (Sugiyama, Tagawa and Toda 1981), for nets: long chains with branches that join again.

Nodes get ranks, and long edges a bend in each rank that they cross. Sweeps order the ranks so that few edges cross, then move
nodes to the median of their neighbours. Everything is deterministic. Not for graphs with circles or ten thousands of nodes.
"""

import statistics
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

SWEEPS = 12     # over all ranks, for the order and again for the positions; more sweeps changed no net of models/


@dataclass(eq=False)
class Box:
    """A node, or a place where a long edge crosses a rank.

    `length` is its size along the direction of the ranks, `breadth` the size across; `offset` the place across of an edge's end,
    counted from the middle.
    """

    length: float = 0.0
    breadth: float = 0.0
    rank: int = 0
    at: float = 0.0         # the middle, across
    start: float = 0.0      # where the rank begins
    end: float = 0.0
    before: list = field(default_factory=list, repr=False)      # (box, its offset, our offset) of each edge
    after: list = field(default_factory=list, repr=False)
    bend: bool = False      # no node


def place(boxes, edges, rank_gap=40.0, gap=16.0):
    """Place boxes, and return the bends of each edge: Boxes that represent it in the ranks that it crosses.

    Edges are (Box, float, Box, float): from box to box, the first before the second in `boxes`, and the offset of each end. The
    boxes get `rank`, `at`, `start` and `end`: all of a rank have one `start` and one `end`, and ranks do not overlap. `rank_gap` is
    the room between ranks, `gap` between the boxes of a rank.
    """
    _set_ranks(boxes, edges)
    ranks = [[] for _ in range(max((box.rank for box in boxes), default=-1) + 1)]
    for box in boxes:
        ranks[box.rank].append(box)
    bends = [_add_bends(ranks, *edge, gap) for edge in edges]
    _order(ranks)
    _set_positions(ranks, gap)
    start = 0.0
    for rank in ranks:
        end = start + max(box.length for box in rank)
        for box in rank:
            box.start, box.end = start, end
        start = end + rank_gap
    return bends


def _set_ranks(boxes, edges):
    """Set the rank of each box: the longest way from a source; a source is placed right before the first box that needs it."""
    into, out = ({box: [] for box in boxes} for _ in range(2))
    for source, _, target, _ in edges:
        into[target].append(source)
        out[source].append(target)
    for box in boxes:
        box.rank = max((source.rank + 1 for source in into[box]), default=0)
    for box in boxes:
        if not into[box] and out[box]:
            box.rank = min(target.rank for target in out[box]) - 1


def _add_bends(ranks, source, out, target, into, gap):
    """Link two boxes by bends, one in each rank between them, and return the bends: a long edge keeps a place among the boxes."""
    bends, last, offset = [], source, out
    for rank in range(source.rank + 1, target.rank):
        bends.append(Box(0.0, gap / 2, rank, bend=True))
        ranks[rank].append(bends[-1])
    for end, end_offset in [*((bend, 0.0) for bend in bends), (target, into)]:
        last.after.append((end, end_offset, offset))
        end.before.append((last, offset, end_offset))
        last, offset = end, end_offset
    return bends


def _order(ranks):
    """Sort each rank by the mean place of its neighbours, down and up in turn, and keep the order with the fewest crossings."""
    best, fewest = [list(rank) for rank in ranks], None
    for sweep in range(SWEEPS):
        place_of = {box: i for rank in ranks for i, box in enumerate(rank)}
        crossings = sum(_crossings(rank, place_of) for rank in ranks)
        if fewest is None or crossings < fewest:
            best, fewest = [list(rank) for rank in ranks], crossings
        if not crossings:
            break
        down = sweep % 2 == 0
        for rank in ranks if down else reversed(ranks):
            rank.sort(key={box: _mean(box.before if down else box.after, place_of, place_of[box]) for box in rank}.get)
            place_of.update((box, i) for i, box in enumerate(rank))
    for rank, order in zip(ranks, best):
        rank[:] = order


def _mean(edges, place_of, default):
    """Return the mean place of the other ends of edges, by which `_order` sorts a rank; `default` without edges."""
    near = [place_of[other] + offset / max(other.breadth, 1.0) for other, offset, _ in edges]
    return sum(near) / len(near) if near else default


def _crossings(rank, place_of):
    """Return the number of crossings of the edges that leave a rank, which `_order` minimizes."""
    ends = sorted((i, offset, place_of[other], at) for i, box in enumerate(rank) for other, at, offset in box.after)
    return sum(a[2:] > b[2:] for i, a in enumerate(ends) for b in ends[i + 1:] if a[:2] != b[:2])


def _set_positions(ranks, gap):
    """Set `at` of all boxes so that edges are nearly straight, without changing the order of a rank."""
    for rank in ranks:
        _place_boxes(rank, [0.0] * len(rank), gap)
    for sweep in range(2 * SWEEPS + 1):     # the last one comes from above, which leaves chains straight
        down = sweep % 2 == 0
        for rank in ranks if down else reversed(ranks):
            _place_boxes(rank, [_preferred_position(box.before if down else box.after, box) for box in rank], gap)


def _preferred_position(edges, box):
    """Return the place of a box at which these edges are straight: their weighted median, which keeps chains straight.

    An edge to a box without others counts three times.
    """
    goals = [other.at + offset - box_offset for other, offset, box_offset in edges
             for _ in range(3 if len(other.after) == 1 or len(other.before) == 1 else 1)]
    return statistics.median(goals) if goals else box.at


def _place_boxes(rank, goals, gap):
    """Move each box as near to its place in `goals` as the gaps allow (least squares: pool adjacent violators)."""
    offsets = list(accumulate(((a.breadth + b.breadth) / 2 + gap for a, b in pairwise(rank)), initial=0.0))
    pools = []      # [sum of weight x place, weight, number of boxes], their means rise
    for box, goal, offset in zip(rank, goals, offsets):
        weight = 4.0 if box.bend else 1.0
        pools.append([weight * (goal - offset), weight, 1])
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] >= pools[-1][0] / pools[-1][1]:
            top = pools.pop()
            pools[-1] = [a + b for a, b in zip(pools[-1], top)]
    middles = [total / weight for total, weight, count in pools for _ in range(count)]
    for box, middle, offset in zip(rank, middles, offsets):
        box.at = middle + offset
