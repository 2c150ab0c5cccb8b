"""Methods of layers, called by a program of one's own: lists that are empty, too short, or of other objects end no process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NETS = Path(__file__).resolve().parents[1] / "fuzz/nets"
PROGRAM = """
import glob
import minicaffe as caffe

refused = 0
for path in sorted(glob.glob("*.prototxt")):
    try:
        caffe.Net(path, caffe.TRAIN)
    except caffe.errors.Error:      # its files are made by the tests of the fuzzer
        continue
    for method in ("flops", "multiply_adds", "reshape", "forward_cpu", "forward_gpu", "layer_setup", "set_up",
                   "backward_flops", "backward_cpu", "backward_gpu"):
        for wrong in ([], [None] * 9, [5] * 9):
            net = caffe.Net(path, caffe.TRAIN)
            for name, layer in zip(net._layer_names, net.layers):
                bottom, top = ([net.blobs[blob] for blob in names[name]] for names in (net.bottom_names, net.top_names))
                lists = [bottom, top]
                if "backward" in method:
                    lists = [bottom, top, [True] * len(bottom)] if method == "backward_flops" else [top, [True] * len(bottom), bottom]
                for some in (*([wrong if i == j else given for j, given in enumerate(lists)] for i in range(len(lists))), [wrong] * len(lists)):
                    print(path, layer.type, method, [values[:1] for values in some], flush=True)
                    try:
                        getattr(layer, method)(*some)
                    except Exception:
                        refused += 1
print("refused", refused)
"""


def test_no_process_ends(tmp_path):
    shutil.copytree(NETS, tmp_path / "nets")    # HDF5Output writes beside its net
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path / "nets", capture_output=True, text=True, timeout=200,
                          env={**os.environ, "GLOG_minloglevel": "3"})
    last = done.stdout.splitlines()[-1]
    assert done.returncode == 0, f"{done.returncode}: {last}\n{done.stderr[-2000:]}"
    assert last.startswith("refused ") and int(last.split()[1]) > 4000, last
