from minicaffe.ops.batch_norm import engine_caffe, engine_cudnn  # noqa: F401 they register themselves
