"""Give the site of the pages what lies outside of docs/: linked sources as highlighted code, other pages, and the reference.

A hook of MkDocs (mkdocs.yml). The pages are written for a clone, where `../minicaffe/blob.pyx` is a file. The site has that file as
a page, so that a reader of the course has the code at hand and no address of a repository is needed.
"""

import importlib
import inspect
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File, InclusionLevel

from minicaffe import layer
from minicaffe.addons.reference.layer_reference import describe
from minicaffe.addons.reference.layers import text_of

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")
LANGUAGES = {".pyx": "cython", ".pxd": "cython", ".py": "python", ".hpp": "cpp", ".proto": "protobuf"}
MODULES = ("minicaffe", "minicaffe.blob", "minicaffe.workspace", "minicaffe.io", "minicaffe.memory", "minicaffe.cuda",
           "minicaffe.errors", "minicaffe.addons.trace")


def on_config(config):
    """Order the pages as the table of docs/README.md does."""
    cells = re.findall(r"^\| (\[.*?) \|", (DOCS / "README.md").read_text(), re.M)
    pages = [link for cell in cells for link in re.findall(r"\(([\w/]+\.md)\)", cell)]
    single = [page for page in pages if page not in ("course/README.md", "design.md")]
    folders = [{"A course": pages_of("course")}, {"Design": ["design.md", *pages_of("design")]}]
    config.nav = ["README.md", *single, "reference.md", "layer_types.md", *folders]
    return config


def pages_of(folder):
    """Return the pages of a folder by number, then by name."""
    paths = sorted((DOCS / folder).glob("*.md"), key=lambda path: (int((re.match(r"\d+", path.name) or "0")[0]), path.name))
    return [path.relative_to(DOCS).as_posix() for path in paths]


def on_files(files, config):
    """Add the files that pages link to, those that these link to, and the pages that docstrings and comments make."""
    pages = [Path(file.abs_src_path) for file in files.documentation_pages()]
    known = set()
    while pages:
        for target in set(linked_files(pages.pop())) - known:
            known.add(target)
            files.append(File.generated(config, site_path(target), content=page_of(target), inclusion=InclusionLevel.NOT_IN_NAV))
            pages += [target] * (target.suffix == ".md")
    files.append(File.generated(config, "reference.md", content=reference()))
    files.append(File.generated(config, "layer_types.md", content=layer_types()))
    return files


def on_page_markdown(markdown, page, config, files):
    """Point links to files outside of docs/ to their pages of the site."""
    here = page.file.src_uri
    real = ROOT / here.removeprefix("files/") if here.startswith("files/") else DOCS / here

    def moved(match):
        target = resolve(real, match[1])
        if target is None:
            return match[0]
        return f"]({posixpath.relpath(site_path(target), posixpath.dirname(here))}{match[2] or ''})"

    return LINK.sub(moved, markdown) if real.suffix == ".md" else markdown


def reference():
    """Return the page of the public classes and functions: of each module by `__all__`, else of those that it defines."""
    lines = ["# Reference\n\nThe signatures and docstrings of the public names."]
    for name in MODULES:
        module = importlib.import_module(name)
        lines += [f"## {name}", *text_and_sections(module)]
        for key in getattr(module, "__all__", None) or [k for k, v in vars(module).items() if getattr(v, "__module__", "") == name]:
            value = getattr(module, key)
            if callable(value) and key[0] != "_":       # others have the docstring of int or str
                lines += heading("###", f"{name}.{key}", value)
                for method, found in sorted(public_methods(value).items()) if inspect.isclass(value) else ():
                    lines += heading("####", f"{key}.{method}", found)
    return "\n\n".join(lines)


def layer_types():
    """Return a page with the text of `minicaffe layers TYPE` for each type."""
    lines = ["# Layer types"]
    for entry in map(describe, sorted(layer.layer_types(), key=str.lower)):
        lines += [f"## {entry.name}", f"Of {entry.origin}. Bottoms: {entry.bottoms}. Tops: {entry.tops}.", text_of(entry)]
    return "\n\n".join(lines)


def public_methods(cls):
    """Return the methods and properties with docstrings of a class and of its bases in minicaffe."""
    bases = [base for base in cls.__mro__[::-1] if base.__module__.startswith("minicaffe")]
    return {name: value for base in bases for name, value in vars(base).items() if name[0] != "_" and inspect.getdoc(value)}


def heading(marks, name, value):
    """Return the lines of a name, its signature, and its docstring."""
    try:
        signature = re.sub(r"<[^<>]* at 0x\w+>", "...", str(inspect.signature(value))) if callable(value) else ""
    except ValueError:      # a class of Cython: its docstring has the parameters
        signature = ""
    return [f"{marks} {name}", *[f"`{name.rpartition('.')[2]}{signature}`"] * bool(signature), *text_and_sections(value)]


def text_and_sections(value):
    """Yield the text of a NumPy docstring as Markdown, and each of its sections under its name as it is."""
    doc = re.sub(r"^[\w.]+\(.*\)(?: -> .*)?\n\n", "", inspect.getdoc(value) or "")      # the signature that Cython writes
    text, *sections = re.split(r"^(\w[\w ]*)\n-{3,}\n", doc, flags=re.M)
    yield text
    for name, body in zip(sections[::2], sections[1::2]):
        yield f"**{name}**\n\n```text\n{body.rstrip()}\n```"


def linked_files(page):
    """Yield the files outside of docs/ to which the links of a page lead."""
    for link, _ in LINK.findall(page.read_text()):
        target = resolve(page, link)
        if target is not None and not target.is_relative_to(DOCS):
            yield target


def resolve(page, link):
    """Return the file of a link, for a folder its README.md, and None for what is not a file of the repository."""
    target = (page.parent / link).resolve()
    if target.is_dir():
        target = target / "README.md"
    return target if target.is_file() and target.is_relative_to(ROOT) else None


def site_path(path):
    """Return the path of a file in the site's sources."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = f"files/{path.relative_to(ROOT).as_posix()}"
    return name if path.suffix == ".md" else f"{name}.md"


def page_of(path):
    """Return a file as the text of a page."""
    text = path.read_text()
    if path.suffix == ".md":
        return text
    return f"# {path.relative_to(ROOT)}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text}\n````\n"
