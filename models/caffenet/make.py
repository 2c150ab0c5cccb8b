"""Write CaffeNet's net.prototxt and deploy.prototxt (layer names of Caffe's bvlc_reference_caffenet)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import making  # noqa: E402


def nets():
    """Return the NetParameters by file name."""
    return making.train_and_deploy("CaffeNet", lambda n: making.alexnet(n, bias=1, norm_first=False), 227, 256, 50,
                                   mean_file=making.MEAN_FILE)


if __name__ == "__main__":
    making.write(__file__, nets())
