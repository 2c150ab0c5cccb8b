from minicaffe.ops.conv import engine_caffe, engine_cudnn, engine_onednn, engine_winograd  # noqa: F401 they register themselves
