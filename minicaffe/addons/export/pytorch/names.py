"""Names of layers and blobs as identifiers of Python: valid, all different, and no name that Python or PyTorch uses.

"conv1/3x3_s2" becomes ``conv1_3x3_s2``, "1x1" ``layer_1x1``, "class" ``class_``, and a second "a_b" beside "a/b" ``a_b_2``.
"""

import keyword
import unicodedata

from minicaffe.addons.export.exporting import unique_names

# The attributes of torch.nn.Module that a layer must not replace (dir(nn.Module()), without those that begin with "_").
MODULE_ATTRIBUTES = frozenset("""
    T_destination add_module apply bfloat16 buffers call_super_init children compile cpu cuda double dump_patches eval extra_repr
    float forward get_buffer get_extra_state get_parameter get_submodule half ipu load_state_dict modules mtia named_buffers
    named_children named_modules named_parameters parameters register_backward_hook register_buffer register_forward_hook
    register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook register_load_state_dict_post_hook
    register_load_state_dict_pre_hook register_module register_parameter register_state_dict_post_hook
    register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule share_memory state_dict to to_empty train training
    type xpu zero_grad""".split())
# Names in the text of `forward`, besides helpers.
FORWARD_NAMES = frozenset({"F", "nn", "self", "torch", "len", "max", "min", "range", "slice", "zip"})


def identifier(name, prefix):
    """Return a valid identifier that resembles a name; `prefix` is put before one that does not begin with a letter."""
    # Python normalizes identifiers in this form, so attributes and names in a state dict are equal.
    text = "".join(c if f"a{c}".isidentifier() else "_" for c in unicodedata.normalize("NFKC", name))
    if not text[:1].isalpha() or not text.isidentifier():
        text = f"{prefix}_{text}"
    return f"{text}_" if keyword.iskeyword(text) else text


def identifiers(names, reserved, prefix):
    """Return identifiers for names, that differ from each other and from those of `reserved`; `prefix` as in `identifier`."""
    wanted = [identifier(name, prefix) for name in names]
    return unique_names([f"{text}_" if text in reserved else text for text in wanted])
