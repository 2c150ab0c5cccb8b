from minicaffe.ops.inner_product import engine_onednn  # noqa: F401 it registers itself
