#include "minicaffe/loops/strided/caffe.hpp"

namespace mc {
MC_COPIES()
}  // namespace mc
