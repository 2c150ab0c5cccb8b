"""What tests of many folders use: nets and solvers from text, work in threads."""

import threading

import pytest

from minicaffe.blob import Dtype
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.solver import create_solver


def make_net(text, phase=None, dtype=Dtype.FLOAT, **options):
    """Return the net of a definition as text; `options` are those of Net."""
    param = parse_text(text, caffe_pb2.NetParameter, "test.prototxt", keep_layer_fields=True)[0]
    if phase is not None:
        param.state.phase = phase
    return Net(param, dtype, **options)


def layer_text(kind, name, bottoms="", tops=None, more=""):
    """Return a layer as text; names of blobs are separated by blanks, and the top has the name of the layer by default."""
    sides = " ".join([*(f'bottom: "{bottom}"' for bottom in bottoms.split()), *(f'top: "{top}"' for top in (name if tops is None else tops).split())])
    return f'layer {{ name: "{name}" type: "{kind}" {sides} {more} }}\n'


def net_solver(net, plan=None, **fields):
    """Return a solver of a net as text, which takes no snapshot and has base_lr 0.05 and momentum 0.9; `fields` are other ones."""
    fields = {"type": "SGD", "base_lr": 0.05, "momentum": 0.9, "lr_policy": "fixed", "snapshot_after_train": False, **fields}
    param = parse_text(net, caffe_pb2.NetParameter, "test.prototxt", keep_layer_fields=True)[0]
    return create_solver(caffe_pb2.SolverParameter(net_param=param, **fields), plan=plan)


def one_of(step, cases):
    """Return the cases of a table for `parametrize`; but each `step`-th one, from the first on, they are for --every."""
    return [pytest.param(*(case if isinstance(case, tuple) else [case]), marks=[pytest.mark.slow(1)] * (i % step > 0)) for i, case in enumerate(cases)]


def in_threads(work, arguments):
    """Return work(argument) of each, computed in threads that start together; raise the first error of any of them."""
    results, errors, start = {}, [], threading.Barrier(len(arguments))

    def body(argument):
        try:
            start.wait()
            results[argument] = work(argument)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
