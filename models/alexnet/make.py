"""Write AlexNet's net.prototxt and deploy.prototxt (layer names of Caffe's bvlc_alexnet)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import making  # noqa: E402


def nets():
    """Return the NetParameters by file name."""
    return making.train_and_deploy("AlexNet", lambda n: making.alexnet(n, bias=0.1, norm_first=True), 227, 256, 50,
                                   mean_file=making.MEAN_FILE)


if __name__ == "__main__":
    making.write(__file__, nets())
