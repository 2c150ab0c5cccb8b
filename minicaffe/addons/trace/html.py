"""A trace as one self-contained page (docs/trace.md): style, script and the trace itself are in the file.

The page is made of the files of the folder view/ as they are: no build step, no framework, and nothing is fetched when it is
opened.
"""

import re
from html import escape
from importlib import resources

from minicaffe.addons.trace import panels
from minicaffe.addons.trace.model import STATES, Trace, json_text, write_text
from minicaffe.errors import check_type

SCRIPTS = "model.js", "draw.js", "net.js", "page.js"


def page(trace):
    """Return the page of a Trace as text."""
    check_type(trace, Trace, "trace", "a Trace")
    view = resources.files(__package__) / "view"

    def text(name):
        return (view / name).read_text(encoding="utf-8")

    net = trace.document["net"]["name"] or "a net"
    parts = {
        "title": escape(f"{net}: a trace of minicaffe"),
        "style": text("page.css"),
        # Escaped, so that no name can end the script.
        "trace": json_text(panels.data(trace)).replace("<", "\\u003c"),
        "script": "\n".join([f"const HEADS = {json_text(STATES)}, ROLES = {json_text(panels.ROLES)};", *map(text, SCRIPTS)]),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], text("page.html"))


def write(trace, path):
    """Write the `page` of a Trace to a file, as `Trace.save`."""
    write_text(path, page(trace))
