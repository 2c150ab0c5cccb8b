// Activations (ops/activation/kernel.hpp) on CPU and device: mc::map1, map2, map3 of a functor and its members.
#pragma once
#include "minicaffe/device/typed.hpp"
#include "minicaffe/ops/activation/kernel.hpp"
