#include "minicaffe/ops/broadcast/caffe.hpp"

namespace mc {
MC_BROADCASTS()
}  // namespace mc
