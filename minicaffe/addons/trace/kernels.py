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
    begins = re.compile(rf"\bstruct {word}\b(?!\s*;)")
    for header, text in _texts().items():
        found = begins.search(text)
        if found is None:
            continue
        lines = text.splitlines()
        first = i = text.count("\n", 0, found.start())
        while first > 0 and re.match(r"\s*(//|template\b)", lines[first - 1]):
            first -= 1
        depth, last = 0, i
        for last in range(i, len(lines)):
            code = lines[last].partition("//")[0]
            depth += code.count("{") - code.count("}")
            if depth <= 0 and "{" in "".join(lines[i : last + 1]):
                break
        return header, "\n".join(lines[first : last + 1])
    return None


@functools.cache
def _texts():
    return {header: path.read_text() for header, path in compile.kernel_headers().items()}
