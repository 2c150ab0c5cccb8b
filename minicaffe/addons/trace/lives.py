"""Lifetimes of blocks, segments and their cells in a trace, and changes of heads, by the rules of docs/trace.md.

A moment is a number of events: moment 0 is the start, moment i is after the first i events.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple


class Moment(NamedTuple):
    """The state after the first events of a trace.

    Attributes
    ----------
    heads : dict
        Name of the head by name of the memory.
    blocks : list of dict
        Live blocks: `place`, `address`, `bytes`, `name`.
    arenas : list of dict
        Of each allocator that cuts blocks from segments: `place`, `allocator`, and `segments`, each with `address`, `bytes` and
        `blocks` (`address`, `bytes`, `used`), by address.
    """

    heads: dict
    blocks: list
    arenas: list


@dataclass(slots=True, eq=False)
class Block:
    """A live block, from moment `first` to moment `last`, which is not included.

    `is_cell`: a cell of a segment begins at its address.
    """

    place: str
    address: int
    bytes: int
    name: str
    first: int
    last: int
    is_cell: bool = False


@dataclass(slots=True, eq=False)
class Segment:
    """A segment of an arena, a number of `Lives.arenas`; `cells` are those that it has now, or had last, by address.

    `is_pool`: a buddy allocator's.
    """

    place: str
    address: int
    bytes: int
    arena: int
    is_pool: bool
    first: int
    last: int
    cells: list


@dataclass(slots=True, eq=False)
class Cell:
    """A part of a segment; `block` is the live block there, None if it is free or waits for a stream."""

    segment: Segment
    address: int
    bytes: int
    used: bool
    block: Block
    first: int
    last: int


class Lives:
    """All lives of a trace, each list in the order in which they begin.

    Parameters
    ----------
    start : dict
        Of the document.
    events : list of Event

    Attributes
    ----------
    heads : dict
        By name of the memory, a list of (moment, name of the head).
    blocks, segments, cells : list
    arenas : list of (place, allocator, first)
    """

    def __init__(self, start, events):
        self.end = len(events) + 1      # `last` of what lives in the end
        self.heads = {name: [(0, head)] for name, head in start["heads"].items()}
        self.blocks, self.segments, self.cells, self.arenas = [], [], [], []
        self._live = {}                         # place and address -> the block that lives there now
        self._present = defaultdict(list)       # place -> its segments now
        for number, arena in enumerate(start["arenas"]):
            self.arenas.append((arena["place"], arena["allocator"], 0))
            for one in arena["segments"]:
                self._add_segment(0, number, arena["allocator"] == "buddy", one["address"], one["bytes"], one["blocks"])
        for block in start["blocks"]:
            self._begin_block(0, block["place"], block["address"], block["bytes"], block["name"])
        for moment, event in enumerate(events, 1):
            rule = self.RULES.get(event.kind)
            if rule is not None:
                rule(self, moment, event)

    def at(self, moment):
        """Return the `Moment` with this number."""
        def living(lives):
            return [one for one in lives if one.first <= moment < one.last]

        changes = {name: bisect_right(of, moment, key=lambda change: change[0]) for name, of in self.heads.items()}
        cells, segments = defaultdict(list), defaultdict(list)
        for cell in sorted(living(self.cells), key=lambda cell: cell.address):
            cells[cell.segment].append({"address": cell.address, "bytes": cell.bytes, "used": cell.used})
        for one in sorted(living(self.segments), key=lambda segment: segment.address):
            segments[one.arena].append({"address": one.address, "bytes": one.bytes, "blocks": cells[one]})
        return Moment(
            {name: self.heads[name][count - 1][1] for name, count in changes.items() if count},
            [{"place": one.place, "address": one.address, "bytes": one.bytes, "name": one.name} for one in living(self.blocks)],
            [{"place": place, "allocator": allocator, "segments": segments[number]}
             for number, (place, allocator, first) in enumerate(self.arenas) if first <= moment])

    def live_bytes(self, roles):
        """Yield moment, place and live bytes by role: of each place at the start, then whenever a block begins or ends there.

        `roles` has the role of each block by its name; other blocks have the role "other".
        """
        changes, live = defaultdict(list), defaultdict(dict)
        for block in self.blocks:
            role = roles.get(block.name, "other")
            changes[block.first].append((block.place, role, block.bytes))
            changes[block.last].append((block.place, role, -block.bytes))
        changes.pop(self.end, None)
        for moment in sorted(changes):
            for place, role, nbytes in changes[moment]:
                live[place][role] = live[place].get(role, 0) + nbytes
            for place in dict.fromkeys(place for place, _, _ in changes[moment]):
                yield moment, place, dict(live[place])

    # Rules: one for each kind of event.

    def _head(self, moment, event):
        self.heads.setdefault(event.name, []).append((moment, event.detail.partition(" -> ")[2].partition(" by ")[0]))

    def _alloc(self, moment, event):
        self._end_block(moment, event)
        block = self._begin_block(moment, event.place, event.address, event.nbytes, event.name)
        self._use(moment, event, True, block if block.is_cell else None)

    def _free(self, moment, event):
        self._end_block(moment, event)
        self._use(moment, event, False, None)

    def _segment_taken(self, moment, event):
        number = next((i for i, arena in enumerate(self.arenas) if arena[0] == event.place), len(self.arenas))
        if number == len(self.arenas):
            self.arenas.append((event.place, "buddy" if event.kind == "pool taken" else "caching", moment))
        self._add_segment(moment, number, event.kind == "pool taken", event.address, event.nbytes,
                          [{"address": event.address, "bytes": event.nbytes, "used": False}])

    def _segment_given_back(self, moment, event):
        for segment in self._present[event.place]:
            if segment.address == event.address:
                segment.last = moment
                self._replace(moment, segment, 0, len(segment.cells), [])
        self._present[event.place] = [one for one in self._present[event.place] if one.address != event.address]

    def _split(self, moment, event):
        segment, i = self._cell_around(event.place, event.address)
        if segment is not None and segment.cells[i].bytes > event.nbytes:
            cell = segment.cells[i]
            self._replace(moment, segment, i, i + 1, [(cell.address, event.nbytes, cell.used, cell.block),
                                                      (cell.address + event.nbytes, cell.bytes - event.nbytes, False, None)])

    def _merge(self, moment, event):
        segment, _ = self._cell_around(event.place, event.address)
        if segment is not None:
            first, last = (bisect_left(segment.cells, at, key=lambda cell: cell.address)
                           for at in (event.address, event.address + event.nbytes))
            self._replace(moment, segment, first, last, [(event.address, event.nbytes, False, None)])

    RULES = {"head": _head, "alloc": _alloc, "free": _free, "split": _split, "merge": _merge,
             "segment taken": _segment_taken, "pool taken": _segment_taken,
             "segment given back": _segment_given_back, "pool given back": _segment_given_back}

    def _begin_block(self, moment, place, address, nbytes, name):
        block = self._live[place, address] = Block(place, address, nbytes, name, moment, self.end)
        self.blocks.append(block)
        segment, i = self._cell_around(place, address)
        if segment is not None and segment.cells[i].address == address:
            block.is_cell = True
            if moment == 0:
                segment.cells[i].block = block
        return block

    def _end_block(self, moment, event):
        before = self._live.pop((event.place, event.address), None)
        if before is not None:
            before.last = moment

    def _use(self, moment, event, used, block):
        """Mark the cell around an event's address."""
        segment, i = self._cell_around(event.place, event.address)
        if segment is not None:
            cell = segment.cells[i]
            self._replace(moment, segment, i, i + 1, [(cell.address, cell.bytes, used, block)])

    def _add_segment(self, moment, arena, is_pool, address, nbytes, parts):
        segment = Segment(self.arenas[arena][0], address, nbytes, arena, is_pool, moment, self.end, [])
        self.segments.append(segment)
        self._present[segment.place].append(segment)
        self._present[segment.place].sort(key=lambda one: (one.arena, one.address))
        self._replace(moment, segment, 0, 0, [(part["address"], part["bytes"], part["used"], None) for part in parts])

    def _replace(self, moment, segment, first, last, parts):
        """End the cells from `first` to `last` of a segment, and begin `parts` in their place."""
        for cell in segment.cells[first:last]:
            cell.last = moment
        segment.cells[first:last] = [Cell(segment, *part, moment, self.end) for part in parts]
        self.cells += segment.cells[first : first + len(parts)]

    def _cell_around(self, place, address):
        """Return the present segment around an address, and the number of its cell there; None twice if there is none."""
        for segment in self._present[place]:
            if segment.address <= address < segment.address + segment.bytes:
                at = bisect_right(segment.cells, address, key=lambda cell: cell.address) - 1
                return (segment, at) if at >= 0 else (None, None)
        return None, None
