// What Cython's modules and ours include of Python and of C++, as a precompiled header: no header of ours, whose change would build all.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <compile.h>
#include <frameobject.h>
#include <traceback.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ios>
#include <mutex>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>
