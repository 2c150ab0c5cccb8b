"""HDF5Output: write two blobs to an HDF5 file (Caffe hdf5_output_layer.cpp).

Different from Caffe: the file is complete on the disk when forward ends, not when the net is deleted, and it is replaced
atomically, so that a full disk keeps the old file. Of processes that train together rank 0 writes. A net that came with
``trusted=False`` may not write.
"""

from minicaffe.common import caffe
from minicaffe.errors import ConfigError, FileError, ShapeError, in_field
from minicaffe.layer import Layer
from minicaffe.proto.atomic import replacing
from minicaffe.proto.hdf5 import hdf5_in_memory


class HDF5OutputLayer(Layer):
    """Write bottom[0] to the dataset ``data`` and bottom[1] to ``label`` of `hdf5_output_param.file_name`.

    Both become datasets with 4 axes, with sizes of 1 appended; axis 0 must agree. Setting the layer up empties the file. Only
    the first forward can write, as the datasets exist after it.
    """

    host_only = True
    exact_num_bottom_blobs = 2
    exact_num_top_blobs = 0

    def layer_setup(self, bottom, top):
        self.path = self.param.hdf5_output_param.file_name
        self.written = False
        if not self.path:
            raise ConfigError("must be given", field="hdf5_output_param.file_name")
        caffe.check_path(self.path, "hdf5_output_param.file_name", writes=True)
        self.reshape(bottom, top)   # before the file is emptied
        self._write({})

    def reshape(self, bottom, top):
        for i, blob in enumerate(bottom):
            if blob.num_axes > 4:
                raise ShapeError(f"must have at most 4 axes, got {list(blob.shape)}", field=f"bottom[{i}]")
        if bottom[0].num != bottom[1].num:
            raise ShapeError(f"must have as many records as bottom[0], {bottom[0].num}, got {bottom[1].num}", field="bottom[1]")

    def forward_cpu(self, bottom, top):
        if self.written:
            raise FileError(f"'{self.path}' holds a batch already, and HDF5Output writes no second one; run one forward for "
                            "each net, with a larger batch")
        self._write({name: blob.cpu_data.reshape(blob.num, blob.channels, blob.height, blob.width)
                     for name, blob in zip(("data", "label"), bottom)})
        self.written = True

    def _write(self, datasets):
        """Replace the file by one with `datasets`, a dict from name to array; other ranks than 0 do nothing."""
        if caffe.solver_rank:
            return
        with in_field("hdf5_output_param.file_name"), replacing(self.path) as file, hdf5_in_memory(file) as hdf5:
            for name, array in datasets.items():
                hdf5.create_dataset(name, data=array)

    def backward_cpu(self, top, propagate_down, bottom):
        """Do nothing: the layer has no top, and gives no gradient."""

    def capture_obstacle(self):     # why a CUDA graph cannot hold the layer
        return "it writes a file"
