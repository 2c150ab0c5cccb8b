"""A net's schedule as a table (``net.schedule()``)."""

from collections import namedtuple

from minicaffe.common import caffe
from minicaffe.device.threads import get_num_threads
from minicaffe.inspection.schedule_rows import schedule_rows
from minicaffe.memory.sizes import size_text


class ScheduleRow(namedtuple("ScheduleRow", "direction layers types part_of engine layout reads writes saves frees updates live")):
    """A step of a schedule: one layer, or several that are computed as one; `schedule_rows` returns its fields.

    Attributes
    ----------
    direction : str
        ``forward`` or ``backward``.
    layers, types : list of str
        The first one runs, the others are fused into it.
    part_of : str or None
        The Concat into whose top forward may write its result.
    engine, layout : str or None
        `engine` is None if there is no choice of engines, or it depends on the layout of the bottom, and nothing ran yet.
        `layout` is that in which the last run forward left the first top: ``nChw16c`` has 16 channels beside
        each other, ``private`` is another of an engine's; None is plain order, and that of backward.
    reads, writes : int
        Bytes of blobs and parameters, in plain order.
    saves : list of str
        Memories that forward leaves and backward reads.
    frees : list of str
        Memories whose last use this is.
    updates : list of str
        Parameters whose gradients are complete after it.
    live : int
        Bytes of all blobs that have memory while it runs, in plain order.
    """


class Listing:
    """The steps of an iteration, which ``net.schedule()`` returns to be printed or read.

    Attributes
    ----------
    name, phase : str
    place : str
        Where it is compiled for: ``cpu`` or ``gpu``.
    threads : int
    plan : bool
        Whether memories end with their last use.
    observed : str or None
        The reason why runs are layer by layer at present, not by these steps, such as a hook of the program; None: by these.
    rows : list of ScheduleRow
    peak : int
        The largest `ScheduleRow.live`: bytes of blobs that live at once, without parameters, scratch memory and what layouts add.
    parameters : int
        Bytes of all parameters; their gradients take as much in a training without a plan.
    """

    def __init__(self, net):
        schedule = net.current_schedule()
        self.name, self.phase = net.name, "TEST" if net.phase else "TRAIN"
        self.place, self.threads, self.plan, self.observed = caffe.mode, get_num_threads(), schedule.plan, net.observer_reason()
        self.rows = [ScheduleRow(**row) for row in schedule_rows(net, schedule)]
        self.peak = max((row.live for row in self.rows), default=0)
        memories = {id(blob.data_memory): blob.data_memory for blob in net.param_table.params}
        self.parameters = sum(memory.size for memory in memories.values())

    def as_dict(self):
        """Return the attributes as a dict that JSON can hold; each row is a dict, too."""
        return {**vars(self), "rows": [row._asdict() for row in self.rows]}

    def __str__(self):
        """Return the table: facts of the net, a line for each step, and totals."""
        plan = "memory, each ends with its last use" if self.plan else "none, all blobs keep their memory"
        place = f"{self.place}, {self.threads} thread{'s' * (self.threads != 1)}" if self.place == "cpu" else self.place
        counts = [sum(row.direction == direction for row in self.rows) for direction in ("forward", "backward")]
        lines = [f"{self.name or 'net'}, phase {self.phase}, {place}; plan: {plan}", ""]
        lines += [f"{'':>4}  {'engine':<10}{'layout':<13}{'reads':>9}{'writes':>9}{'live':>9}  layers"]
        direction = None
        for number, row in enumerate(self.rows):
            if row.direction != direction:
                direction = row.direction
                lines.append(direction)
            lines.append(self.line(number, row))
        lines += ["", f"{counts[0]} steps forward, {counts[1]} backward; blobs that live at once: {size_text(self.peak)} at most; "
                      f"parameters: {size_text(self.parameters)}"]
        if self.observed:
            lines.append(f"at present runs go layer by layer, as {self.observed}")
        return "\n".join(lines)

    @staticmethod
    def line(number, row):
        """Return a step as a line; a name without ``diff`` means the data of that blob."""
        cells = (f"{number:>4}  {row.engine or '':<10}{row.layout or '':<13}"
                 f"{size_text(row.reads):>9}{size_text(row.writes):>9}{size_text(row.live):>9}")
        layers = " + ".join(row.layers) + (f", into {row.part_of}" if row.part_of and row.direction == "forward" else "")
        lists = ("keeps", row.saves), ("frees", row.frees), ("updates", row.updates)
        notes = [f"{verb} {', '.join(name.removesuffix(' data') for name in names)}" for verb, names in lists if names]
        return f"{cells}  {'; '.join([layers, *notes])}"
