"""``minicaffe extract_features``: blobs of a net to databases, one record for each picture (Caffe extract_features.cpp)."""

import contextlib
import logging

import click

from minicaffe.cli import bars, options, ranks
from minicaffe.data.db import new_database
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2
from minicaffe.solver.report import run_batches

logger = logging.getLogger("minicaffe.cli")


@click.command(cls=options.CaffeCommand)
@click.argument("weights")
@click.argument("net_file", metavar="NET")
@click.argument("blobs", metavar="BLOB[,BLOB...]")
@click.argument("databases", metavar="DB[,DB...]")
@click.argument("batches", type=click.IntRange(min=1))
@click.argument("backend", type=click.Choice(["lmdb", "leveldb"], case_sensitive=False), default="lmdb")
@click.argument("mode", type=click.Choice(["CPU", "GPU"]), required=False)
@click.argument("device_id", type=int, required=False)
@options.force
@options.net_state
@options.precision
@options.threads
@options.model_file
@options.common
def extract_features(weights, net_file, blobs, databases, batches, backend, mode, device_id, force, level, stage):
    """Run BATCHES batches of NET, which has its own data layer, and write each BLOB to a DB of its own.

    A record has the picture's number, ten digits, as key, and a Datum with float_data and no label. Processes that mpiexec started
    divide the batches.
    """
    blobs, databases = blobs.split(","), databases.split(",")
    if len(blobs) != len(databases) or len(set(databases)) != len(databases):
        raise click.UsageError(f"give one database for each blob, got {len(blobs)} blobs and {len(set(databases))} databases",
                               click.get_current_context())
    if mode == "GPU":
        ranks.use_gpu(begin=device_id or 0)
    options.tell_mode(logger)
    param, positions = read_net(net_file, caffe_pb2.TEST, level, stage, options.net_options()["skip_unknown_fields"])
    net = Net(param, file=net_file, positions=positions, **options.net_options())
    net.copy_from(weights)
    sources = [net.blob_by_name(name) for name in blobs]
    for blob in sources:
        _ = blob.num    # a Datum has no place for more than four axes: ShapeError
    counts = [0] * len(blobs)
    with contextlib.ExitStack() as stack:
        targets = [stack.enter_context(new_database(path, backend, force=force)) for path in databases if ranks.first()]
        report = stack.enter_context(bars.progress())
        for batch, (_, arrays) in enumerate(run_batches(net, batches, ranks.group(), blobs=sources)):
            for i, (array, target) in enumerate(zip(arrays, targets)):  # ranks but the first have no targets
                num, channels, height, width = (*array.shape, 1, 1, 1, 1)[:4]
                for features in array.reshape(num, -1):
                    datum = caffe_pb2.Datum(channels=channels, height=height, width=width)
                    datum.float_data.extend(features.tolist())
                    target.put(b"%010d" % counts[i], datum.SerializeToString())
                    counts[i] += 1
            report("batches", batch + 1, batches)
    for name, path, count in zip(blobs, databases, counts, strict=True):
        click.echo(f"{path}: {count} records of {name}")
