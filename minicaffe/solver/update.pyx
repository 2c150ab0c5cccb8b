"""Apply one update to all parameters of a net, one fused pass over the memory of each (ops/update/caffe.hpp).

Caffe makes a pass for each of: normalise, regularise, history, step, ``w -= step``. Here they are one, which also leaves
the step in the parameter's diff, as Caffe does.
"""

from libcpp.vector cimport vector

from minicaffe.blob cimport FLOAT, Blob
from minicaffe.device.context cimport Context, context, settle
from minicaffe.kernels.types cimport item_size
from minicaffe.memory.layout cimport Layout
from minicaffe.memory.reporter cimport Reporter
from minicaffe.engines.layouts cimport diff_layout, stored

from minicaffe.errors import ShapeError
from minicaffe.memory.reporter import reporter
from minicaffe.memory.synced import device_lock

cdef extern from "minicaffe/ops/update/caffe.hpp" nogil:
    struct Parameter "mc::Parameter":
        void* w                 # data
        void* g                 # diff; afterwards the step
        void* h                 # history
        void* h2                # second history; `h` of rules with one
        long long count         # elements, with padding in an engine's layout
        double rate, l2, l1     # learning rate times lr_mult; weight decay of L2 or of L1, the other is 0
    # (context, Dtype, number of parameters, parameters, scale of gradients, members of the rule)
    void sgd_update "mc::update<mc::SgdRule>"(const Context&, int, int, const Parameter*, double, double)
    void nesterov_update "mc::update<mc::NesterovRule>"(const Context&, int, int, const Parameter*, double, double)
    void adagrad_update "mc::update<mc::AdaGradRule>"(const Context&, int, int, const Parameter*, double, double)
    void rmsprop_update "mc::update<mc::RmsPropRule>"(const Context&, int, int, const Parameter*, double, double, double)
    void adadelta_update "mc::update<mc::AdaDeltaRule>"(const Context&, int, int, const Parameter*, double, double, double)
    void adam_update "mc::update<mc::AdamRule>"(const Context&, int, int, const Parameter*, double, double, double, double)

cdef Reporter _reporter = reporter

cpdef enum Rule:
    SGD
    NESTEROV
    ADAGRAD
    RMSPROP
    ADADELTA
    ADAM


def update_params(Rule rule, list params, list history, lr_mults, decay_mults, double rate, double scale=1,
                  double weight_decay=0, bint l1=False, double momentum=0, double momentum2=0, double delta=0, tuple part=None):
    """Update every parameter: its data, its history, and its diff, which holds the step afterwards.

    Parameters
    ----------
    params : list of N Blob
        float32 or float64, of any shapes; the diff of each is the gradient.
    history : list of N Blob, or of 2 N for ADADELTA and ADAM
        Of the shapes of `params`, the second N again.
    lr_mults, decay_mults : sequence of N float
        Factors of `rate` and `weight_decay` for each parameter.
    rate : float
        For ADAM with the bias correction in it.
    scale : float
        Factor of the gradient before anything else.
    l1 : bool
        Decay by ``sign(w)`` instead of ``w``.
    momentum : float
        Also the decay of RMSPROP and ADADELTA and the beta1 of ADAM.
    part : (Blob, int, int), optional
        ``(blob, first, count)``: the data of `blob` is the gradient of elements `first` to ``first + count - 1`` of the only
        parameter. Only these are updated; its own diff is not used.

    Raises
    ------
    ShapeError
        If the counts or types do not agree.
    """
    cdef Py_ssize_t n = len(params), i
    cdef bint two = rule == ADADELTA or rule == ADAM
    cdef int dtype = FLOAT
    cdef double decay
    cdef Blob blob, first, second, gradient
    cdef long long begin
    cdef Context on = context()
    cdef Layout layout
    cdef vector[Parameter] table
    cdef Parameter entry
    if len(history) != (2 * n if two else n) or len(lr_mults) != n or len(decay_mults) != n:
        raise ShapeError(f"{n} parameters with {len(history)} history blobs, {len(lr_mults)} lr_mults and {len(decay_mults)} "
                         "decay_mults; they must belong to one net")
    cdef int count
    names = ", ".join([blob.name for blob in params]) if _reporter.recording else ""
    if _reporter.recording:
        _reporter.event("begin", None, 0, 0, names, "update")
    with device_lock:   # from the first pointer on: a reader of a blob in between would make the host's copy the valid one
        for i in range(n):
            blob, first = params[i], history[i]
            second = history[n + i] if two else first
            if first.count != blob.count or second.count != blob.count or first.dtype != blob.dtype or second.dtype != blob.dtype:
                raise ShapeError(f"history of {first.shape_string()} for the parameter of {blob.shape_string()}",
                                 field=f"history[{i}]")
            if blob.dtype != (<Blob> params[0]).dtype:
                raise ShapeError("the parameters of one net must have one type", field=f"params[{i}]")
            if blob.count == 0:
                continue
            dtype = blob.dtype
            # Where an engine left the gradient in a layout of its own, all is done there. Zeros of its padding stay zero: only a
            # rule that divides 0 by 0 would change them.
            layout = diff_layout(on, [blob]) if part is None else None
            if stored(layout, blob) != blob.count and rule not in (SGD, NESTEROV) and <float> delta == 0:
                layout = None
            entry.w = blob.mutable_data_in_layout(on, layout)
            entry.h, entry.h2 = first.mutable_data_in_layout(on, layout), second.mutable_data_in_layout(on, layout)
            entry.count, entry.rate = stored(layout, blob), rate * <double> lr_mults[i]
            if part is None:
                entry.g = blob.mutable_diff_in_layout(on, layout)
            else:
                gradient, begin, entry.count = part
                begin *= item_size(dtype)
                entry.g = gradient.mutable_data_on(on)
                entry.w, entry.h, entry.h2 = <char*> entry.w + begin, <char*> entry.h + begin, <char*> entry.h2 + begin
            decay = weight_decay * <double> decay_mults[i]
            entry.l1, entry.l2 = (decay, 0.0) if l1 else (0.0, decay)
            table.push_back(entry)
        count = table.size()
        with nogil:
            if rule == SGD:
                sgd_update(on, dtype, count, table.data(), scale, momentum)
            elif rule == NESTEROV:
                nesterov_update(on, dtype, count, table.data(), scale, momentum)
            elif rule == ADAGRAD:
                adagrad_update(on, dtype, count, table.data(), scale, delta)
            elif rule == RMSPROP:
                rmsprop_update(on, dtype, count, table.data(), scale, momentum, delta)
            elif rule == ADADELTA:
                adadelta_update(on, dtype, count, table.data(), scale, momentum, delta)
            else:
                adam_update(on, dtype, count, table.data(), scale, momentum, momentum2, delta)
        for blob in params:
            blob.wrote_data()
            if part is None:
                blob.wrote_diff()
        for blob in history:
            blob.wrote_data()
        settle(on)
    if _reporter.recording:
        _reporter.event("end", None, 0, 0, names, "update")
