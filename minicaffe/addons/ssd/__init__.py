"""Detection nets of the SSD fork: layer types, pictures with boxes, mean average precision, ``minicaffe detect``."""

_MODULES = ("annotated_data", "detection_evaluate", "detection_output", "multi_box_loss", "normalize", "permute", "prior_box",
            "smooth_l1_loss", "video_data")
LAYERS = {}
for _module in _MODULES:
    _type = "".join(map(str.capitalize, _module.split("_")))
    LAYERS[_type] = f"{__name__}.{_module}:{_type}Layer"
COMMANDS = {"detect": ("Use a trained net", f"{__name__}.detect:detect", "Give windows of pictures the scores of a detector.")}
MODULES = {"model_libs": f"{__name__}.model_libs"}
