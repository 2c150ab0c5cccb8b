"""``minicaffe summary``: the layers and the memory of a net; ``summarize`` lists its definition (Caffe tools/extra/summarize.py).

Different from Caffe: `summary` builds the net without its data and runs two iterations in which nothing is computed.
"""

import dataclasses
import json
import logging

import click
from rich.table import Table
from rich.text import Text

from minicaffe.cli import bars, options, training_file
from minicaffe.cli.needed_memory import memory_lines
from minicaffe.errors import ConfigError, Error, close_matches
from minicaffe.memory.sizes import size_text
from minicaffe.inspection import replace_sources
from minicaffe.net.definitions import filter_layers
from minicaffe.net.net import Net
from minicaffe.inspection.summary import Summary, params, sizes
from minicaffe.engines.engine import check_precision
from minicaffe.proto import caffe_pb2
from minicaffe.proto.upgrade import load_net, read_net_file
from minicaffe.inspection import memory_estimate

batch_option = click.option("--batch-size", "--batch", "batch", type=options.batch_size,
                            help="Pictures in a batch, if not as the file says.")


def inspection_options():
    """Return `net_options` of a command that only inspects a net: its log is shown only with --verbose."""
    check_precision()
    if not click.get_current_context().meta.get("verbose"):
        logging.getLogger("minicaffe").setLevel(logging.WARNING)
    return options.net_options()


def print_assumptions(sources):
    """Print the assumptions about missing data."""
    for text in dict.fromkeys(source.assumed for source in sources if source.assumed):
        click.echo(f"assumed, as the data are not there: {text}")


@click.command(cls=options.CaffeCommand)
@click.argument("file", metavar="NET|SOLVER")
@batch_option
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

    def without_data(net_param, path, lines):
        tops.update(top for layer in net_param.layer if layer.type in replace_sources.READERS for top in layer.top)
        return replace_sources.replace_sources(net_param, path, shapes, batch if net_param.state.phase == wanted else None, lines)

    needs, sources, not_run = [], [], None

    def check_shapes():
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
        click.echo(json.dumps({**vars(table), "rows": list(map(dataclasses.asdict, table.rows)), "needs": needs,
                               "not_run": not_run}))
        return
    console = bars.table_console()
    verbose = click.get_current_context().meta.get("verbose")
    click.echo(table.text(console.width if console.is_terminal else None, engines=verbose))
    for line in needs_text(needs, solver_param.type if wanted == caffe_pb2.TRAIN else "", given["plan"]):
        click.echo(line)
    print_assumptions(source for some in sources for source in some.values())
    if not_run:
        click.echo(f"memory is not known: {not_run}")


def has_loss(param, file, positions=None):
    """Whether a net has a loss in phase TRAIN, by its definition."""
    layers = filter_layers(param.layer, caffe_pb2.NetState(phase=caffe_pb2.TRAIN), file, positions)
    return any(layer.param.type.endswith("Loss") or any(layer.param.loss_weight) for layer in layers)


def needs_text(needs, solver_type, plan):
    """Return lines about the memory that a training or test needs."""
    lines = []
    for need in needs:
        lines += ["", *memory_lines(need, solver_type, plan), f"  most in {need.when}:"]
        lines += [f"  {role:<26}{size_text(nbytes):>10}" for role, nbytes in need.parts.items()]
    return lines


@click.command(cls=options.CaffeCommand)
@click.argument("net_file", metavar="NET")
@click.option("-w", "--width", type=click.IntRange(min=1), default=30, show_default=True, help="Widest column of bottoms and tops.")
@options.skip_unknown_fields
@options.messages
def summarize(net_file, width):
    """List the layers of NET: name, type, parameters, bottoms, tops, and the sizes of convolutions and poolings.

    A bottom that nothing makes is shown as ``?name``, a top that nothing reads underlined.
    """
    net, _ = read_net_file(net_file, options.net_options()["skip_unknown_fields"])
    if not net.layer:
        raise ConfigError("has no layer to list; give the prototxt of a net", file=net_file)
    console = bars.table_console()
    table = Table.grid(padding=(0, 1))
    for limit in (None, None, None, width, None, width, None):
        table.add_column(no_wrap=limit is None or not console.is_terminal, max_width=limit if console.is_terminal else None)
    for row in rows(net):
        table.add_row(*row)
    console.print(table)


def rows(net):
    """Yield the cells of each layer."""
    made, read = set(), {bottom for layer in net.layer for bottom in layer.bottom}
    for layer in net.layer:
        kind = layer.type
        if kind == "Python":
            kind = f"{layer.python_param.module}.{layer.python_param.layer}"
        bottoms = Text(", ").join(Text(name) if name in made else Text(f"?{name}", "bold red") for name in layer.bottom)
        made.update(layer.top)
        tops = []
        for i, name in enumerate(layer.top):
            weight = f"{layer.loss_weight[i]:g} * " if i < len(layer.loss_weight) and layer.loss_weight[i] != 1 else ""
            tops.append(Text(weight + name, "" if name in read else "bold underline"))
        arrow = "->" if tops else ""
        yield Text(layer.name, "cyan"), Text(kind, "green"), params(layer), bottoms, arrow, Text(", ").join(tops), sizes(layer)
