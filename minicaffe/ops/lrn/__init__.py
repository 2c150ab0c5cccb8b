from minicaffe.ops.lrn import engine_caffe, engine_onednn  # noqa: F401 they register themselves
