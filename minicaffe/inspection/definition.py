"""Facts of a layer's definition for pictures of nets: learning-rate multipliers, and whether it belongs to a phase."""

from minicaffe.errors import ConfigError

WEIGHTED = {"Convolution": "convolution_param", "Deconvolution": "convolution_param", "InnerProduct": "inner_product_param"}


def get_layer_lr_mult(layer):
    """Return the learning-rate multipliers of weight and bias, 1.0 where none is given.

    Raises
    ------
    ConfigError
        If the type is not Convolution, Deconvolution or InnerProduct, or there are more than two ``param``; a ValueError.
    """
    if layer.type not in WEIGHTED:
        raise ConfigError(f"shown for {', '.join(WEIGHTED)} only", field="lr_mult", layer=layer.name, layer_type=layer.type)
    if len(layer.param) > 2:
        raise ConfigError(f"weight and bias have two, got {len(layer.param)}", field="param", layer=layer.name,
                          layer_type=layer.type)
    given = [param.lr_mult if param.HasField("lr_mult") else 1.0 for param in layer.param]
    return tuple(given + [1.0] * (2 - len(given)))


def is_included(layer, phase):
    """Whether the include and exclude rules of `layer` allow it in `phase`; other conditions of the rules are ignored."""
    if layer.include and layer.exclude:
        raise ConfigError("give include or exclude rules, not both", field="include", layer=layer.name, layer_type=layer.type)
    rules = layer.include or layer.exclude
    return not rules or any(rule.phase == phase for rule in rules) == bool(layer.include)
