"""Ranks, order and positions of a layered layout, against a slow model or a property of each."""

import itertools
import random

import pytest

from minicaffe.addons.drawing import graph_layout
from minicaffe.addons.drawing.graph_layout import Box, place

SEEDS = pytest.mark.parametrize("seed", range(20))


def laid_out(boxes, edges, **room):
    """Place boxes whose edges name them by index, and return the bends."""
    return place(boxes, [(boxes[source], out, boxes[target], into) for source, out, target, into in edges], **room)


def crossings(ranks):
    """Count the crossings of a layout's edges, by each pair of edges between the same two ranks."""
    count = 0
    number = {id(box): i for rank in ranks for i, box in enumerate(rank)}
    for rank in ranks:
        edges = [((i, offset), (number[id(other)], at)) for i, box in enumerate(rank) for other, at, offset in box.after]
        count += sum((a[0] < b[0] and a[1] > b[1]) or (a[0] > b[0] and a[1] < b[1]) for a, b in itertools.combinations(edges, 2))
    return count


def ranks_of(boxes, bends):
    """Return the boxes and bends of each rank from one side to the other."""
    everything = [*boxes, *itertools.chain.from_iterable(bends)]
    return [sorted((box for box in everything if box.rank == rank), key=lambda box: box.at) for rank in range(max(box.rank for box in everything) + 1)]


@SEEDS
def test_shuffled_chains(seed):
    dice = random.Random(seed)
    ways, length = dice.randint(2, 6), dice.randint(2, 5)
    boxes, edges, last = [], [], []
    joined = dice.choice(["above", "below", "neither"])
    if joined == "above":
        boxes.append(Box(10, 60))
    for k in range(length):
        order = dice.sample(range(ways), ways)
        here = {}
        for way in order:
            here[way] = len(boxes)
            boxes.append(Box(10, dice.choice([10, 20, 30])))
            if k or joined == "above":
                edges.append((last[way] if k else 0, 0.0 if k else way * 10 - 5 * ways, here[way], 0.0))
        last = here
    if joined == "below":
        edges += [(last[way], 0.0, len(boxes), way * 10 - 5 * ways) for way in range(ways)]
        boxes.append(Box(10, 60))
    bends = laid_out(boxes, edges)
    ranks = ranks_of(boxes, bends)
    assert crossings(ranks) == 0
    for rank in ranks:
        for a, b in itertools.pairwise(rank):
            assert b.at - a.at >= (a.breadth + b.breadth) / 2 + 16 - 1e-6


@SEEDS
def test_ranks_and_bends(seed):
    """A rank is one below all sources of a box; a source without one is right before its first reader; an edge has a bend in each rank it crosses."""
    dice = random.Random(seed)
    count = dice.randint(1, 14)
    boxes = [Box(dice.randint(5, 50), dice.randint(5, 50)) for _ in range(count)]
    edges = [(a, 0.0, b, 0.0) for a in range(count) for b in range(a + 1, count) if dice.random() < 0.25]
    bends = laid_out(boxes, edges, rank_gap=7.0, gap=3.0)
    for i, box in enumerate(boxes):
        sources, readers = [a for a, _, b, _ in edges if b == i], [b for a, _, b, _ in edges if a == i]
        below = max(depth(edges, a) for a in sources) + 1 if sources else min((boxes[b].rank for b in readers), default=1) - 1
        assert box.rank == below
    starts = {}
    for box in [*boxes, *itertools.chain.from_iterable(bends)]:
        assert starts.setdefault(box.rank, box.start) == box.start
    for rank in range(max(starts)):
        assert starts[0] == 0 and starts[rank + 1] == starts[rank] + max((box.length for box in boxes if box.rank == rank), default=0) + 7
    for (a, _, b, _), way in zip(edges, bends):
        assert [bend.rank for bend in way] == list(range(boxes[a].rank + 1, boxes[b].rank)) and all(bend.bend and bend.breadth == 1.5 for bend in way)
        ends = [(a, *way), (*way, b)]
        assert [[id(one) for one, *_ in bend.before + bend.after] for bend in way] == [
            [id(boxes[one] if isinstance(one, int) else one) for one in (ends[0][i], ends[1][i + 1])] for i in range(len(way))]
        if not way:
            assert any(one is boxes[b] for one, *_ in boxes[a].after) and any(one is boxes[a] for one, *_ in boxes[b].before)
    for rank in ranks_of(boxes, bends):
        for one, two in itertools.pairwise(rank):
            assert two.at - one.at >= (one.breadth + two.breadth) / 2 + 3 - 1e-6


