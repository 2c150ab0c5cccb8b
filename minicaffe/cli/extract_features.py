"""``minicaffe extract_features``: blobs of a net to databases, one record for each picture (Caffe extract_features.cpp)."""

import contextlib

import click

from minicaffe.cli import bars, options, ranks
from minicaffe.cli.picture_nets import open_data_net
from minicaffe.data.db import new_database
from minicaffe.errors import ConfigError
from minicaffe.proto import caffe_pb2
from minicaffe.proto.atomic import check_free
from minicaffe.solver.report import RecordCounts, run_batches


@click.command(cls=options.CaffeCommand)
@click.argument("weights")
@click.argument("net_file", metavar="NET")
@click.argument("blobs", metavar="BLOB[,BLOB...]")
@click.argument("databases", metavar="DB[,DB...]")
@click.argument("batches", type=click.IntRange(min=0))
@click.argument("backend", type=click.Choice(["lmdb", "leveldb"], case_sensitive=False), default="lmdb")
@click.argument("mode", type=click.Choice(["CPU", "GPU"]), required=False)
@click.argument("device_id", type=int, required=False)
@options.force
@options.net_state
@options.run_options
def extract_features(weights, net_file, blobs, databases, batches, backend, mode, device_id, force, level, stage):
    """Run BATCHES batches of NET, which has its own data layer, and write each BLOB to its own DB. BATCHES 0 takes each record
    of the data once.

    A record has its number, ten digits, as key, and a Datum with float_data and no label. Processes that mpiexec started
    divide the batches.
    """
    blobs, databases = blobs.split(","), databases.split(",")
    if len(blobs) != len(databases) or len(set(databases)) != len(databases):
        raise click.UsageError(f"give one database for each blob, got {len(blobs)} blobs and {len(set(databases))} databases")
    if mode == "GPU":
        ranks.use_gpu(begin=device_id or 0)
    options.log_device()
    for path in databases if ranks.group.rank == 0 else ():     # all of them, before one is written
        check_free(path, force)
    net = open_data_net(net_file, weights, (level, stage), "so its features would be meaningless; give a net that reads its own "
                        "data")
    sources = [net.blob_by_name(name) for name in blobs]
    records = None
    if not batches:
        data = RecordCounts.of(net, mean=False)     # `why`: the reason why each record cannot be taken once
        if data.records is None or data.why:
            raise ConfigError(f"must be a number of batches: {data.why}", field="BATCHES")
        records, batches = data.records, data.batches
    counts = [0] * len(blobs)
    with contextlib.ExitStack() as stack:
        targets = [stack.enter_context(new_database(path, backend, force=force)) for path in databases if ranks.group.rank == 0]
        report = stack.enter_context(bars.progress())
        # Of each batch the arrays of `sources`; rank 0 gets those of all ranks.
        for batch, (_, arrays, _) in enumerate(run_batches(net, batches, ranks.group, blobs=sources, records=records)):
            for i, (array, target) in enumerate(zip(arrays, targets)):  # ranks but the first have no targets
                num, channels, height, width = (*array.shape, 1, 1, 1, 1)[:4]
                for key, features in enumerate(array.reshape(num, -1), counts[i]):
                    datum = caffe_pb2.Datum(channels=channels, height=height, width=width)
                    datum.float_data.extend(features.tolist())
                    target.put(b"%010d" % key, datum.SerializeToString())
                counts[i] += num
            report("batches", batch + 1, batches)
    for name, path, count in zip(blobs, databases, counts, strict=True):
        click.echo(f"{path}: {count} records of {name}")
