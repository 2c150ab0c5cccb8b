"""The blocks of code of the pages: tests/test_docs.py runs them, tools/five_users.py takes commands from them. Names in sources.

    python tools/pages.py README.md docs/quickstart.md      # print the commands of minicaffe that these pages run, one a line
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SHELL = re.compile(r"([A-Z_]+=|minicaffe |pip |python |pytest|ninja |git |tools/)")


class Block(NamedTuple):
    line: int
    language: str
    text: str
    not_run: str


def blocks(page):
    """Yield the blocks of code of a page: fenced ones, and commands that are indented by four spaces."""
    text = (ROOT / page).read_text()
    for found in re.finditer(r"(?:^<!-- not run: (.+) -->\n+)?(?:^```(\w*)\n([^`]*?)^```$|((?:^    .*\n)+))", text, re.M):
        not_run, language, fenced, indented = found.groups()
        code = fenced if indented is None else re.sub("^    ", "", indented, flags=re.M)
        if indented is not None or not language:
            language = ("session" if code.startswith("$ ") else "minicaffe" if re.fullmatch(r"(minicaffe .*\n)+", code)
                        else "shell" if SHELL.match(code) else "text")
        yield Block(text[:found.start()].count("\n") + 1, language, code, not_run)


def defines(source, name):
    """Whether a source of any language defines `name`, ``Class.method`` or a name alone: a function, class, macro or variable."""
    owner, _, name = name.rpartition(".")
    keywords = r"cp?def|def|class|struct|enum|template|inline|MC_\w+|void|static|constexpr|using|ctypedef"
    found = re.search(rf"^#define {name}\b|^[^\S\n]*(?:(?:{keywords})\b.*)?\b{name}\b *(?:[(=:{{,#]|$)", source, re.M)
    return bool(found and (not owner or re.search(rf"\b(?:class|struct) {owner}\b", source)))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for block in blocks(name):
            if block.language == "minicaffe" and not block.not_run:
                print(block.text, end="")
