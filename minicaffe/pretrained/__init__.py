"""Trained nets that are part of the package: LeNet and a small perceptron, on Fashion-MNIST.

The folder of a net has its deploy net, its training net with the preprocessing, its weights in half precision, and the names of the
classes. tools/train_pretrained.py writes the weights.
"""

from collections import namedtuple
from pathlib import Path

from minicaffe.errors import MissingNameError, close_matches

FOLDER = Path(__file__).parent
DEFAULT = "lenet"
PICTURES = "Fashion-MNIST: ten classes of clothes, light on black, grey, 28 x 28"


# Paths of the files of a net: a deploy net, a caffemodel, and the names of the classes, one a line.
Pretrained = namedtuple("Pretrained", "model weights labels")


def names():
    """Return the names of the nets as a sorted list of str."""
    return sorted(path.parent.name for path in FOLDER.glob("*/deploy.prototxt"))


def find(name):
    """Return the `Pretrained` of a name, for --model NAME. Raises MissingNameError if no net has it."""
    known = names()
    if name not in known:
        raise MissingNameError(f"the package has no net '{name}'{close_matches(name, known)}; it has {', '.join(known) or 'none'}")
    return Pretrained(*(str(FOLDER / name / file) for file in ("deploy.prototxt", "deploy.caffemodel", "labels.txt")))
