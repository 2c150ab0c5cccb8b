// Our declarations of oneDNN's C interface against its own headers: values of enumerations, and the arguments of each function.
#include <type_traits>
#include "minicaffe/engines/onednn/dnnl.hpp"
#include "oneapi/dnnl/dnnl.h"

namespace {

using namespace mc::onednn;

/// Pointers are alike, enumerations are integers: what matters when a function is called.
template <class T> using Passed = std::conditional_t<std::is_pointer<T>::value, void*,
                                  typename std::conditional_t<std::is_enum<T>::value, std::common_type<int>, std::decay<T>>::type>;
template <class F> struct Call;
template <class R, class... P> struct Call<R (*)(P...)> { using Type = Passed<R>(Passed<P>...); };

#define MC_CHECK(name, result, arguments) \
  static_assert(std::is_same<Call<decltype(Functions::name)>::Type, Call<decltype(&dnnl_##name)>::Type>::value, #name);
MC_DNNL_FUNCTIONS(MC_CHECK)

static_assert(kMaxAxes == DNNL_MAX_NDIMS && sizeof(Dims) == sizeof(dnnl_dims_t), "");
static_assert(sizeof(DnnlArgument) == sizeof(dnnl_exec_arg_t) && sizeof(DnnlVersion) == sizeof(dnnl_version_t), "");
static_assert(offsetof(DnnlVersion, cpu_runtime) == offsetof(dnnl_version_t, cpu_runtime), "");
static_assert(kSuccess == dnnl_success && kCpu == dnnl_cpu && kInOrder == dnnl_stream_in_order, "");
static_assert(kFloat == dnnl_f32 && kBf16 == dnnl_bf16 && kQueryType == dnnl_query_data_type, "");
static_assert(kQueryAxes == dnnl_query_ndims_s32 && kQueryDims == dnnl_query_dims, "");
static_assert(kAnyTag == dnnl_format_tag_any && kRowMajor == dnnl_ab, "");
static_assert(kBlocksOf16 == dnnl_nChw16c && kBlocksOf8 == dnnl_nChw8c && kChannelsLast == dnnl_nhwc, "");
static_assert(kBlocksOf16x16 == dnnl_ABcd16b16a && kAmx == dnnl_cpu_isa_avx512_core_amx, "");
static_assert(kSequential == DNNL_RUNTIME_SEQ && kOpenMp == DNNL_RUNTIME_OMP, "");
static_assert(kTraining == dnnl_forward_training && kDirect == dnnl_convolution_direct, "");
static_assert(kDirectTransposed == dnnl_deconvolution_direct, "");
static_assert(kAdd == dnnl_binary_add && kScales == DNNL_ARG_ATTR_SCALES, "");
static_assert(kPostOp == DNNL_ARG_ATTR_MULTIPLE_POST_OP_BASE && kOperand == DNNL_ARG_SRC_1, "");
static_assert(kMaxPooling == dnnl_pooling_max && kMeanWithPadding == dnnl_pooling_avg_include_padding, "");
static_assert(kMeanWithoutPadding == dnnl_pooling_avg_exclude_padding && kLrnAcross == dnnl_lrn_across_channels, "");
static_assert(kQueryImplementation == dnnl_query_impl_info_str, "");
static_assert(kQuerySource == dnnl_query_src_md && kQuerySourceDiff == dnnl_query_diff_src_md, "");
static_assert(kQueryWeights == dnnl_query_weights_md && kQueryWeightsDiff == dnnl_query_diff_weights_md, "");
static_assert(kQueryTop == dnnl_query_dst_md && kQueryTopDiff == dnnl_query_diff_dst_md, "");
static_assert(kQueryWorkspace == dnnl_query_workspace_md && kQueryScratch == dnnl_query_scratchpad_md, "");
static_assert(kScratch == DNNL_ARG_SCRATCHPAD && kUserScratchpad == dnnl_scratchpad_mode_user, "");
static_assert(kSource == DNNL_ARG_SRC && kTop == DNNL_ARG_DST && kWeights == DNNL_ARG_WEIGHTS && kBias == DNNL_ARG_BIAS, "");
static_assert(kWorkspace == DNNL_ARG_WORKSPACE && kSourceDiff == DNNL_ARG_DIFF_SRC && kTopDiff == DNNL_ARG_DIFF_DST, "");
static_assert(kWeightsDiff == DNNL_ARG_DIFF_WEIGHTS && kBiasDiff == DNNL_ARG_DIFF_BIAS, "");
static_assert(dnnl_cpu_isa_avx2 == 7 && (int(dnnl_cpu_isa_avx512_core) & 7) == 7, "");

}  // namespace
