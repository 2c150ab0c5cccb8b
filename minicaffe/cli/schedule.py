"""``minicaffe schedule``: the steps of a net in an iteration, which are fixed before it runs."""

import json

import click

from minicaffe import memory
from minicaffe.cli import options
from minicaffe.cli.summary import batch_option, inspection_options, print_assumptions
from minicaffe.device.threads import dry_run
from minicaffe.errors import Error
from minicaffe.inspection.replace_sources import replace_sources
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.atomic import write_bytes
from minicaffe.proto.upgrade import load_net


@click.command(cls=options.CaffeCommand)
@click.argument("file", metavar="NET")
@click.option("--phase", type=click.Choice(["TRAIN", "TEST"], case_sensitive=False), default="TRAIN", show_default=True)
@batch_option
@click.option("--json", "as_json", metavar="FILE", help="Also write the steps to FILE.")
@options.force
@options.whole_net_options
def schedule(file, phase, batch, as_json, force, level, stage):
    """Show what the net of NET does in an iteration: one line for each step.

    A step is a layer, or layers that are computed as one. Its line has their names, the engine, the layout of the result, the bytes
    that it reads and writes, and the bytes of the blobs that are live. It also has what the step keeps for backward, the memories
    that it frees, and the parameters that can be updated after it. No data are needed, and nothing is computed: engines, layouts
    and layout conversions are those of the second of two dry runs.
    """
    if as_json:
        options.check_outputs(as_json, force=force)
    given = inspection_options()
    net, positions = load_net(file, caffe_pb2.Phase.Value(phase.upper()), level, stage, given["skip_unknown_fields"])
    made, sources = replace_sources(net, file, batch=batch, positions=positions)
    net = Net(made, file=file, positions=positions, **given)
    not_run, events = None, []
    try:
        with dry_run():
            for _ in range(2):      # the first converts the parameters
                with memory.record() as events:
                    dry_pass(net)
    except Error as error:
        not_run = error
    listing = net.schedule()
    listing.find_conversions(events)
    if as_json:
        write_bytes(as_json, json.dumps(listing.as_dict()).encode())
    click.echo(str(listing))
    if not_run:
        click.echo(f"layouts are not known, as the net does not run on made-up data: {not_run}")
    print_assumptions(sources.values())


def dry_pass(net):
    """Run the net once, with new data in its sources."""
    for node in net.nodes:
        for blob in node.tops if not node.bottoms else ():
            blob.data_memory.mutable_cpu_data()
    if net.phase == caffe_pb2.TRAIN:
        net.clear_param_diffs()
        net.forward_backward()
    else:
        net.forward_from_to(0, len(net.nodes) - 1)
