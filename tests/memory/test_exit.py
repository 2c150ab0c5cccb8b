"""A process may end while blobs are alive: the collector then takes allocators and buffers in any order."""

import subprocess
import sys

# The registered class keeps the script's names, and with them the blob, alive until the very last collection.
SCRIPT = """
from minicaffe.blob import Blob
from minicaffe.layer import Layer, register_layer

class AtExit(Layer):
    def hold(self):
        return blob

blob = Blob((10,))
blob.data[...] = 1
register_layer("AtExit", AtExit)
"""


def test_blobs_alive_at_exit():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
