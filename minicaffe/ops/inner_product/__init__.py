from minicaffe.ops.inner_product import engine_caffe, engine_onednn  # noqa: F401 they register themselves
