"""The memory that a training needs, in the lines that `summary`, `train` and `trace` print alike.

The figure is that of inspection/memory_estimate.py: two iterations in which nothing is computed, with one batch of each test
net. `train` and `trace` find it before they read data, and continue without it where the net does not run on made-up data.
"""

import gc

from minicaffe import memory
from minicaffe.cli.training_file import set_batch_sizes, trial
from minicaffe.errors import ConfigError, Error
from minicaffe.inspection import memory_estimate
from minicaffe.inspection.replace_sources import replace_sources
from minicaffe.memory.sizes import size_text
from minicaffe.net.definitions import filter_layers

COUNTED = "blobs, parameters, gradients, history, batches made ready"


def memory_lines(need, solver_type, plan, parts=False):
    """Return the lines about a MemoryNeeds: of a training by `solver_type`, or of a test if it is empty; `parts` too, or not."""
    what = f"to train with {solver_type}" if solver_type else "to test"
    where = "of the host" if need.place.on_host else f"of GPU {need.place.device}"
    lines = [f"memory needed {what} ({f'plan {plan}' if plan else 'no plan'}): {size_text(need.peak)} {where}",
             f"  estimated peak of {COUNTED}"]
    if parts:
        lines += [f"  most in {need.when}:", *(f"  {role:<26}{size_text(nbytes):>10}" for role, nbytes in need.parts.items())]
    return lines


def training_lines(param, place, about, batch_sizes=None, divide_by=1):
    """Return the memory lines of a training, or one that says why they are not known.

    That one should be printed only when the net itself was made, as otherwise its error says the same.

    Parameters
    ----------
    param : SolverParameter
    place, about : dict
        What `training_file.read_solver` and `options.net_options` returned.
    batch_sizes, divide_by
        As of `training_file.build_solver`.
    """
    def without_data(net_param, file, positions):
        if any(layer.param.type == "Python" for layer in filter_layers(net_param.layer, net_param.state, file, positions)):
            raise ConfigError("Python layers are not run on made-up data", file=file)
        set_batch_sizes(net_param, batch_sizes, divide_by, file, positions)
        return replace_sources(net_param, file, positions=positions)

    try:
        with trial():
            _, needs, _ = memory_estimate.dry_run_training(param, without_data, **place, **about)
    except Error as error:
        return [f"memory needed to train: not known: {error}"]
    finally:
        gc.collect()    # the nets of the dry run
        memory.empty_cache()
    return [line for need in needs for line in memory_lines(need, param.type, about["plan"])]
