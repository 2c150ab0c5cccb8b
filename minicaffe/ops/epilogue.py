"""What an operation does to each element of its result before it is stored, in place of the layers that follow it."""

import numpy as np

from minicaffe.blob import Blob


class Epilogue:
    """``z = scale y + shift + addend``, then ``max(z, 0) + slopes min(z, 0)``, each where it is asked for.

    Layers that follow an operation join it, in their order (`Layer.join`); one that does not fit behind those before it is refused.

    Parameters
    ----------
    top : Blob
        The operation's.
    carries : bool
        The operation computes the gradients of the layers that join, too, by its own backward.
    adds : bool
        It can add another blob.

    Attributes
    ----------
    top : Blob
        Where the result goes: the top of the last layer that joined.
    scale, shift : array or number, or None
        A value for each channel, or one for all.
    addend : Blob, or None
        Of the shape of the result.
    slopes : array of float32, or None
        A value for each channel, or one for all.
    """

    moves = True    # whether the result may go to another blob than the operation's own top

    def __init__(self, top, carries=False, adds=False):
        self.top, self.carries, self.adds = top, carries, adds
        self.scale = self.shift = self.addend = self.slopes = None

    def affine(self, scale, shift, learned=(False, False)):
        """Multiply by `scale` and add `shift`, blobs or arrays or None, perhaps `learned`; return whether that fits here."""
        if self.addend is not None or self.slopes is not None:
            return False
        scale, shift = (values.data if isinstance(values, Blob) else values for values in (scale, shift))
        scale, shift = 1 if scale is None else scale, 0 if shift is None else shift
        first = self.scale is None
        self.scale, self.shift = (scale, shift) if first else (self.scale * scale, self.shift * scale + shift)
        return True

    def add(self, addend):
        """Add a blob, value by value; return whether that fits here."""
        if not self.adds or self.addend is not None or self.slopes is not None:
            return False
        self.addend = addend
        return True

    def rectify(self, slopes):
        """Multiply what is below 0 by `slopes`, a blob or a number; return whether that fits here."""
        if self.slopes is not None:
            return False
        self.slopes = np.array(slopes.data if isinstance(slopes, Blob) else slopes, np.float32, ndmin=1)
        return True


def for_each(channels, values):
    """Return `values`, one for each channel or one for all, as an array of float32 with one for each; None as it is."""
    if values is None:
        return None
    filled = np.empty(channels, np.float32)
    filled[...] = values
    return filled


class ReluEpilogue(Epilogue):
    """One ReLU of slope 0."""

    moves = False

    def affine(self, scale, shift, learned=(False, False)):
        return False

    def rectify(self, slopes):
        return not isinstance(slopes, Blob) and slopes == 0 and super().rectify(slopes)


class NormEpilogue(Epilogue):
    """One affine map by blobs, and one slope that is not learned: what a normalisation computes, forward and backward.

    Attributes
    ----------
    scale, shift : Blob, or None
    learned : (bool, bool)
        Whether they get gradients.
    slopes : float, or None
    """

    moves, learned = False, (False, False)

    def affine(self, scale, shift, learned=(False, False)):
        if any(values is not None for values in (self.scale, self.shift, self.slopes)):
            return False
        if not all(values is None or isinstance(values, Blob) for values in (scale, shift)):
            return False
        self.scale, self.shift, self.learned = scale, shift, learned
        return True

    def rectify(self, slopes):
        if self.slopes is not None or isinstance(slopes, Blob) or slopes < 0:
            return False
        self.slopes = slopes
        return True
