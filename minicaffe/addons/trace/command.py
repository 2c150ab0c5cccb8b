"""``minicaffe trace``: some training iterations of a net, step by step (minicaffe/addons/trace)."""

import click

from minicaffe.addons.trace import Recorder, Trace, html, perfetto, table
from minicaffe.cli import bars, options, ranks, training_file
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2

WRITERS = {"json_path": Trace.save, "html_path": html.write, "perfetto_path": perfetto.write}


@click.command(cls=options.CaffeCommand)
@click.argument("file", metavar="NET")
@click.option("--iterations", type=click.IntRange(min=1), default=1, show_default=True, help="Iterations to record.")
@click.option("--phase", type=click.Choice(["TRAIN", "TEST"], case_sensitive=False), default="TRAIN", show_default=True,
              help="TEST: run the net forward only, as a deploy net is used.")
@click.option("--batch-size", type=options.batch_size, help="Pictures in a batch of the net's data layers.")
@click.option("--json", "json_path", metavar="FILE", help="Write the trace, for minicaffe.trace.load and other programs.")
@click.option("--html", "html_path", metavar="FILE", help="Write the trace as one page for a browser, which needs no network.")
@click.option("--perfetto", "perfetto_path", metavar="FILE", help="Write the trace as Chrome's trace JSON, for ui.perfetto.dev.")
@click.option("--step", "in_full", is_flag=True, help="Show each step in full, in place of the table.")
@options.force
@options.whole_net_options
def trace(file, iterations, phase, batch_size, in_full, force, level, stage, **paths):
    """Train NET, the prototxt of a net or of a solver, for an iteration or a few and show what happens in it.

    For each layer, forward and backward, and each update: the blobs touched and where their valid data are, copies, memory taken
    and released, kernels. A run that fails is shown up to the error. Of several processes, started by mpiexec, rank 0 is
    shown, with the transfers of gradients.
    """
    options.log_device()
    options.check_outputs(*paths.values(), force=force)     # now rather than when all has run
    given = options.net_options()
    with options.suggests_data_command():
        if phase.upper() == "TEST":
            definition = read_net(file, caffe_pb2.TEST, level, stage, given["skip_unknown_fields"])
            if batch_size:
                training_file.set_batch_size(definition.param, batch_size)
            target = Net(definition, **given)
        else:
            target = make_solver(file, given, level, stage, batch_size)
            if ranks.group.size > 1:
                target.distribute(ranks.group.comm)
                target.step(1)
                options.notify("the record begins with the second iteration: in the first ranks agree on the order of gradients")
        recorder = Recorder(target)
        recorder.start()
        try:
            if isinstance(target, Net):
                for _ in range(iterations):
                    target.forward_from_to(0, len(target.nodes) - 1)
            else:
                target.step(iterations)
        finally:
            recorder.stop()
            made = recorder.trace()
            if ranks.group.rank == 0:
                (table.show_steps if in_full else table.show)(made, bars.table_console())
                for option, path in paths.items():
                    if path is not None:
                        WRITERS[option](made, path)
                        click.echo(f"wrote {path}")


def make_solver(file, given, level, stage, batch_size):
    """Return the solver of a net or solver file, without tests, displays and snapshots; `given` are options of nets."""
    param, place = training_file.read_solver(file, given)
    param.train_state.level = level
    param.train_state.stage.extend(stage)
    place = {"net_files": {}, **place}      # each file is read once
    sizes = {caffe_pb2.TRAIN: batch_size} if batch_size else None
    for field in ("test_iter", "test_net", "test_net_param", "test_state", "test_interval", "display", "snapshot", "debug_info"):
        param.ClearField(field)
    return training_file.build_solver(param, batch_sizes=sizes, **place, **given)