@SEEDS
def test_fewest_crossings(monkeypatch, seed):
    dice, counted = random.Random(seed), []
    count = graph_layout._crossings
    monkeypatch.setattr(graph_layout, "_crossings", lambda rank, place_of: (counted.append(count(rank, place_of)), counted[-1])[1])
    width, length = dice.randint(3, 6), dice.randint(2, 4)
    boxes = [Box(10, 10) for _ in range(width * length)]
    edges = [(width * k + a, 0.0, width * (k + 1) + b, 0.0) for k in range(length - 1) for a in range(width) for b in range(width)
             if dice.random() < 0.5 or a == b]
    ranks = ranks_of(boxes, laid_out(boxes, edges))
    of_sweeps = [sum(counted[i:i + len(ranks)]) for i in range(0, len(counted), len(ranks))]
    assert crossings(ranks) == min(of_sweeps)
    columns = [Box(10, 10) for _ in range(width * length)]
    goals = dice.sample(range(width), width)
    laid_out(columns, [(width * k + a, 0.0, width * (k + 1) + goals[a], 0.0) for k in range(length - 1) for a in range(width)])
    for a in range(width):
        way = [a]
        for k in range(length - 1):
            way.append(goals[way[-1]])
            assert abs(columns[width * (k + 1) + way[-1]].at - columns[a].at) < 1e-6


def depth(edges, box):
    return max((depth(edges, a) + 1 for a, _, b, _ in edges if b == box), default=0)


@SEEDS
def test_places_of_boxes(seed):
    """No other place of any run of boxes has less weighted squares; a bend counts four times."""
    dice = random.Random(seed)
    rank = [Box(1, dice.choice([4, 10, 16]), bend=dice.random() < 0.4) for _ in range(dice.randint(1, 7))]
    goals = [float(dice.randint(-20, 20)) for _ in rank]
    graph_layout._place_boxes(rank, goals, 5.0)

    def cost(places):
        return sum((4 if box.bend else 1) * (at - goal) ** 2 for box, at, goal in zip(rank, places, goals))

    def fits(places):
        return all(places[i + 1] - places[i] >= (rank[i].breadth + rank[i + 1].breadth) / 2 + 5 - 1e-9 for i in range(len(rank) - 1))

    places = [box.at for box in rank]
    assert fits(places)
    for begin, end in itertools.combinations(range(len(rank) + 1), 2):
        for step in 0.01, -0.01, 1.0, -1.0:
            moved = [at + step * (begin <= i < end) for i, at in enumerate(places)]
            assert not fits(moved) or cost(moved) >= cost(places)


def test_preferred_position():
    """An edge to a box without others counts three times; of an even number of places it is the middle of the middle two."""
    for alone, others, wanted in (((), (), 77), ((5,), (), 5), ((), (0, 10), 5), ((), (1, 4, 9), 4), ((9,), (0, 2), 9), ((9,), (0, 2, 3), 6)):
        edges = []
        for at in (*alone, *others):
            other = Box(1, 10, at=at - 1)
            other.after = other.before = [None] * (1 if at in alone else 2)
            edges.append((other, 3, 2))
        assert graph_layout._preferred_position(edges, Box(1, 10, at=77)) == wanted
