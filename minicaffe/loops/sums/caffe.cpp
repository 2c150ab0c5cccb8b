#include "minicaffe/loops/sums/caffe.hpp"

namespace mc {
MC_SUMS()
}  // namespace mc
