"""Which layers an epilogue takes, in any order, and what it keeps of them (minicaffe/engines/epilogue.pyx)."""

import random

import pytest

from minicaffe.blob import Blob
from minicaffe.engines import epilogue

TOP, ONE, CHANNELS = Blob((2, 3, 4)), Blob((1,)), Blob((3,))


class Model:
    """Which calls fit, by the docstrings: an affine map before an addend before slopes, or fewer."""

    def __init__(self, kind, adds):
        self.kind, self.adds, self.done = kind, adds, set()

    def standardize(self):
        return self.kind == "Channel" and not self.done & {"add", "rectify"}

    def affine(self):
        if self.kind == "Norm":
            return not self.done
        return self.kind == "Channel" and not self.done & {"add", "rectify"}

    def add(self):
        return self.kind == "Channel" and self.adds and not self.done & {"add", "rectify"}

    def rectify(self, slopes):
        if "rectify" in self.done or self.kind == "Relu" and slopes != 0:
            return False
        return self.kind != "Norm" or slopes not in ("blob", -0.5)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("kind", ["Channel", "Relu", "Norm"])
def test_any_sequence(kind, adds):
    dice, taken = random.Random(f"{kind} {adds}"), set()
    for _ in range(150):
        mine, model = getattr(epilogue, f"{kind}Epilogue")(TOP, False, adds), Model(kind, adds)
        for _ in range(5):
            name = dice.choice(["standardize", "affine", "affine", "add", "rectify", "rectify"])
            if name == "standardize":
                expected, found = model.standardize(), mine.standardize(CHANNELS, CHANNELS, ONE, 1e-5)
            elif name == "affine":
                scale, shift = dice.choice([(CHANNELS, None), (None, CHANNELS), (CHANNELS, CHANNELS)])
                expected, found = model.affine(), mine.affine(scale, shift, (True, True))
            elif name == "add":
                expected, found = model.add(), mine.add(TOP)
            else:
                slopes = dice.choice([0, 0, 0.25, -0.5, "blob"])
                expected, found = model.rectify(slopes), mine.rectify(CHANNELS if slopes == "blob" else slopes)
            assert found == expected, (name, model.done)
            if found:
                model.done.add(name)
                taken.add(name)
    assert taken == {"Channel": {"standardize", "affine", "rectify"} | ({"add"} if adds else set()), "Relu": {"rectify"},
                     "Norm": {"affine", "rectify"}}[kind]
