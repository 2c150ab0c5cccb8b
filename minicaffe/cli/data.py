"""``minicaffe data``: make databases and look into them.

Caffe's convert_imageset, convert_mnist_data, convert_mnist_siamese_data, convert_cifar_data, compute_image_mean, create_*.sh.

Results go to standard output; progress is shown on a terminal only. A failed or interrupted command leaves no partial
database or file under the final name.
"""

from collections import Counter

import click

from minicaffe.cli import bars, options
from minicaffe.cli.inputs import ext_option, left_out_text
from minicaffe.cli.pictures import sheet, to_rgb, write_png
from minicaffe.data.class_folders import convert_folders
from minicaffe.data.convert import compute_mean, convert_images
from minicaffe.data.datasets import DATA_SETS, make_data_set, make_idx_set
from minicaffe.data.datum import picture_of, read_datum
from minicaffe.data.db import open_db
from minicaffe.data.mean_file import write_mean
from minicaffe.errors import Error

SHEET_COLUMNS, SHEET_ROWS = 20, 10  # pictures of `info --png`
MOST_LABELS = 50    # that are listed

backend_option = click.option("--backend", type=click.Choice(["lmdb", "leveldb"], case_sensitive=False), default="lmdb",
                              show_default=True)
from_list = options.combine_options(   # of commands that read a list of pictures
    click.option("--gray", is_flag=True, help="One channel instead of three."),
    click.option("--shuffle", is_flag=True, help="Shuffle the list."),
    backend_option,
    click.option("--resize-width", type=click.IntRange(0, options.INT_MAX), default=0,
                 help="With --resize-height: resize the pictures; 0: do not."),
    click.option("--resize-height", type=click.IntRange(0, options.INT_MAX), default=0),
    click.option("--encoded", is_flag=True, help="Store picture files instead of pixels."),
    click.option("--encode-type", default="", help="Store as jpg, png, ...; implies --encoded."),
    options.force)


@click.group(no_args_is_help=False)
def data():
    """Make databases and look into them."""


data.command_class = options.CaffeCommand


def _add_data_set(name):
    """Add the command ``minicaffe data NAME``, one for each of `DATA_SETS` with the same options."""
    @data.command(name, help=f"Make the train and test database of {name} from its original files, downloaded if need be.")
    @click.option("--from", "source", type=click.Path(), help="Directory with the original files, packed or unpacked.")
    @click.option("--out", default="data", show_default=True, type=click.Path(), help="Directory for the databases.")
    @click.option("--url", help="Base address to download from instead of the usual one.")
    @click.option("--limit", type=click.IntRange(min=1), help="Only the first N records of each.")
    @backend_option
    @options.force
    @options.messages
    def command(out, **how):        # `how`: the other options, arguments of `make_data_set`
        with bars.progress() as progress:
            made = make_data_set(name, out, progress=progress, **how)
        for path, count in made:
            click.echo(f"{path}: {count} records")


for _name in DATA_SETS:
    _add_data_set(_name)


@data.command()
@click.argument("images", type=click.Path())
@click.argument("labels", type=click.Path())
@click.argument("db")
@click.option("--pairs", is_flag=True, help="Random pairs of pictures, two channels; label 1 if the digit is the same.")
@click.option("--seed", type=click.IntRange(0), help="With --pairs: of the pairs; by default they differ each time.")
@backend_option
@options.force
@options.messages
def idx(images, labels, db, **how):
    """Make DB from the two IDX files of an MNIST set, packed or unpacked."""
    if not how["pairs"]:
        options.refuse_unused(("seed",), "the pairs of --pairs, which is not given")
    with bars.progress() as progress:
        count = make_idx_set(images, labels, db, progress=progress, **how)
    click.echo(f"{db}: {count} records")


@data.command()
@click.argument("paths", nargs=-1, metavar="[ROOT LIST] DB")
@click.option("--from-folders", metavar="DIR", help="Instead of ROOT and LIST: a folder with one folder of "
              "pictures for each class.")
@click.option("--test-share", type=options.Real(0, 1, max_open=True), default=0.2, show_default=True,
              help="With --from-folders: what part of each class is for tests; 0: no test database.")
