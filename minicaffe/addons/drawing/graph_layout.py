"""A layered layout of a directed graph (Sugiyama, Tagawa and Toda 1981), for nets: long chains with branches that join again.

Nodes get ranks, and long edges a bend in each rank that they cross. Sweeps order the ranks so that few edges cross, then move
nodes to the median of their neighbours. Everything is deterministic. Not for graphs with circles or ten thousands of nodes.
"""

from dataclasses import dataclass, field

SWEEPS = 12     # over all ranks, for the order and again for the positions; more sweeps changed no net of models/


@dataclass
class Box:
    """A node, or a place where a long edge crosses a rank.

    `length` is its size along the direction of the ranks, `breadth` the size across; `offset` the place across of an edge's end,
    counted from the middle.
    """

    length: float
    breadth: float
    rank: int = 0
    at: float = 0.0         # the middle, across
    start: float = 0.0      # where the rank begins
    before: list = field(default_factory=list, repr=False)      # (box, its offset, our offset) of each edge
    after: list = field(default_factory=list, repr=False)
    bend: bool = False      # no node


def place(boxes, edges, rank_gap=40.0, gap=16.0):
    """Place boxes, and return the bends of each edge: Boxes that represent it in the ranks that it crosses.

    Edges are (int, float, int, float): from box to box, by index, the first before the second, and the offset of each end. The
    boxes get `rank`, `at` and `start`: all of a rank have one `start`, and ranks do not overlap. `rank_gap` is the room between
    ranks, `gap` between the boxes of a rank.
    """
    _set_ranks(boxes, edges)
    ranks = [[] for _ in range(max((box.rank for box in boxes), default=-1) + 1)]
    for box in boxes:
        ranks[box.rank].append(box)
    bends = [_add_bends(ranks, boxes[source], out, boxes[target], into, gap) for source, out, target, into in edges]
    _order(ranks)
    _set_positions(ranks, gap)
    start = 0.0
    for rank in ranks:
        for box in rank:
            box.start = start
        start += max(box.length for box in rank) + rank_gap
    return bends


def _set_ranks(boxes, edges):
    """Set the rank of each box: the longest way from a source; a source is placed right before the first box that needs it."""
    into, out = [[] for _ in boxes], [[] for _ in boxes]
    for source, _, target, _ in edges:
        into[target].append(source)
        out[source].append(target)
    for i, box in enumerate(boxes):
        box.rank = max((boxes[j].rank + 1 for j in into[i]), default=0)
    for i, box in enumerate(boxes):
        if not into[i] and out[i]:
            box.rank = min(boxes[j].rank for j in out[i]) - 1


def _add_bends(ranks, source, out, target, into, gap):
    """Link two boxes by bends, one in each rank between them, and return the bends: a long edge keeps a place among the boxes."""
    bends, last, offset = [], source, out
    for rank in range(source.rank + 1, target.rank):
        bend = Box(0.0, gap / 2, rank, bend=True)
        ranks[rank].append(bend)
        _link(last, offset, bend, 0.0)
        bends.append(bend)
        last, offset = bend, 0.0
    _link(last, offset, target, into)
    return bends


def _link(source, source_offset, target, target_offset):
    """Record an edge in both boxes, with the offsets of its ends (`Box`)."""
    source.after.append((target, target_offset, source_offset))
    target.before.append((source, source_offset, target_offset))


def _order(ranks):
    """Sort each rank by the mean place of its neighbours, down and up in turn, and keep the order with the fewest crossings."""
    best, fewest = [list(rank) for rank in ranks], None
    for sweep in range(SWEEPS):
        place_of = {id(box): i for rank in ranks for i, box in enumerate(rank)}
        crossings = sum(_crossings(rank, place_of) for rank in ranks)
        if fewest is None or crossings < fewest:
            best, fewest = [list(rank) for rank in ranks], crossings
        if not crossings:
            break
        down = sweep % 2 == 0
        for rank in ranks if down else reversed(ranks):
            goals = {id(box): _mean(box.before if down else box.after, place_of, place_of[id(box)]) for box in rank}
            rank.sort(key=lambda box, goals=goals: goals[id(box)])
            place_of.update((id(box), i) for i, box in enumerate(rank))
    for rank, order in zip(ranks, best):
        rank[:] = order


def _mean(edges, place_of, default):
    """Return the mean place of the other ends of edges, by which `_order` sorts a rank; `default` without edges."""
    near = [place_of[id(other)] + offset / max(other.breadth, 1.0) for other, offset, _ in edges]
    return sum(near) / len(near) if near else default


def _crossings(rank, place_of):
    """Return the number of crossings of the edges that leave a rank, which `_order` minimizes."""
    ends = [(i, offset, place_of[id(other)], at) for i, box in enumerate(rank) for other, at, offset in box.after]
    ends.sort()
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

    An edge to a box without others weighs most.
    """
    goals = sorted((other.at + offset - box_offset, 3 if len(other.after) == 1 or len(other.before) == 1 else 1)
                    for other, offset, box_offset in edges)
    if not goals:
        return box.at
    half, seen = sum(weight for _, weight in goals) / 2, 0
    for i, (at, weight) in enumerate(goals):
        seen += weight
        if seen > half:
            return at
        if seen == half:
            return (at + goals[i + 1][0]) / 2
    return goals[-1][0]


def _place_boxes(rank, goals, gap):
    """Move each box as near to its place in `goals` as the gaps allow (least squares: pool adjacent violators)."""
    offsets, total = [], 0.0
    for i, box in enumerate(rank):
        if i:
            total += (rank[i - 1].breadth + box.breadth) / 2 + gap
        offsets.append(total)
    pools = []      # [sum of weight x place, weight, number of boxes], their means rise
    for box, goal, offset in zip(rank, goals, offsets):
        weight = 4.0 if box.bend else 1.0
        pools.append([weight * (goal - offset), weight, 1])
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] >= pools[-1][0] / pools[-1][1]:
            top = pools.pop()
            pools[-1] = [a + b for a, b in zip(pools[-1], top)]
    i = 0
    for total, weight, count in pools:
        for _ in range(count):
            rank[i].at = total / weight + offsets[i]
            i += 1
