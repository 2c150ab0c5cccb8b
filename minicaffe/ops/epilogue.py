"""What an operation does to each element of its result before it is stored, in place of the layers that follow it."""

import numpy as np


class Epilogue:
    """``z = scale y + shift``, then ``max(z, 0) + slopes min(z, 0)``, each where it is asked for.

    Layers that follow an operation join it, in their order (`Layer.join`); one that does not fit behind those before it is refused.

    Attributes
    ----------
    scale, shift : array, or None
        A value for each channel.
    slopes : array of float32, or None
        A value for each channel, or one for all.
    """

    def __init__(self):
        self.scale = self.shift = self.slopes = None

    def affine(self, scale, shift):
        """Multiply by `scale` and add `shift`; return whether that fits here."""
        if self.slopes is not None:
            return False
        first = self.scale is None
        self.scale, self.shift = np.broadcast_arrays(scale if first else self.scale * scale,
                                                     shift if first else self.shift * scale + shift)
        return True

    def rectify(self, slopes):
        """Multiply what is below 0 by `slopes`; return whether that fits here."""
        if self.slopes is not None:
            return False
        self.slopes = np.array(slopes, np.float32, ndmin=1)
        return True
