from minicaffe.ops.pooling import engine_onednn  # noqa: F401 it registers itself
