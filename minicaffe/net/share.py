"""Parameters that share memory by name inside a net, and their learning-rate and decay multipliers (Caffe Net::AppendParam)."""

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.proto import caffe_pb2


class ParamTable:
    """The parameters of a net in layer order; `learnable` are the indices of those that own their memory.

    `params` are the blobs, `places` what messages call them (``layer 'conv1' blobs[0]``); `owners` has for each the index of the
    one whose memory it uses, for an owner its own.
    """

    def __init__(self):
        self.params = []
        self.owners = []
        self.learnable = []
        self.places = []
        self._named = {}   # param name -> index of its owner
        self._mults = {}   # index of an owner -> {"lr_mult": given or None, "decay_mult": ...}

    def append(self, layer_name, index, blob, spec):
        """Add parameter `index` of a layer; `spec` is its ParamSpec or None.

        Raises ShapeError or ConfigError if it shares memory with a parameter of another shape, or both name different multipliers.
        """
        spec = spec if spec is not None else caffe_pb2.ParamSpec()
        position = len(self.params)
        place = f"layer '{layer_name}' blobs[{index}]"
        self.params.append(blob)
        self.places.append(place)
        given = {f: getattr(spec, f) if spec.HasField(f) else None for f in ("lr_mult", "decay_mult")}
        if not spec.name or spec.name not in self._named:
            if spec.name:
                self._named[spec.name] = position
            self.owners.append(position)
            self.learnable.append(position)
            self._mults[position] = given
            return
        owner = self._named[spec.name]
        self.owners.append(owner)
        owner_blob = self.params[owner]
        field = f"param[{index}]"
        if spec.share_mode == caffe_pb2.ParamSpec.PERMISSIVE:
            if blob.count != owner_blob.count:
                raise ShapeError(f"shares '{spec.name}' with {self.places[owner]} but has {blob.count} values against "
                                 f"{owner_blob.count}", field=field)
        elif blob.shape != owner_blob.shape:
            other = ", or set share_mode: PERMISSIVE" if blob.count == owner_blob.count else ""
            raise ShapeError(f"shares '{spec.name}' with {self.places[owner]} but has shape {list(blob.shape)} against "
                             f"{list(owner_blob.shape)}; make them equal{other}", field=field)
        mults = self._mults[owner]
        for name, value in given.items():
            if value is not None and mults[name] is not None and value != mults[name]:
                raise ConfigError(f"shares '{spec.name}' with {self.places[owner]}, which has {mults[name]:g}, got {value:g}",
                                  field=f"{field}.{name}")
            mults[name] = value if mults[name] is None else mults[name]

    def multipliers(self, name):
        """Return ``lr_mult`` or ``decay_mult`` of each learnable parameter; 1 by default."""
        return [1.0 if m[name] is None else m[name] for m in self._mults.values()]

    def share(self):
        """Point the data and diff of every sharer at its owner's memory."""
        for blob, owner in zip(self.params, self.owners):
            if blob is not self.params[owner]:
                blob.share_data(self.params[owner])
                blob.share_diff(self.params[owner])