@click.option("--test-from", metavar="DIR", help="With --from-folders: such a folder with the pictures for tests.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="With --from-folders: of the shuffling.")
@ext_option("the folders of --from-folders")
@from_list
@click.option("--check-size", is_flag=True, help="Fail unless all pictures have one size.")
@click.option("--float-labels", "label_size", type=click.IntRange(1, options.INT_MAX), metavar="K",
              help="Each line of LIST ends with K real numbers in place of the integer label.")
@options.messages
def images(paths, from_folders, test_share, test_from, seed, ext, shuffle, check_size, label_size, **how):
    """Make the database DB from pictures.

    Each line of LIST is a path, a space (in a .csv a comma) and an integer label; ROOT is put before the path unchanged.

    With --from-folders DB is a folder that gets train_lmdb, test_lmdb, labels.txt and mean.binaryproto. Pictures in folders inside
    the folder of a class are pictures of that class.
    """
    if not from_folders:
        options.refuse_unused(("test_share", "test_from", "seed", "ext"), "the pictures of --from-folders, which is not given")
    elif label_size:
        raise click.UsageError("--float-labels is for ROOT and LIST: with --from-folders the folders are the labels")
    elif test_from:
        options.refuse_unused(("test_share",), "folders that are not divided; with --test-from they are")
    if len(paths) != (1 if from_folders else 3):
        wanted = "DB alone with --from-folders DIR" if from_folders else "ROOT, LIST and DB, or --from-folders DIR and DB"
        raise click.UsageError(f"give {wanted}; got {' '.join(paths) or 'nothing'}")
    with bars.progress() as progress:
        if from_folders:
            made = convert_folders(from_folders, paths[0], test_share=test_share, test_from=test_from, seed=seed, endings=ext,
                                   progress=progress, **how)
        else:
            written, skipped = convert_images(*paths, shuffle=shuffle, check_size=check_size, label_size=label_size,
                                              progress=progress, **how)
    if from_folders:
        _print_folder_results(paths[0], made, how["backend"])
    else:
        click.echo(f"{paths[2]}: {written} records" + (f", {skipped} pictures could not be read" if skipped else ""))
        if label_size:
            click.echo(f"a Data layer reads their labels with data_param {{ label_size: {label_size} }}; Caffe reads label 0")


def _print_folder_results(db, made, backend):
    """Print the FolderConversion of --from-folders: what was written to the folder `db`, and files that were left out."""
    click.echo(f"{db}/train_{backend}: {made.train} records of {' x '.join(map(str, made.shape))}")
    click.echo(f"{db}/test_{backend}: {made.test} records" if made.test else "no database for tests")
    click.echo(f"{db}/labels.txt: {len(made.classes)} classes: {', '.join(made.classes[:10])}{', ...' * (len(made.classes) > 10)}")
    click.echo(f"{db}/mean.binaryproto: {', '.join(f'{value:g}' for value in made.mean)}")
    if made.unreadable:
        click.echo(f"{made.unreadable} pictures could not be read")
    if made.left_out:
        click.echo(f"{left_out_text(made.left_out)}; they are in no class, of another kind (--ext), or links to folders")


@data.command()
@click.argument("db")
@click.argument("out", required=False)
@backend_option
@options.force
@options.messages
def mean(db, out, backend, force):
    """Compute the mean picture of DB and write it to OUT, a mean_file."""
    options.check_outputs(out, force=force)
    with open_db(db, backend) as database, bars.progress() as progress:
        picture = compute_mean(database, progress)
    if out:
        write_mean(out, picture)
    click.echo(f"Number of channels: {len(picture)}")
    for channel, plane in enumerate(picture):
        click.echo(f"mean_value channel [{channel}]: {plane.mean(dtype=float):g}")


@data.command()
@click.argument("db")
@backend_option
@click.option("--png", type=click.Path(), help="Write the first pictures to a PNG file.")
@options.force
@options.messages
def info(db, backend, png, force):
    """Show what DB holds: number of records, shapes, encodings, labels; with --png the first pictures."""
    options.check_outputs(png, force=force)
    shapes, kinds, labels, reals, first = Counter(), Counter(), Counter(), Counter(), []
    with open_db(db, backend) as database, bars.progress() as progress:
        count = len(database)
        for number, (key, value) in enumerate(database.records()):
            try:
                record = read_datum(value)
                if png and len(first) < SHEET_COLUMNS * SHEET_ROWS:
                    first.append(picture_of(record))
            except Error as error:
                raise database.locate(error, number, key) from None
            kinds["encoded picture" if record.encoded else "bytes" if record.data else "floats"] += 1
            shapes["in the picture file" if record.encoded else f"{record.channels} x {record.height} x {record.width}"] += 1
            if record.data and record.float_data:
                reals[len(record.float_data)] += 1
            else:
                labels[record.label] += 1
            if number % 1000 == 999:
                progress("records", number + 1, count)
    click.echo(f"{db}: {count} records, {database.backend}")
    click.echo("channels x height x width: " + _listing(shapes))
    click.echo("content: " + _listing(kinds))
    for size, found in sorted(reals.items()):
        click.echo(f"real-valued labels: {size} in each of {found} records")
    if labels:
        click.echo(f"labels: {len(labels)} different: {_listing(labels, MOST_LABELS)}")
    if png:
        write_png(png, sheet([to_rgb(picture) for picture in first], SHEET_COLUMNS))
        click.echo(f"{png}: the first {len(first)} pictures")


def _listing(counter, most=8):
    """Return the `most` frequent keys of a Counter with their numbers as text, for `info`; "..." if there are more."""
    shown = [f"{name} ({count})" for name, count in counter.most_common(most)]
    return ", ".join(shown + ["..."] * (len(counter) > most))
