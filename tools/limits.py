"""List the limits that the documentation states: one line each of place, limit and default, with tabs between them.

With the argument ``sentences``: the sentences of docs/*.md and of docstrings that state a limit by a number, one line each of file,
sentence and tests, and how many have tests. ``tests/limits_of_sentences.tsv`` has the tests: file, a part of the sentence, and
tests, or why there are none. A sentence without a row is listed without tests.

The places are each command's options and arguments that take a number, and the variables of docs/environment.md that minicaffe
reads, but those whose value is a path or a program. The limits of an option are those of its type, which ``--help`` prints; of a
variable the column "values". ``tests/limits.tsv`` has a row for each with the tests of its values; ``tests/test_limits.py``
compares both, and tries the limits of all options.
"""

import ast
import re
import sys
from pathlib import Path

import click

from minicaffe.cli import app
from minicaffe.cli.app import minicaffe
from minicaffe.cli.solver_options import FieldOption

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "environment.md"
STATES = re.compile("|".join((
    r"\bat (?:most|least) [\d.]+", r"\d[\w,. ^-]* at most\b", r"\bup to (?:[\d.]+|one|two|four|ten)\b", r"\b0(?: means|: )",
    r"\d < \w+", r"\b[Dd]efaults? [\d.]+\b", r"\b[\d.]+(?: \w+)?,? by default\b", r"\bby default [\d.]+",
    r"\b(?:from|must be) [\d^.]+ to\b")))
# Pages on how minicaffe works and on what was measured.
NO_INPUT = "adding_a_layer", "benchmarks", "course/", "design/", "differences", "memory.md", "progress", "reading", "threads"
NO_LIMIT = ("a path", "a folder", "a compiler", "settings joined by `,`")
NUMBERS = (click.types.IntParamType, click.types.FloatParamType)    # IntRange and FloatRange are such, too


def commands(group=minicaffe, path=()):
    """Yield the words and the click command of each command."""
    context = click.Context(group)
    for name in app.commands() if group is minicaffe else group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def numbers():
    """Yield the words, the click command and each parameter of it that takes a number."""
    for words, command in commands():
        command.import_modules()
        for param in command.params:
            of_field = isinstance(param, FieldOption) and param.type.name in ("N", "NUMBER")
            if of_field or isinstance(param.type, NUMBERS):
                yield words, command, param


def name_of(param):
    """Return the first name of a parameter, an option's with its dashes."""
    return param.opts[0] if isinstance(param, click.Option) else param.human_readable_name


def limit_of(param):
    """Return the range of a parameter as its help states it, or what kind of number it takes."""
    described = param.type._describe_range() if hasattr(param.type, "_describe_range") else ""
    return described or {"N": "integer", "NUMBER": "number"}.get(param.type.name, param.type.name)


def default_of(param):
    """Return the default that the help states, or the text after which it speaks of a default or of 0."""
    given = param.to_info_dict().get("default")
    stated = re.search(r"(by default|0:|-1:|negative:)[^;.]*", getattr(param, "help", None) or "")
    shown = getattr(param, "show_default", None)
    shown = shown if isinstance(shown, str) else "" if given is None or callable(given) else str(given)
    return "; ".join(filter(None, (shown, stated and stated[0].strip())))


def statements():
    """Return the places with their (limit, default), in the order of commands and of the page."""
    found = {}
    for words, _, param in numbers():
        found[" ".join((*words, name_of(param)))] = limit_of(param), default_of(param)
    used = PAGE.read_text().partition("## Building")[0]
    for names, values, means in re.findall(r"^\| (`[A-Z_`a-z, ]+`) \| (.+?) \| (.+?) \|", used, re.M):
        for name in re.findall(r"`(\w+)`", names if values not in NO_LIMIT else ""):
            otherwise = re.search(r"otherwise[^;|]*", means)
            found[name] = values, otherwise[0].strip() if otherwise else ""
    for setting, means in re.findall(r"^\| `((?:\w+=).*?)` \| (.+?) \|", used, re.M):
        found[f"MINICAFFE_SIM {setting.split('=')[0]}"] = setting.replace("`", ""), means
    return found


def docstrings(path):
    """Yield the docstrings of a module that users read; in Cython all, since its syntax says not which are private."""
    text = path.read_text()
    if path.suffix == ".pyx":
        yield from re.findall(r'^ *"""(.*?)"""', text, re.S | re.M)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and not getattr(node, "name", "").startswith("_"):
            yield ast.get_docstring(node) or ""


def sentences():
    """Yield (file, sentence) of each sentence that states a limit; parameters and rows of tables begin new ones."""
    docs = ROOT / "docs"
    pages = [path for path in docs.rglob("*.md") if not path.relative_to(docs).as_posix().startswith(NO_INPUT)]
    modules = [path for ending in ("py", "pyx", "pyi") for path in (ROOT / "minicaffe").rglob(f"*.{ending}")]
    for path in sorted(pages) + sorted(path for path in modules if not path.stem.endswith("_pb2")):
        texts = docstrings(path) if path.suffix != ".md" else [re.sub("```.*?```", "", path.read_text(), flags=re.S)]
        for text in texts:
            for block in re.split(r"\n\s*\n|\n\s*(?=[-*|] )|\n(?=\s*[\w, *]+ : )|-----\n", text):
                for sentence in re.split(r"(?<=[.;:]) (?=[A-Z`])", " ".join(block.split())):
                    if STATES.search(sentence):
                        yield path.relative_to(ROOT).as_posix(), sentence


def tested_sentences():
    """Return the rows of tests/limits_of_sentences.tsv: file, part of a sentence, tests."""
    return [line.split("\t") for line in (ROOT / "tests" / "limits_of_sentences.tsv").read_text().splitlines()]


def print_sentences():
    rows, found = tested_sentences(), list(sentences())
    tests = [next((row[2] for row in rows if row[0] == file and row[1] in sentence), "") for file, sentence in found]
    for (file, sentence), names in zip(found, tests):
        print(file, sentence, names, sep="\t")
    none = sum(names.startswith("no test: ") for names in tests)
    print(f"{sum('::' in names for names in tests)} of {len(found) - none} sentences have tests; {none} more limit no given value")


if __name__ == "__main__":
    if sys.argv[1:] == ["sentences"]:
        print_sentences()
        sys.exit()
    for place, texts in statements().items():
        print(place, *texts, sep="\t")
