"""Epilogues: what an operation does to each element of its result before storing it, in place of the following layers.

Before a fused forward net/step.pyx makes an Epilogue of the operation's `epilogue_class`, calls `Layer.fuse` of each following
layer, which calls one of its methods, and stores it in ``Operation.epilogue``. A primitive that computes it sets that to None.
The next forward uses it again if it `is_current`.
"""

from libc.math cimport sqrt
from libc.string cimport memcmp

from minicaffe.kernels.types cimport FLOAT, item_size
from minicaffe.memory.states cimport UNINITIALIZED
from minicaffe.memory.synced cimport SyncedMemory


cdef class ConcatSlice:
    """The place of one bottom of a Concat in its top, `whole`: an operation may write its result there (net/compile.pyx)."""

    def __init__(self, Blob whole not None, long long first, long long unit, str concat_name not None):
        self.whole, self.first, self.unit, self.concat_name = whole, first, unit, concat_name

    cdef char* begin(self, const Context& on, Layout layout) except? NULL:
        """Return the address for a result in `layout` (None: plain), its images `pitch` bytes apart; NULL if that is impossible."""
        cdef Layout whole_layout = layout.with_shape(self.whole.shape) if layout is not None else None
        cdef SyncedMemory memory = self.whole.data_memory
        if memory.has_external_view() or layout is not None and (
                whole_layout is None or layout.channels_last or self.unit % layout.lanes):
            return NULL
        memory.renew()      # recycled by the plan in the last iteration
        if memory.head != UNINITIALIZED and memory.layout() is not whole_layout:    # earlier parts were written in another layout
            return NULL
        cdef long long nbytes = (self.whole.count * item_size(self.whole.dtype) if whole_layout is None
                                 else <long long> whole_layout.nbytes)
        self.pitch = nbytes // self.whole.dims[0]
        return <char*> self.whole.mutable_data_in_layout(on, whole_layout) + self.pitch // self.whole.dims[1] * self.first

    cdef bint take_written(self):
        """Return whether the operation wrote its result here, for the Concat's forward, and reset that for the next iteration."""
        cdef bint written = self.written
        self.written = False
        return written


cdef class Epilogue:
    """The layers after an operation that are fused into it, in their order; a derived class holds what its operations can compute.

    `Layer.fuse` calls a method, which appends the layer and returns True, or returns False: the layer then runs alone.

    Parameters
    ----------
    top : Blob
        The top of the operation, of any shape.
    fuses_backward, allows_sum : bool
        As the attributes of these names (epilogue.pxd).
    """

    allows_other_top = False   # whether the result may go to another blob than the operation's own top

    def __init__(self, Blob top not None, bint fuses_backward=False, bint allows_sum=False):
        self.top, self.fuses_backward, self.allows_sum = top, fuses_backward, allows_sum

    cpdef bint standardize(self, Blob mean, Blob variance, Blob factor, double eps) except -1:
        """Append a BatchNorm by its running sums: subtract ``mean / factor``, divide by ``sqrt(variance / factor + eps)``."""
        return False

    cpdef bint affine(self, Blob scale, Blob shift, learned) except -1:
        """Append a Scale or Bias: blobs with a value for each channel, or None; `learned`: a pair, whether each gets a gradient."""
        return False

    cpdef bint add(self, Blob addend) except -1:
        """Append an Eltwise sum with the blob `addend`, of the shape of the result."""
        return False

    cpdef bint rectify(self, slopes) except -1:
        """Append a ReLU or PReLU: negative values times `slopes`, a number or a blob with one value for each channel or for all."""
        return False

    cdef bint is_current(self) except -1:
        """Return whether it is valid for another forward, too: the parameters that it has read are unchanged."""
        return False


