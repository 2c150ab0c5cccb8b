"""SourceLayer: the base of layers that bring data into a net."""

import logging

from minicaffe.layer import Layer

log = logging.getLogger(__name__)


class SourceLayer(Layer):
    """No bottoms; a type says what its tops hold."""

    host_only = True
    exact_num_bottom_blobs = 0
    overwritten = ()    # numbers of tops that layers in place change, so that forward has to write them (net/build.py)

    def reshape(self, bottom, top):
        """Nothing to do: the tops have their shapes from layer_setup on, or each batch brings its own."""

    def log_ignored(self, why, used=()):
        """Warn of the fields of `transform_param` that are not in `used`, and say `why` they are ignored."""
        names = [field.name for field, _ in self.param.transform_param.ListFields() if field.name not in used]
        if names:
            log.warning("layer '%s' (%s): transform_param: %s ignored: %s", self.name, self.type, ", ".join(names), why)

    def backward_cpu(self, top, propagate_down, bottom):
        """Nothing to do: data have no gradient."""
