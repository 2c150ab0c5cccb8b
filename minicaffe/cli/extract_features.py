"""``minicaffe extract_features``: blobs of a net to databases, one record for each picture (Caffe extract_features.cpp).

Different from Caffe: --images fills the input of a deploy net with pictures, made as in training (`as_trained`).
"""

import contextlib

import click

from minicaffe.cli import bars, options, ranks
from minicaffe.cli.inputs import SkippedInputs, ext_option, picture_paths, read_each
from minicaffe.cli.picture_nets import IMAGE_OPTIONS, NO_PICTURES, input_batch, load_picture, open_data_net, open_net, preprocessing
from minicaffe.data.db import new_database
from minicaffe.engines.engine import check_precision
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
@click.option("--images", multiple=True, metavar="PATH", help="Fill the input of a deploy net with this picture, or those of a "
              "folder or a pattern; repeatable. They are made as by minicaffe classify.")
@ext_option("a folder of --images")
@preprocessing
@options.force
@options.net_state
@options.run_options
def extract_features(weights, net_file, blobs, databases, batches, backend, mode, device_id, images, force, **given):
    """Run BATCHES batches of NET, which has its own data layer, and write each BLOB to its own DB. BATCHES 0 takes each record
    of the data, or each picture of --images, once.

    A record has the picture's number, ten digits, as key, and a Datum with float_data and no label. Processes that mpiexec started
    divide the batches.
    """
    blobs, databases = blobs.split(","), databases.split(",")
    if len(blobs) != len(databases) or len(set(databases)) != len(databases):
        raise click.UsageError(f"give one database for each blob, got {len(blobs)} blobs and {len(set(databases))} databases")
    if not images:
        options.refuse_unused(IMAGE_OPTIONS, "the pictures of --images, which is not given")
    if mode == "GPU":
        ranks.use_gpu(begin=device_id or 0)
    options.log_device()
    for path in databases if ranks.first() else ():     # all of them, before one is written
        check_free(path, force)
    if images:
        check_precision()
        paths = picture_paths(images, given["ext"])
        net, _ = open_net({**given, "model": net_file, "weights": weights})
    else:
        net = open_data_net(net_file, weights, (given["level"], given["stage"]),
                            f"so its features would be meaningless; {NO_PICTURES}")
    sources = [net.blob_by_name(name) for name in blobs]
    batch = net.blobs[net.inputs[0]].shape[0] if images else None
    # Whether a blob has a row for each picture, whose number is the key. A Datum has no place for more than four axes: ShapeError
    of_pictures = [blob.num == batch for blob in sources]
    if images:
        count, results = picture_batches(net, paths, batches, sources)
    else:
        count, results = data_batches(net, batches, sources)
    counts, skipped = [0] * len(blobs), SkippedInputs(len(paths) if images else 0)
    with contextlib.ExitStack() as stack:
        targets = [stack.enter_context(new_database(path, backend, force=force)) for path in databases if ranks.first()]
        report = stack.enter_context(bars.progress())
        for batch, (arrays, numbers, errors) in enumerate(results):
            skipped.report(errors)
            for i, (array, target) in enumerate(zip(arrays, targets)):  # ranks but the first have no targets
                num, channels, height, width = (*array.shape, 1, 1, 1, 1)[:4]
                keys = numbers if of_pictures[i] else range(counts[i], counts[i] + num)
                for key, features in zip(keys, array.reshape(num, -1)):
                    datum = caffe_pb2.Datum(channels=channels, height=height, width=width)
                    datum.float_data.extend(features.tolist())
                    target.put(b"%010d" % key, datum.SerializeToString())
                counts[i] += len(keys)
            report("batches", batch + 1, count)
    for name, path, count in zip(blobs, databases, counts, strict=True):
        click.echo(f"{path}: {count} records of {name}")


def data_batches(net, batches, sources):
    """Return the number of batches, and an iterable of what each gives: the arrays of `sources`, numbers of pictures, errors.

    Here the net reads its own data, and the numbers are not known.
    """
    whole = None
    if not batches:
        data = RecordCounts.of(net, mean=False)
        if data.records is None or data.why:
            raise ConfigError(f"must be a number of batches: {data.why}", field="BATCHES")
        whole, batches = data.records, data.batches
    return batches, ((arrays, (), ()) for _, arrays, _ in run_batches(net, batches, ranks.group(), blobs=sources, records=whole))


def picture_batches(net, paths, batches, sources):
    """Return the same for a net whose input is filled with pictures; the last batch may be smaller."""
    name = net.inputs[0]
    size, *shape = net.blobs[name].shape
    wanted = -(-len(paths) // size)
    count = min(batches, wanted) if batches else wanted
    if count < wanted:
        options.notify(f"{count} batches of {size} are {count * size} of {len(paths)} pictures; the others are left out, and "
                     "BATCHES 0 takes all")
        del paths[count * size:]
    elif batches > wanted:
        options.notify(f"{len(paths)} pictures fill {wanted} batches of {size}, so there are no {batches}")

    def compute(number):
        first = number * size
        numbers, pictures, errors = read_each(enumerate(paths[first:first + size], first), lambda path: load_picture(path, net))
        if not pictures:
            return [], [], errors
        net.blobs[name].reshape(len(pictures), *shape)
        net.blobs[name].data[...] = input_batch(net, pictures)
        net.forward()
        return [blob.cpu_data.copy() for blob in sources], numbers, errors

    return count, ranks.map_over_ranks(count, compute)
