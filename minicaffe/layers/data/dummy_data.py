"""DummyData: blobs filled by fillers, to run a net without data (Caffe dummy_data_layer.cpp)."""

from minicaffe.errors import ConfigError, in_field
from minicaffe.filler import fill
from minicaffe.layers.data.sources import SourceLayer
from minicaffe.memory import SyncedHead
from minicaffe.proto import caffe_pb2

LEGACY = ("num", "channels", "height", "width")


class DummyDataLayer(SourceLayer):
    """Fill each top by its filler; constant ones once, all others before each forward.

    Different from Caffe: a constant top that was given another shape or memory is filled again, and one that a layer changes in
    place before each forward, also if a program wrote into it; Input is for that.
    """

    min_top_blobs = 1

    def layer_setup(self, bottom, top):
        self.log_ignored("the values of data_filler are not transformed")
        self.fillers = self._one_each("data_filler", len(top), optional=True) or [caffe_pb2.FillerParameter()] * len(top)
        self.drawn = False      # whether `reshape` has filled the random tops
        self.varying = [i for i, filler in enumerate(self.fillers) if filler.type != "constant"]
        for i, (blob, shape) in enumerate(zip(top, self._shapes(len(top)))):
            with in_field(f"dummy_data_param.shape[{i}]"):
                blob.reshape_to(shape)

    def _shapes(self, tops):
        """Return the shape of each top from `shape`, or from the four legacy fields."""
        param = self.param.dummy_data_param
        if not any(getattr(param, name) for name in LEGACY):
            return [tuple(shape.dim) for shape in self._one_each("shape", tops)]
        if param.shape:
            raise ConfigError("give shape, or num, channels, height and width, not both", field="dummy_data_param.shape")
        return list(zip(*(self._one_each(name, tops) for name in LEGACY)))

    def _one_each(self, field, tops, optional=False):
        """Return the values of a repeated field of dummy_data_param, one for each top; empty if it is `optional` and not given."""
        values = list(getattr(self.param.dummy_data_param, field))
        if len(values) not in (1, tops) and (values or not optional):
            raise ConfigError(f"give one, or one for each of the {tops} tops, got {len(values)}",
                              field=f"dummy_data_param.{field}")
        return values * tops if len(values) == 1 else values

    def reshape(self, bottom, top):
        for i in range(len(top)):
            if i not in self.varying or not self.drawn:     # once, as in Caffe: a later reshape draws no random numbers
                self._fill(top, i)
        self.drawn = True

    def forward_cpu(self, bottom, top):
        for i in sorted({*self.varying, *self.overwritten}):
            self._fill(top, i)

    def _fill(self, top, i):
        """Fill top `i` by its filler, also if a plan has recycled its memory."""
        if top[i].data_memory.head == SyncedHead.RECYCLED:      # `reshape` fills, too, and a net renews for forward only
            top[i].data_memory.renew()
        fill(top[i], self.fillers[i], self.generator, f"dummy_data_param.data_filler[{i}]")
