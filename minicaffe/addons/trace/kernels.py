"""The source of a kernel by its short name: the functor's lines of the header that defines it."""

import functools
import re

from minicaffe.cuda import compile


def source_of(name):
    """Return the source of a kernel of minicaffe, `name` as launches are called: ``Each<Fill<float>>``.

    A dict: `functor` is the name of the operation, ``Fill``; `source` its definition, in the file `header`; both None of a kernel
    that no header of minicaffe defines.
    """
    found = {"functor": name.partition("<")[0], "source": None, "header": None}
    # Of Each<Fill<float>>, Each is in kernels/: take the first name that is elsewhere, else the first.
    defined = [(word, *place) for word in re.findall(r"[A-Za-z_]\w*", name) if (place := definition(word)) is not None]
    for word, header, text in sorted(defined, key=lambda entry: "/kernels/" in entry[1])[:1]:
        found.update(functor=word, source=text, header=header)
    return found


@functools.cache
def definition(word):
    """Return header and text of the struct called `word`, with the comment above it; None if no kernel header has it."""
    # It ends on its first line, or with the first line of }; in the column in which that begins.
    struct = re.compile(rf"^(?:[ \t]*(?://|template\b).*\n)*([ \t]*)(?:template\b.*)?\bstruct {word}\b(?!\s*;)"
                        r"(?:.*};.*|(?:.*\n)+?\1};.*)", re.MULTILINE)
    return next(((header, found[0]) for header, text in _texts().items() if (found := struct.search(text))), None)


@functools.cache
def _texts():
    return {header: path.read_text() for header, path in compile.kernel_headers().items()}
