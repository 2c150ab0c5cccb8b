"""The rows of the table of a schedule: what each step reads, writes, keeps and frees."""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context, context
from minicaffe.engines.engine cimport Operation
from minicaffe.kernels.types cimport BF16
from minicaffe.memory.layout cimport Layout
from minicaffe.memory.synced cimport SyncedMemory
from minicaffe.net.lifetimes cimport Lifetime, backward_reads, find_lifetimes, shorten_lifetimes
from minicaffe.net.node cimport Node
from minicaffe.net.schedule cimport Schedule
from minicaffe.net.step cimport FusedStep


def schedule_rows(net, Schedule schedule not None):
    """Return the steps of the schedule of a net as dicts with the fields of `minicaffe.inspection.schedule_table.ScheduleRow`."""
    cdef Context on = context()
    cdef FusedStep step
    cdef Node node
    cdef Lifetime lifetime
    cdef int at, count = len(schedule.nodes)
    cdef list rows = [], ends = [None] * (2 * count), params = net.param_table.params
    cdef dict lifetimes = find_lifetimes(schedule.nodes, net.pinned_blobs, params, schedule.training)
    if schedule.training:
        shorten_lifetimes(lifetimes, schedule.nodes, schedule.backward_starts, schedule.deferred_relus)
    for memory in {id(memory): memory for blob in params for memory in (blob.data_memory, blob.diff_memory)}.values():
        lifetimes.pop(id(memory), None)
    for step in schedule.forward:
        choose_engines(step.nodes[0], on)
        at = step.first + len(step.nodes) - 1
        rows.append(row_of(step, "forward", at, schedule.deferred_relus,
                           [lifetimes[id((<Blob> blob).data_memory)] for blob in step.nodes[len(step.nodes) - 1].tops
                            if id((<Blob> blob).data_memory) in lifetimes]))
        ends[step.first:at + 1] = [rows[len(rows) - 1]] * len(step.nodes)
    for step in schedule.backward if schedule.training else ():
        node = step.nodes[0]
        if node.needs_backward or step.updates:
            rows.append(row_of(step, "backward", 2 * count - 1 - step.first, schedule.deferred_relus, []))
            rows[len(rows) - 1]["updates"] = [(<Blob> net.learnable_params[i]).name for i in step.updates]
            for i in range(step.first, step.first + len(step.nodes)):
                ends[2 * count - 1 - i] = rows[len(rows) - 1]
    for row in rows:
        row["saves"] = list(dict.fromkeys([memory_name(lifetime.memory)
                                           for lifetime in row["saves"] if lifetime.last() >= count]))
    for lifetime in lifetimes.values():
        if not lifetime.uses or not lifetime.memory.size:
            continue
        first, last = lifetime.uses[0], lifetime.last()
        ended = schedule.plan and lifetime.written and not lifetime.kept
        if ended:
            ends[last]["frees"].append(memory_name(lifetime.memory))
        for row in rows:
            if not ended or first <= row["at"] and (last <= row["at"] and ends[last] is row or row["at"] < last):
                row["live"] += lifetime.memory.size
    for row in rows:
        del row["at"]
    return rows


cdef str memory_name(SyncedMemory memory):
    return memory._name


cdef int choose_engines(Node node, const Context& on) except -1:
    """Choose the engines of the operations of a node that do not depend on the layout of its bottom."""
    cdef Operation operation
    for operation in node.layer.operations() if node.bottoms else ():
        if not operation.depends_on_layout and operation.has_engines():
            operation.choose(on, node.bottoms[0])


cdef dict row_of(FusedStep step, str direction, int at, dict deferred_relus, list saves):
    """Return the fields of a ScheduleRow; `schedule_rows` fills in those that depend on lifetimes of memory.

    `deferred_relus` has the steps of ReLUs whose gradient a later Concat computes (see `find_deferred_relus`): such a ReLU reads
    nothing in backward, and the Concat reads its top.
    """
    cdef Node node = step.nodes[0]
    cdef list intermediate = [blob for node in step.nodes[:len(step.nodes) - 1] for blob in node.tops]
    cdef list bottoms = node.bottoms + [blob for node in step.nodes[1:] for blob in node.bottoms
                                        if not any(blob is other for other in intermediate)]
    cdef list tops = step.nodes[len(step.nodes) - 1].tops
    blobs = [blob for node in step.nodes for blob in node.blobs]
    if direction == "forward":
        reads, writes = [blob.data_memory for blob in [*bottoms, *blobs]], [blob.data_memory for blob in tops]
    else:
        reads = [blob.diff_memory for blob in tops] + [blob.data_memory for blob in blobs]
        has_late_relu = step.first in {index for index, _ in deferred_relus.values()}
        for node in step.nodes if step.first not in deferred_relus else ():
            if node is step.nodes[0] or not step.fused_backward:
                reads += backward_reads(node) + [blob.data_memory for blob in (node.tops if has_late_relu else ())]
        node = step.nodes[0]
        writes = [blob.diff_memory for blob, needed in zip(node.bottoms, node.bottom_needs) if needed]
        writes += [blob.diff_memory for blob in blobs]
    engines = dict.fromkeys(operation.describe()["engine"] for operation in (<Node> step.nodes[0]).layer.operations())
    return {"direction": direction, "layers": [node.name for node in step.nodes], "types": [node.type for node in step.nodes],
            "part_of": step.concat_slice.concat_name if step.concat_slice is not None else None,
            "engine": "/".join(filter(None, engines)) or None,
            "layout": layout_text(step.layout) if direction == "forward" else None,
            "reads": nbytes_of(reads), "writes": nbytes_of(writes), "saves": saves, "frees": [], "updates": [], "live": 0, "at": at}


cdef str layout_text(Layout layout):
    """The layout in oneDNN's notation: nChw16c has 16 channels beside each other, NHWC all of them. None: plain order."""
    if layout is None:
        return None
    text = "NHWC" if layout.on_device else f"nChw{layout.lanes}c" if layout.lanes else "private"
    return f"{text} bf16" if layout.dtype == BF16 else text


cdef long long nbytes_of(list memories):
    return sum([memory.size for memory in {id(memory): memory for memory in memories}.values()])
