"""Apply one update to all parameters of a net, one fused pass over the memory of each (kernels/update.hpp).

Caffe makes a pass for each of: normalise, regularise, history, step, ``w -= step``. Here they are one, which also leaves
the step in the parameter's diff, as Caffe does.
"""

from minicaffe.blob cimport Blob
from minicaffe.cpu.threads cimport num_threads

from minicaffe.errors import ShapeError

cdef extern from "minicaffe/cpu/update.hpp" nogil:
    void sgd_update "mc::cpu::update<mc::SgdRule>"(
        int, int, long long, double, double, double, void*, void*, void*, void*, double, double)
    void nesterov_update "mc::cpu::update<mc::NesterovRule>"(
        int, int, long long, double, double, double, void*, void*, void*, void*, double, double)
    void adagrad_update "mc::cpu::update<mc::AdaGradRule>"(
        int, int, long long, double, double, double, void*, void*, void*, void*, double, double)
    void rmsprop_update "mc::cpu::update<mc::RmsPropRule>"(
        int, int, long long, double, double, double, void*, void*, void*, void*, double, double, double)
    void adadelta_update "mc::cpu::update<mc::AdaDeltaRule>"(
        int, int, long long, double, double, double, void*, void*, void*, void*, double, double, double)
    void adam_update "mc::cpu::update<mc::AdamRule>"(
        int, int, long long, double, double, double, void*, void*, void*, void*, double, double, double, double)

cpdef enum Rule:
    SGD
    NESTEROV
    ADAGRAD
    RMSPROP
    ADADELTA
    ADAM


def update_params(Rule rule, list params, list history, lr_mults, decay_mults, double rate, double scale=1,
                  double weight_decay=0, bint l1=False, double momentum=0, double momentum2=0, double delta=0):
    """Update every parameter: its data, its history, and its diff, which holds the step afterwards.

    Parameters
    ----------
    params : list of N Blob
        float32 or float64; the diff of each is the gradient.
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

    Raises
    ------
    ShapeError
        If the counts do not agree.
    """
    cdef Py_ssize_t n = len(params), i
    cdef bint two = rule == ADADELTA or rule == ADAM
    cdef int threads = num_threads()
    cdef int dtype
    cdef long long count
    cdef double local_rate, decay, l2_decay, l1_decay
    cdef void* w
    cdef void* g
    cdef void* h
    cdef void* h2
    cdef Blob blob, first, second
    if len(history) != (2 * n if two else n) or len(lr_mults) != n or len(decay_mults) != n:
        raise ShapeError(f"{n} parameters with {len(history)} history blobs, {len(lr_mults)} lr_mults and {len(decay_mults)} "
                         "decay_mults; they must belong to one net")
    for i in range(n):
        blob, first = params[i], history[i]
        second = history[n + i] if two else first
        if first.count != blob.count or second.count != blob.count or first.dtype != blob.dtype or second.dtype != blob.dtype:
            raise ShapeError(f"history of {first.shape_string()} for the parameter of {blob.shape_string()}", field=f"history[{i}]")
        count, dtype = blob.count, blob.dtype
        if count == 0:
            continue
        w, g = blob.mutable_cpu_data_ptr(), blob.mutable_cpu_diff_ptr()
        h, h2 = first.mutable_cpu_data_ptr(), second.mutable_cpu_data_ptr()
        local_rate, decay = rate * <double> lr_mults[i], weight_decay * <double> decay_mults[i]
        l1_decay, l2_decay = (decay, 0.0) if l1 else (0.0, decay)
        with nogil:
            if rule == SGD:
                sgd_update(threads, dtype, count, scale, l2_decay, l1_decay, w, g, h, h2, local_rate, momentum)
            elif rule == NESTEROV:
                nesterov_update(threads, dtype, count, scale, l2_decay, l1_decay, w, g, h, h2, local_rate, momentum)
            elif rule == ADAGRAD:
                adagrad_update(threads, dtype, count, scale, l2_decay, l1_decay, w, g, h, h2, local_rate, delta)
            elif rule == RMSPROP:
                rmsprop_update(threads, dtype, count, scale, l2_decay, l1_decay, w, g, h, h2, local_rate, momentum, delta)
            elif rule == ADADELTA:
                adadelta_update(threads, dtype, count, scale, l2_decay, l1_decay, w, g, h, h2, local_rate, momentum, delta)
            else:
                adam_update(threads, dtype, count, scale, l2_decay, l1_decay, w, g, h, h2, local_rate, momentum, momentum2,
                            delta)
