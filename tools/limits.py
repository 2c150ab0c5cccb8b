"""List the limits that the documentation states: one line each of place, limit and default, with tabs between them.

The places are each command's options and arguments that take a number, and the variables of docs/environment.md that minicaffe
reads, but those whose value is a path or a program. The limits of an option are those of its type, which ``--help`` prints; of a
variable the column "values". ``tests/limits.tsv`` has a row for each with the tests of its values; ``tests/test_limits.py``
compares both, and tries the limits of all options. Not listed: fields of layers, and limits that sentences of other pages state.
"""

import re
from pathlib import Path

import click

from minicaffe.cli.app import COMMANDS, minicaffe
from minicaffe.cli.solver_options import FieldOption

PAGE = Path(__file__).resolve().parent.parent / "docs" / "environment.md"
NO_LIMIT = ("a path", "a folder", "a compiler", "settings joined by `,`")
NUMBERS = (click.types.IntParamType, click.types.FloatParamType)    # IntRange and FloatRange are such, too


def commands(group=minicaffe, path=()):
    """Yield the words and the click command of each command."""
    context = click.Context(group)
    for name in COMMANDS if group is minicaffe else group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def numbers():
    """Yield the words, the click command and each parameter of it that takes a number."""
    for words, command in commands():
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


if __name__ == "__main__":
    for place, texts in statements().items():
        print(place, *texts, sep="\t")
