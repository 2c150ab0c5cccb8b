"""Small work is not divided among threads: a region of oneDNN would wait until the system has scheduled each of them."""

import subprocess
import sys
from pathlib import Path

import pytest
from test_engine_onednn import conv, input_layer, layer

STACK = input_layer((1, 16, 7, 7)) + conv("c", "x", "y", "num_output: 16 kernel_size: 3") + layer("LRN", "y", "n")
SMALL = {
    "few channels": input_layer((1, 3, 7, 7)) + conv("c", "x", "y", "num_output: 16 kernel_size: 3 pad: 1"),
    "deconvolution": input_layer((1, 16, 7, 7)) + conv("c", "x", "y", "num_output: 16 kernel_size: 2").replace("Con", "Decon"),
    "stack": STACK + layer("Pooling", "n", "p", "pooling_param { kernel_size: 3 stride: 2 pool: MAX }"),
    "recurrent": input_layer((3, 8, 8)) + input_layer((3, 8), "cont")
    + layer("LSTM", "x cont", "h", 'recurrent_param { num_output: 8 weight_filler { type: "xavier" } }'),
}
# A loop of our own, which waits for no thread, is divided from a tenth of that on.
SMALL_REGION = {"kernel 7x7": input_layer((1, 3, 12, 12)) + conv("c", "x", "y", "num_output: 16 kernel_size: 7 pad: 3")}
LARGE = input_layer((4, 32, 40, 40)) + conv("c", "x", "y", "num_output: 32 kernel_size: 3 pad: 1")
# Prints the number of threads that some steps of each net start.
SCRIPT = """
import os, sys
engine_requested, folder, *nets = sys.argv[1:]
sys.path.insert(0, folder)
from test_engine_onednn import make, step
from minicaffe.device.threads import set_num_threads
from minicaffe.engines import engine
engine.prefer(engine_requested)
for text in nets:
    before = len(os.listdir("/proc/self/task"))
    set_num_threads(1)
    net = make(text)
    set_num_threads(3)
    for _ in range(3):
        step(net)
    print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
@pytest.mark.parametrize(("engine", "small"), [("ONEDNN", SMALL | SMALL_REGION), ("WINOGRAD", SMALL), ("CAFFE", SMALL)])
def test_small_work_starts_no_thread(onednn, engine, small):
    arguments = [engine, str(Path(__file__).parent), *small.values(), LARGE]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert dict(zip([*small, "large"], map(int, done.stdout.split()))) == {**dict.fromkeys(small, 0), "large": 2}
