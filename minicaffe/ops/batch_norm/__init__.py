from minicaffe.ops.batch_norm import engine_caffe  # noqa: F401 it registers itself
