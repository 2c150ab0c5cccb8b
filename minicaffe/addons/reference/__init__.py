"""To learn from: the layer types in words (``minicaffe layers``), and the course (``minicaffe course``)."""

COMMANDS = {
    "course": ("Learn", f"{__name__}.course:course", "Copy the course in reading the framework to a folder."),
    "layers": ("Learn", f"{__name__}.layers:layers", "List the layer types, or show one with its fields."),
}
