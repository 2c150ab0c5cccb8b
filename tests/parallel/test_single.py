"""Who trains alone pays nothing for ranks: none of their modules are imported."""

import subprocess
import sys

PROGRAM = """
import sys
from minicaffe.cli import main
assert main(["train", "--quiet", sys.argv[1]]) == 0
print(sorted(name for name in sys.modules if name.startswith(("mpi4py", "minicaffe.parallel", "nccl"))))
"""


def test_single_training_imports_no_ranks(tmp_path):
    (tmp_path / "net.prototxt").write_text("""
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param { shape { dim: 4 dim: 3 } shape { dim: 4 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
""")
    (tmp_path / "solver.prototxt").write_text("""net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 2 snapshot_after_train: false""")
    done = subprocess.run([sys.executable, "-c", PROGRAM, "solver.prototxt"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "['minicaffe.parallel']"
