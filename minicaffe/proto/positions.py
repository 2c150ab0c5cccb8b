"""Lines of the messages and fields of a prototxt by path, for errors that are found after reading."""

import copy
import re
from bisect import bisect_right


class Positions:
    """Where each message and field of a prototxt is.

    Paths are written as ``layer[3].convolution_param.num_output``; the index counts a repeated field from 0. `moved` maps
    paths in the present message to paths in the file: upgrading an old net moves its layers.
    """

    def __init__(self, filename, text="", starts=None):
        self.filename = filename
        self.moved = {}
        self._prefix = ""       # of `below`, with a dot at its end
        self._starts = {} if starts is None else starts     # path in the file: offset of its first character (text_parser.py)
        self._text, self._newlines = text, None     # places of the ends of lines; found for the first line that is asked for

    def below(self, path):
        """Return the Positions of the message in the field `path`, such as a net inside a solver."""
        inner = copy.copy(self)
        inner._prefix = f"{self._prefix}{path}."
        return inner

    def line(self, path):
        """Return the line of `path`, or of the nearest enclosing message that is known; None if there is none."""
        path = self._in_file(path) if self.moved or self._prefix else path
        while path:
            start = self._starts.get(path, self._starts.get(path + "[0]"))
            if start is not None:
                return self.place(start)[0]
            path = path.rpartition(".")[0]
        return None

    def place_of(self, path):
        """Return line and column of `path` itself; None twice if it is unknown."""
        start = self._starts.get(self._in_file(path))
        return (None, None) if start is None else self.place(start)

    def place(self, offset):
        """Return line and column, both from 1, of a character of the file."""
        if self._newlines is None:
            self._newlines = [match.start() for match in re.finditer("\n", self._text)]
        line = bisect_right(self._newlines, offset - 1)
        return line + 1, offset - (self._newlines[line - 1] if line else -1)

    def _in_file(self, path):
        """Return the path in the file of a path in the present message; a moved message moves its fields."""
        prefix = path = self._prefix + path
        while prefix:
            if prefix in self.moved:
                return self.moved[prefix] + path[len(prefix) :]
            prefix = prefix.rpartition(".")[0]
        return path
