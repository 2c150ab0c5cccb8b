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
    cdef SyncedMemory memory
    cdef int size, count = len(schedule.nodes)
    cdef list rows = [], params = net.param_table.params
    # Number of the row at each position of an iteration: forward of node i is at i, its backward at 2 count - 1 - i.
    cdef list numbers = [0] * (2 * count)
    cdef dict lifetimes = find_lifetimes(schedule.nodes, net.pinned_blobs, params, schedule.training)
    if schedule.training:
        shorten_lifetimes(lifetimes, schedule.nodes, schedule.backward_starts, schedule.deferred_relus)
    for memory in {id(memory): memory for blob in params for memory in (blob.data_memory, blob.diff_memory)}.values():
        lifetimes.pop(id(memory), None)
    for step in schedule.forward:
        choose_engines(step.nodes[0], on)
        size = len(step.nodes)
        numbers[step.first:step.first + size] = [len(rows)] * size
        rows.append(row_of(step, "forward", schedule.deferred_relus))
        for memory in dict.fromkeys([(<Blob> blob).data_memory for blob in step.nodes[size - 1].tops]):
            lifetime = lifetimes.get(id(memory))
            if lifetime is not None and lifetime.last() >= count:      # its last use is in backward
                rows[len(rows) - 1]["saves"].append(memory._name)
    for step in schedule.backward if schedule.training else ():
        node, size = step.nodes[0], len(step.nodes)
        if node.needs_backward or step.updates:
            numbers[2 * count - step.first - size:2 * count - step.first] = [len(rows)] * size
            rows.append(row_of(step, "backward", schedule.deferred_relus))
            rows[len(rows) - 1]["updates"] = [(<Blob> net.learnable_params[i]).name for i in step.updates]
    for lifetime in lifetimes.values():
        if lifetime.uses and lifetime.memory.size:
            begin, end = 0, len(rows) - 1       # without a plan, or `kept` for others: all of the iteration
            if schedule.plan and lifetime.written and not lifetime.kept:
                begin, end = numbers[lifetime.uses[0]], numbers[lifetime.last()]
                rows[end]["frees"].append(lifetime.memory._name)
            for row in rows[begin:end + 1]:
                row["live"] += lifetime.memory.size
    return rows


cdef int choose_engines(Node node, const Context& on) except -1:
    """Choose the engines that the first run would choose, so that the table has them before it; not where layouts decide."""
    cdef Operation operation
    for operation in node.layer.operations() if node.bottoms else ():
        if not operation.depends_on_layout and operation.has_engines():
            operation.choose(on, node.bottoms[0])


cdef dict row_of(FusedStep step, str direction, dict deferred_relus):
    """Return the fields of a ScheduleRow; `schedule_rows` fills in those that depend on lifetimes of memory.

    `deferred_relus` has for the number of a ReLU that of the later Concat that computes its gradient (net/compile.pyx,
    `find_concat_slices`): such a ReLU reads nothing in backward, and the Concat reads its top.
    """
    cdef Node node = step.nodes[0]
    # Tops between the fused nodes are neither read nor written: the first node's operation computes the last one's tops.
    cdef list intermediate = [blob for node in step.nodes[:len(step.nodes) - 1] for blob in node.tops]
    cdef list bottoms = node.bottoms + [blob for node in step.nodes[1:] for blob in node.bottoms
                                        if not any(blob is other for other in intermediate)]
    cdef list tops = step.nodes[len(step.nodes) - 1].tops
    blobs = [blob for node in step.nodes for blob in node.blobs]
    if direction == "forward":
        reads, writes = [blob.data_memory for blob in [*bottoms, *blobs]], [blob.data_memory for blob in tops]
    else:
        reads = [blob.diff_memory for blob in tops] + [blob.data_memory for blob in blobs]
        has_late_relu = step.first in deferred_relus.values()
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
            "reads": nbytes_of(reads), "writes": nbytes_of(writes), "saves": [], "frees": [], "updates": [], "live": 0}


cdef str layout_text(Layout layout):
    """Return the layout in oneDNN's notation: nChw16c has 16 channels beside each other, NHWC all of them. None: plain order."""
    if layout is None:
        return None
    text = "NHWC" if layout.channels_last else f"nChw{layout.lanes}c" if layout.lanes else "private"
    return f"{text} bf16" if layout.dtype == BF16 else text


cdef long long nbytes_of(list memories):
    """Return the bytes of memories, each counted once: a blob may be read under several names."""
    return sum([memory.size for memory in {id(memory): memory for memory in memories}.values()])
