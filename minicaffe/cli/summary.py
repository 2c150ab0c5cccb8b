"""``minicaffe summary``: the layers and the memory of a net; ``summarize`` is an alias (Caffe tools/extra/summarize.py).

Different from Caffe: the net is built, without its data, and runs two iterations in which nothing is computed.
"""

import dataclasses
import json
import logging

import click

from minicaffe.cli import bars, options, training_file
from minicaffe.engines.engine import check_precision
from minicaffe.errors import ConfigError, Error, close_matches
from minicaffe.inspection import memory_estimate, replace_sources
from minicaffe.inspection.summary import Summary
from minicaffe.memory.sizes import size_text
from minicaffe.net.definitions import filter_layers
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.upgrade import load_net


def inspection_options():
    """Return `options.net_options` for summary and the export commands, which inspect a net: its log needs --verbose."""
    check_precision()
    if not click.get_current_context().meta.get("verbose"):
        logging.getLogger("minicaffe").setLevel(logging.WARNING)
    return options.net_options()


@click.command(cls=options.CaffeCommand)
@click.argument("file", metavar="NET|SOLVER")
@click.option("--batch-size", "--batch", "batch", type=options.batch_size, help="Pictures in a batch, if not as the file says.")
@click.option("--phase", type=click.Choice(["TRAIN", "TEST"], case_sensitive=False),
              help="By default TRAIN if the net has a loss there.")
@click.option("--shape", "shapes", multiple=True, metavar="TOP=3x224x224",
              callback=options.named_shapes("TOP=CHANNELSxHEIGHTxWIDTH, such as data=3x224x224"),
              help="Size of the pictures of a data layer whose data are missing; may be repeated.")
@click.option("--depth", type=click.IntRange(min=1), metavar="N", help=(
    "One row for all layers whose names have the same first N parts, between / or _; by default one for each layer."))
@click.option("--json", "as_json", is_flag=True, help="Write JSON: `rows`, sums and `needs`, in bytes, or `not_run`, why.")
@options.whole_net_options
def summary(file, batch, phase, shapes, depth, as_json, level, stage):
    """Show the layers of a net: shapes, parameters, bytes, operations; and the memory that a training needs.

    With --verbose a column has the engines. No data are needed: made-up pictures have the shape of the database's, or an assumed
    shape if it is missing. The memory is that of two iterations in which nothing is computed.
    """
    given = inspection_options()
    solver_param, place = training_file.read_solver(file, given)
    is_net = "net_files" in place
    param, positions = place["net_files"][file] if is_net else (None, None)
    if not is_net and phase == "TEST":
        raise click.UsageError("--phase TEST is for nets; give the net of the solver")
    wanted = caffe_pb2.Phase.Value(phase or ("TRAIN" if not is_net or has_loss(param, file, positions) else "TEST"))

    tops = set()

    def without_data(net_param, path, lines):       # of each net of a training; `lines` are its Positions
        tops.update(top for layer in net_param.layer if layer.type in replace_sources.READERS for top in layer.top)
        return replace_sources.replace_sources(net_param, path, shapes, batch if net_param.state.phase == wanted else None, lines)

    needs, sources, not_run = [], [], None

    def check_shapes():     # when `tops` has those of all nets
        for name in shapes.keys() - tops:
            raise ConfigError(f"no data layer has a top '{name}'{close_matches(name, tops)}", field="--shape", file=file)

    if is_net:
        made, found = without_data(load_net(param, wanted, level, stage).param, file, positions)
        sources = [found]
        check_shapes()
    try:
        if wanted == caffe_pb2.TRAIN:
            solver_param.train_state.level = level
            solver_param.train_state.stage.extend(stage)
            solver, needs, sources = memory_estimate.dry_run_training(solver_param, without_data, **place, **given)
            net = solver.net
            check_shapes()
        else:
            net, needs = memory_estimate.dry_run_net(lambda: Net(made, file=file, positions=positions, **given), sources[0])
    except Error as error:
        if not is_net:
            raise
        try:
            net = Net(made, file=file, positions=positions, **given)
            not_run = f"the net does not run on made-up data: {error}"
        except Error as error:      # the net or the assumption is wrong
            assumed = [source for source in sources[0].values() if source.assumed]
            if assumed:
                error.message += (f"; as the data are not there, it was assumed that {'; '.join(one.assumed for one in assumed)}; "
                                  f"if that is wrong, give --shape {assumed[0].top}=CHANNELSxHEIGHTxWIDTH")
            raise
    scratch = {layer: most for need in needs for layer, most in need.scratch.items()}
    table = Summary(net, {name: source.type for name, source in sources[0].items()}, scratch)
    if depth is not None:
        table.collapse(depth)
    if as_json:
        needs = [{**dataclasses.asdict(need), "place": str(need.place)} for need in needs]
        click.echo(json.dumps({**vars(table), "rows": [row._asdict() for row in table.rows], "needs": needs,
                               "not_run": not_run}))
        return
    console = bars.table_console()
    verbose = click.get_current_context().meta.get("verbose")
    click.echo(table.text(console.width if console.is_terminal else None, engines=verbose))
    for need in needs:
        what = f"to train with {solver_param.type}" if wanted == caffe_pb2.TRAIN else "to test"
        plan = f"plan {given['plan']}" if given["plan"] else "no plan"
        where = "of the host" if need.place.on_host else f"of GPU {need.place.device}"
        click.echo(f"\nmemory needed {what} ({plan}): {size_text(need.peak)} {where}\n"
                   "  estimated peak of blobs, parameters, gradients, history, batches made ready\n"
                   f"  most in {need.when}:")
        for role, nbytes in need.parts.items():
            click.echo(f"  {role:<26}{size_text(nbytes):>10}")
    for text in dict.fromkeys(source.assumed for some in sources for source in some.values() if source.assumed):
        click.echo(f"assumed, as the data are not there: {text}")
    if not_run:
        click.echo(f"memory is not known: {not_run}")


def has_loss(param, file, positions=None):
    """Return whether a net has a loss in phase TRAIN, by its definition: `summary` shows that phase then."""
    layers = filter_layers(param.layer, caffe_pb2.NetState(phase=caffe_pb2.TRAIN), file, positions)
    return any(layer.param.type.endswith("Loss") or any(layer.param.loss_weight) for layer in layers)
