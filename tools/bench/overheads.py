"""What minicaffe itself costs around the arithmetic: microseconds of the small things.

    python tools/bench/overheads.py
"""

import statistics
import subprocess
import sys
import timeit

from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2, text

EMPTY = """
layer {{ name: "in" type: "Input" top: "a0" input_param {{ shape {{ dim: 1 }} }} }}
{rest}
"""


def best(function, number, repeat=7):
    """Least time of one call in microseconds."""
    return min(timeit.repeat(function, number=number, repeat=repeat)) / number * 1e6


def empty_forward(layers=200):
    """Microseconds for each layer of a chain of ReLU layers on one element."""
    rest = "\n".join(f'layer {{ name: "r{i}" type: "ReLU" bottom: "a{i}" top: "a{i + 1}" }}' for i in range(layers))
    param, _ = text.parse_text(EMPTY.format(rest=rest), caffe_pb2.NetParameter)
    net = Net(param)
    return best(lambda: net.forward_from_to(0, layers), 200) / (layers + 1)


def construction(path="models/lenet/net.prototxt"):
    """Milliseconds to read and build LeNet, database and fillers included."""
    def build():
        param, positions = read_net(path, caffe_pb2.TRAIN)
        return Net(param, file=path, positions=positions)
    return best(build, 1, 30) / 1000


def import_time():
    """Milliseconds of ``import minicaffe`` in a fresh process, less those of an empty one."""
    def run(code):
        once = [sys.executable, "-c", code]
        return statistics.median(timeit.repeat(lambda: subprocess.run(once, check=True), number=1, repeat=9))
    return (run("import minicaffe") - run("pass")) * 1000


if __name__ == "__main__":
    print(f"import minicaffe                     {import_time():8.1f} ms")
    print(f"LeNet: read, build, fill             {construction():8.2f} ms")
    print(f"empty forward, for each layer        {empty_forward():8.3f} us")