cdef class ChannelEpilogue(Epilogue):
    """Of convolutions: ``z = scale y + shift + addend``, then ``max(z, 0) + slopes min(z, 0)``; each part is optional."""

    allows_other_top = True

    def __cinit__(self, *_, **__):
        self.sources = []

    cdef bint is_current(self) except -1:
        cdef Blob blob
        cdef size_t at = 0, nbytes
        for blob in self.sources:       # to compare them takes a tenth of the time of the formulas
            nbytes = blob.count * item_size(blob.dtype)
            if at + nbytes > self.seen.size() or memcmp(self.seen.data() + at, blob.cpu_data_ptr(), nbytes):
                return False
            at += nbytes
        return at == self.seen.size()

    cdef vector[double] read(self, Blob blob) except *:
        """Return the values of a parameter, float or double, on the host; empty for None."""
        cdef vector[double] found
        cdef size_t i
        if blob is None:
            return found
        cdef const void* values = blob.cpu_data_ptr()
        self.sources.append(blob)
        self.seen.insert(self.seen.end(), <const char*> values, <const char*> values + blob.count * item_size(blob.dtype))
        found.resize(blob.count)
        for i in range(found.size()):
            found[i] = (<const float*> values)[i] if blob.dtype == FLOAT else (<const double*> values)[i]
        return found

    cpdef bint standardize(self, Blob mean, Blob variance, Blob factor, double eps) except -1:
        """Append ``(y - mean) / deviation`` as a scale and a shift; with `factor` 0 both sums count as 0."""
        if self.addend is not None or self.slopes.size():
            return False
        cdef vector[double] means = self.read(mean), scales = self.read(variance)
        cdef double weight = self.read(factor)[0]
        cdef double part = 1 / weight if weight else 0
        cdef size_t i
        for i in range(scales.size()):
            scales[i] = 1 / sqrt(scales[i] * part + eps)
            means[i] *= -part * scales[i]
        self.append_affine(scales, means)
        return True

    cpdef bint affine(self, Blob scale, Blob shift, learned) except -1:
        """Append a scale and a shift, before an addend and slopes only."""
        if self.addend is not None or self.slopes.size():
            return False
        cdef size_t count = (scale if scale is not None else shift).count
        self.append_affine(self.read(scale) if scale is not None else vector[double](count, 1.0),
                           self.read(shift) if shift is not None else vector[double](count, 0.0))
        return True

    cdef void append_affine(self, const vector[double]& scale, const vector[double]& shift) noexcept:
        """Apply another scale and shift after those so far, and store both as one: ``s2 (s1 y + t1) + t2``."""
        cdef size_t i
        if self.scale.empty():
            self.scale, self.shift = scale, shift
            return
        for i in range(scale.size()):
            self.scale[i] *= scale[i]
            self.shift[i] = self.shift[i] * scale[i] + shift[i]

    cpdef bint add(self, Blob addend) except -1:
        """Store the addend, once and before slopes, if the primitive can add."""
        if not self.allows_sum or self.addend is not None or self.slopes.size():
            return False
        self.addend = addend
        return True

    cpdef bint rectify(self, slopes) except -1:
        """Store the slopes, once, as floats: one for all, or one for each channel."""
        if self.slopes.size():
            return False
        if isinstance(slopes, Blob):
            for slope in self.read(slopes):
                self.slopes.push_back(<float> slope)
        else:
            self.slopes.push_back(<float> slopes)
        return True

    cdef int compute_factors(self, Blob bias) except -1:
        """Compute `factors` and `terms` such that the result is ``factors y + terms``, y without the operation's `bias` (or None).

        A primitive calls it in forward if there is a `scale`, in place of its own bias.
        """
        if self.factors.size():
            return 0
        cdef vector[double] before = self.read(bias)
        cdef size_t i
        before.resize(self.scale.size())
        self.terms.resize(self.scale.size())
        self.factors.resize(self.scale.size())      # last: it says that they are computed
        for i in range(self.scale.size()):
            self.factors[i], self.terms[i] = <float> self.scale[i], <float> (self.shift[i] + self.scale[i] * before[i])


cdef class ReluEpilogue(Epilogue):
    """Of inner products and sums: one ReLU of slope 0."""

    cpdef bint rectify(self, slopes) except -1:
        if self.rectifies or isinstance(slopes, Blob) or slopes != 0:
            return False
        self.rectifies = True
        return True


cdef class NormEpilogue(Epilogue):
    """Of BatchNorm: one Scale or Bias, and one ReLU with a fixed slope, forward and, with `fuses_backward`, backward."""

    def __cinit__(self):
        self.slope = 1

    cpdef bint affine(self, Blob scale, Blob shift, learned) except -1:
        """Store the blobs, once and before `rectify`."""
        if self.scale is not None or self.shift is not None or self.rectifies:
            return False
        self.scale, self.shift = scale, shift
        self.scale_learned, self.shift_learned = learned
        return True

    cpdef bint rectify(self, slopes) except -1:
        if self.rectifies or isinstance(slopes, Blob) or slopes < 0:
            return False
        self.slope, self.rectifies = slopes, True
        return True
