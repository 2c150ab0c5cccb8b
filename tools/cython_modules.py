"""Compile .pyx files to C++ in one run: ``cython_modules.py ROOT SHARED FOLDER DEPFILE DIRECTIVE=VALUE ... -- SOURCE ...``

Cython takes longer to start than to compile most modules. So meson.build starts this script once, which forks a process for each
processor. It runs if any source has changed. A module whose .cpp file is newer than its sources is not compiled again. As ninja
compares the times of files, it does not build that module again. SHARED is the name of a module with the code that Cython would
otherwise add to each module.
"""

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import Cython
import Cython.Compiler.ParseTreeTransforms  # takes a second, once for all forks
from Cython.Compiler.Main import compile as compile_module


def read_sources(target):
    """Return the sources of a .cpp file, from the depfile that Cython wrote beside it; [] if there is no depfile."""
    depfile = Path(f"{target}.dep")
    listed = depfile.read_text().partition(":")[2] if depfile.exists() else ""
    return [name.replace("\0", " ") for name in listed.replace("\\\n", " ").replace("\\ ", "\0").split()]


def is_current(target):
    sources = read_sources(target)
    if not sources or not all(map(os.path.exists, [target, *sources])):
        return False
    return target.stat().st_mtime_ns >= max(os.stat(name).st_mtime_ns for name in sources)


def optimize_less(text):
    """Return the text of a .cpp file with -O1 by GCC for Cython's functions, which are half of the code and have no hot loops.

    Functions of the headers that it includes before them keep the optimization of meson.build. A build with -O0 stays one.
    """
    first, last = (text.find(f"/* #### Code section: {name} ### */") for name in ("module_declarations", "end"))
    if first < 0 or last < 0:
        return text     # of a Cython with other comments
    lines = '#if defined __OPTIMIZE__ && defined __GNUC__ && !defined __clang__\n#pragma GCC {}_options\n{}#endif\n'
    return "".join((text[:first], lines.format("push", '#pragma GCC optimize ("O1")\n'), text[first:last], lines.format("pop", ""),
                    text[last:]))


def translate(source, target, root, shared, directives):
    """Compile one module to C++; return False if that failed. Cython prints the reason."""
    began = time.time_ns()
    done = compile_module(os.path.relpath(source), full_module_name=target.stem, output_file=str(target), cplus=True,
                          language_level=3, depfile=True, include_path=[root], shared_utility_qualified_name=shared,
                          compiler_directives=directives)
    if done.num_errors:
        target.unlink(missing_ok=True)
        return False
    complete = target.with_suffix(".complete")      # a run that is killed leaves no half file
    complete.write_text(optimize_less(target.read_text()))
    complete.replace(target)
    os.utime(target, ns=(began, began))     # a source that is saved during the run is newer
    return True


def main(root, shared, folder, depfile, *rest):
    directives, sources = rest[:rest.index("--")], rest[rest.index("--") + 1:]
    directives = {name: value == "True" for name, _, value in (one.partition("=") for one in directives)}
    targets = [Path(folder, ".".join(Path(source).resolve().relative_to(root).with_suffix(".cpp").parts)) for source in sources]
    shared_cpp = Path(folder, f"{shared}.cpp")
    options = repr((Cython.__version__, root, shared, directives, Path(__file__).read_text()))
    options_file = Path(folder, "cython_modules.options")
    if not options_file.exists() or options_file.read_text() != options:
        for target in [*targets, shared_cpp]:
            target.unlink(missing_ok=True)
        options_file.write_text(options)
    if not shared_cpp.exists():
        subprocess.run([sys.executable, "-m", "cython", "--cplus", f"--generate-shared={shared_cpp}"], check=True)
    outdated = [(source, target, root, shared, directives) for source, target in zip(sources, targets) if not is_current(target)]
    outdated.sort(key=lambda job: -os.path.getsize(job[0]))     # the longest first
    done = []
    if outdated:
        with multiprocessing.get_context("fork").Pool(min(os.cpu_count(), len(outdated))) as pool:
            done = pool.starmap(translate, outdated, chunksize=1)
    everything = sorted({name.replace(" ", "\\ ") for target in targets for name in read_sources(target)})
    Path(depfile).write_text(f"{targets[0].name}: " + " \\\n  ".join(everything) + "\n")
    sys.exit(not all(done))


if __name__ == "__main__":
    main(*sys.argv[1:])
