"""tools/mutants.py: without an active change a file computes what it did, and each change makes a difference."""

import itertools
import subprocess

import mutants
import pytest
from cplusplus import compiler

TEXT = '''"""Documentation."""
from math import floor

LIMIT = 3


def compute(a, b, limit=LIMIT, *, flag=True):
    """Documentation."""
    found, rest = [], None
    if a < limit and b > 0 or flag and not a:
        found.append(a)
    for x in range(b):
        if x == 4:
            break
        found += [x] if x <= 1 else [floor(-x)]
    rest = sorted(found, reverse=True)
    if a > 4: return
    assert 0 <= len(rest) <= 99, f"{a} < {b}"
    if a == 100:
        raise ValueError(a < b)
    return rest or (a, b)
'''
CYTHON = '''cdef class Box:
    cdef int size

    cdef int grown(self, int by) except -1:
        cdef int found = <int> by
        if <size_t> by < self.size:
            self.size = by
        return found
'''

CPP = '''// A file of C++.
#include <vector>
#define UNCHANGED(a) if ((a) < 0) return a

namespace some {
constexpr int least(int a, int b) { return b < a ? b : a; }
struct Sums {
  int total = 0, last = 0;
  void add(int x) {
    last = x;
    total += x;
  }
};
template <class T> T compute(T a, T b) {
  std::vector<T> found(3), other;
  T* first = found.data();
  *first = a;
  UNCHANGED(a);
  if constexpr (sizeof(T) == 1) found.clear();
  if (a == 3) return 100;
  for (T i = 0; i < b; ++i) {
    if (i == 2 && a > 1 || a == 5) continue;
    other.push_back(i);
  }
  Sums sums{};
  for (const auto& x : other) sums.add(x);
  auto each = [&](T x) { found[1] += x; };
  each(b);
  return least(sums.total, 50) + 7 * sums.last + *first * 100 + found[1] * 1000;
}
}  // namespace some
'''
MAIN = '''
#include <cstdio>
int main() {
  for (active = 0; active <= %d; ++active) {
    for (int a = -1; a < 7; ++a)
      for (int b = 0; b < 5; ++b) std::printf("%%d ", some::compute<int>(a, b));
    std::printf("\\n");
  }
}
'''


def run(text, active):
    scope = {"MUTANT": lambda number: number == active}
    exec(text.replace(mutants.IMPORTS[".py"], ""), scope)
    return [scope["compute"](a, b, limit, flag=flag) for a, b, limit, flag in itertools.product(range(6), range(6), (0, 3), (True, False))]


def test_changes_of_python_and_cython():
    changes = mutants.changes_of(TEXT)
    kinds = [kind for kind, *_ in changes]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "statement": 5, "term of and": 3, "term of or": 3, "boundary": 4, "truth": 1, "condition": 1}
    text, top = mutants.written(TEXT, ".py", changes, 7)
    assert text.split("\n")[top - 1] == mutants.IMPORTS[".py"] and text.count("MUTANT(") == len(changes)
    wanted = run(TEXT, None)
    assert run(text, None) == wanted
    for number in range(7, 7 + len(changes)):
        try:
            assert run(text, number) != wanted, text.split("\n")[changes[number - 7][1].start[0]]
        except (TypeError, UnboundLocalError):      # of a statement that is left out
            assert kinds[number - 7] == "statement"
    changes = mutants.changes_of(CYTHON)
    assert [(kind, first.text) for kind, first, *_ in changes] == [("boundary", "<"), ("statement", "self")]
    assert "if (<size_t> by < self.size if not MUTANT(1) else <size_t> by <= self.size):" in mutants.written(CYTHON, ".pyx", changes, 1)[0]


def test_changes_of_cpp(tmp_path):
    changes = mutants.changes_of_cpp(CPP)
    kinds = [kind for kind, *_ in changes]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "statement": 9, "if": 2, "boundary": 2, "term of &&": 2, "term of ||": 1}
    text, top = mutants.written(CPP, ".cpp", changes, 1)
    assert text.split("\n")[top - 1] == mutants.IMPORTS[".cpp"]
    source, program = tmp_path / "all.cpp", tmp_path / "all"
    source.write_text("int active;\n" + text.replace(mutants.IMPORTS[".cpp"], "#define MUTANT(n) (active == n)") + MAIN % len(changes))
    subprocess.run([*compiler(), "-std=c++17", "-w", source, "-o", program], check=True)
    without, *each = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(each) == len(changes)
    assert [text.split("\n")[changes[i][1].start[0]] for i, found in enumerate(each) if found == without] == []


@pytest.mark.parametrize("body, seconds, found", [
    (lambda: [1], 60, [1]), (lambda: exec("import os; os.kill(os.getpid(), 9)"), 60, ("CRASH", "")),
    (lambda: exec("import time; time.sleep(60)"), 0.2, ("TIMEOUT", ""))])
def test_child(body, seconds, found):
    assert mutants.in_child(body, seconds) == found
