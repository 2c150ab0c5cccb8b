"""Layer types and fields that only forks of Caffe have; docs/forks.md lists them. SSD's are in minicaffe/addons/ssd."""

# The types of each module; the class of a type is called as the type is, with Layer behind it.
_MODULES = {
    "bn": ("BN",),
    "orders": ("Reverse", "Squeeze", "ShuffleChannel", "Reorg", "Rearrange"),
    "proposals": ("Proposal", "DecodeBBox", "BoxOutput"),
    "regions": ("ROIPooling", "PSROIPooling", "ROIAlign"),
    "resizing": ("Interp", "Resize", "Upsample"),
    "sequences": ("Lstm", "ContinuationIndicator", "CTCGreedyDecoder"),
    "variants": ("ConvolutionDepthwise", "DepthwiseConvolution", "ReLUX", "ReLU6", "ChannelNormalize"),
    "yolo": ("YoloDetectionOutput", "Yolov3DetectionOutput"),
}
LAYERS = {name: f"{__name__}.{module}:{name}Layer" for module, names in _MODULES.items() for name in names}
