"""What a node of a net costs: floating-point operations and bytes of memory traffic, forward and backward.

Counted is the arithmetic of the formula, whatever the engine does: engine WINOGRAD multiplies less often; padding counts.

- A multiplication and the addition of its product are two operations. So convolutions, deconvolutions, inner products, LSTM and RNN
  cost exactly ``2 m n k`` for each of their matrix products: one forward, one for the gradient of the bottom, one for that of the
  weights. A bias is what a sum starts from and costs nothing forward; its gradient is one addition for each value of the top.
- All other types cost a number of operations for each value of their largest bottom or top (`Layer.flops_per_value`): an addition,
  a comparison, a quotient and a function such as exp count one each. It is 1 unless the type says otherwise, 0 for data, views and
  copies. Pooling and LRN count each value of each window. A learned weight of such a type costs two for each value backward.

Bytes are those of the arrays in plain order, each read or written once: forward reads bottoms and parameters and writes tops.
Backward reads the diffs of the tops, the data that its type needs (`Layer.backward_reads_bottoms`, `backward_reads_tops`) and the
weights, writes the diffs of bottoms and adds to those of parameters. A top that shares its bottom's memory, as that of a Reshape,
moves nothing, nor does an Input, whose tops the caller fills.
"""

from typing import NamedTuple

from minicaffe.blob import NUMPY_TYPES


class Cost(NamedTuple):
    """What a pass of a node costs: `flops`, floating-point operations; `bytes`, read and written."""

    flops: int
    bytes: int


def forward(node):
    """Return the Cost of a node's forward.

    Parameters
    ----------
    node : Node
        Of a net that was reshaped.

    Returns
    -------
    Cost
    """
    layer, bottoms, tops = node.layer, node.bottoms, node.tops
    shared = {id(blob.data_memory) for blob in bottoms if blob not in tops}
    moved = [blob for blob in tops if id(blob.data_memory) not in shared and layer.type != "Input"]
    read = [blob for blob in bottoms if moved or not tops]
    return Cost(layer.flops(bottoms, tops), nbytes(read) + nbytes(moved) + nbytes(layer.blobs))


def backward(node):
    """Return the Cost of a node's backward, nothing where it has none; see `forward`."""
    layer, bottoms, tops, needs = node.layer, node.bottoms, node.tops, node.bottom_needs
    if not node.needs_backward:
        return Cost(0, 0)
    shared = {id(blob.diff_memory) for blob in tops if blob not in bottoms}
    written = [blob for blob, needed in zip(bottoms, needs) if needed and id(blob.diff_memory) not in shared]
    learned = [blob for i, blob in enumerate(layer.blobs) if i >= len(layer.param_propagate_down) or layer.param_propagate_down[i]]
    if not written and not learned:
        return Cost(layer.backward_flops(bottoms, tops, needs), 0)
    read = [*tops, *(bottoms if layer.backward_reads_bottoms else ()), *(tops if layer.backward_reads_tops else ()),
            *(layer.blobs[:1] if written else ()), *learned]
    return Cost(layer.backward_flops(bottoms, tops, needs), nbytes(read) + nbytes(written) + nbytes(learned))


def nbytes(blobs):
    """Return the bytes of the data of blobs."""
    return sum(blob.count * NUMPY_TYPES[blob.dtype].itemsize for blob in blobs)
