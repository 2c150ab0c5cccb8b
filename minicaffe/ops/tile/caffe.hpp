// The gradient of a blob that was repeated along an axis (ops/tile/kernel.hpp), on CPU and device: mc::each_typed of a functor.
#pragma once
#include "minicaffe/device/typed.hpp"
#include "minicaffe/ops/tile/kernel.hpp"
