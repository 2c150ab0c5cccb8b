"""Cost of a node of a net: floating-point operations and bytes of memory traffic, forward and backward.

The arithmetic of the formula is counted, whatever the engine does: engine WINOGRAD multiplies less often; padding counts.

- A multiplication and the addition of its product are two operations. So convolutions, deconvolutions, inner products, LSTM and RNN
  cost exactly ``2 m n k`` for each of their matrix products: one forward, one for the gradient of the bottom, one for that of the
  weights. A bias is what a sum starts from and costs nothing forward; its gradient is one addition for each value of the top.
- All other types cost one operation for each value of their largest bottom or top, whatever it is, and backward as many for each
  gradient; data and views cost none.

Bytes are those of the arrays in plain order, each read or written once: forward reads bottoms and parameters and writes tops.
Backward reads the diffs of the tops, the data that its type needs (`Layer.backward_reads_bottoms`, `backward_reads_tops`) and the
weights, writes the diffs of bottoms and adds to those of parameters. A top that shares its bottom's memory, as that of a Reshape,
moves nothing, nor does an Input, whose tops the caller fills.
"""

from collections import namedtuple

from minicaffe.blob import NUMPY_TYPES

# Cost of a pass of a node: floating-point operations; bytes that are read and written.
Cost = namedtuple("Cost", "flops bytes")


def of_node(node, direction):
    """Return the Cost of a pass, ``forward`` or ``backward``, of a node of a net that was reshaped; bytes are those in plain order.

    It is 0 for a backward that the net leaves out.
    """
    if direction == "backward" and not node.needs_backward:
        return Cost(0, 0)
    return Cost(flops(node, direction), sum(nbytes(blobs) for parts in arrays(node, direction) for _, blobs in parts))


def flops(node, direction):
    """Return the operations of a pass of a node that runs; `minicaffe time` runs also a backward that the net leaves out."""
    if direction == "forward":
        return node.layer.flops(node.bottoms, node.tops)
    return node.layer.backward_flops(node.bottoms, node.tops, node.bottom_needs)


def step(nodes, direction):
    """Return the Cost of nodes that are computed as one, in the order of the net, after a run of them (timing.py).

    Each array counts once where it is read and once where it is written, with the elements that engines keep of it now: those in
    bfloat16 have two bytes. An array that one of the nodes writes and a later one reads does not count.
    """
    read, written, writes, passed = {}, {}, {}, set()
    for node in nodes if direction == "forward" else nodes[::-1]:
        reads, writes = (dict(_stored_size(blob, part) for part, blobs in parts for blob in blobs)
                         for parts in arrays(node, direction))
        passed |= reads.keys() & written.keys()
        read |= {key: size for key, size in reads.items() if key not in written}
        written |= writes
    # `writes` are the results of the node that ran last, which count; `passed` was written by one node and read by a later one.
    kept = (size for key, size in written.items() if key in writes or key not in passed)
    return Cost(sum(flops(node, direction) for node in nodes), sum(read.values()) + sum(kept))


def arrays(node, direction):
    """Return the arrays that a node reads, and those that it writes, whose bytes are its traffic.

    Both are lists of pairs: ``data`` or ``diff``, and blobs. Tops that share memory with bottoms move nothing. Backward adds to the
    diffs of parameters, so these are in both lists.
    """
    layer, bottoms, tops, needs = node.layer, node.bottoms, node.tops, node.bottom_needs
    if direction == "forward":
        shared = {id(blob.data_memory) for blob in bottoms if blob not in tops}
        moved = [blob for blob in tops if id(blob.data_memory) not in shared and layer.type != "Input"]
        return [("data", [*(bottoms if moved or not tops else ()), *layer.blobs])], [("data", moved)]
    shared = {id(blob.diff_memory) for blob in tops if blob not in bottoms}
    written = [blob for blob, needed in zip(bottoms, needs) if needed and id(blob.diff_memory) not in shared]
    learned = [blob for i, blob in enumerate(layer.blobs) if i >= len(layer.param_propagate_down) or layer.param_propagate_down[i]]
    if not written and not learned:
        return [], []
    data = [*(bottoms if layer.backward_reads_bottoms else ()), *(tops if layer.backward_reads_tops else ()),
            *(layer.blobs[:1] if written else ())]      # the weights, for the gradients of bottoms
    return [("diff", [*tops, *learned]), ("data", data)], [("diff", [*written, *learned])]


def _stored_size(blob, part):
    """Return the id of a blob's memory of `part`, data or diff, and the bytes of its elements as they are kept there now."""
    memory, layout = (blob.data_memory, blob.layout_of_data()) if part == "data" else (blob.diff_memory, blob.layout_of_diff())
    return id(memory), nbytes([blob]) if layout is None or layout.dtype == blob.dtype else 2 * blob.count      # else bfloat16


def nbytes(blobs):
    """Return the bytes of the data of blobs, in the type of the net."""
    return sum(blob.count * NUMPY_TYPES[blob.dtype].itemsize for blob in blobs)
