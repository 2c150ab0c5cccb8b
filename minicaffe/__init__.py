"""minicaffe: Caffe, small and alive. ``import minicaffe as caffe``."""

__version__ = "0.1.0"
