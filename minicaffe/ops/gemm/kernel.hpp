// The product of two matrices on a grid of blocks: C = alpha op(A) op(B) + beta C, all row-major.
//
// A block computes a tile of C of kSide x kSide elements. It walks along the depth k in steps of kDepth: each step puts the two
// strips that the tile needs into shared memory, so that an element is read from global memory once per tile instead of once
// per product. A thread keeps 2 x 2 patches of kPatch x kPatch sums in registers; the patches are half a tile apart, so that
// neighbouring threads read neighbouring words. Per element of depth it reads 4 patches' sides and does 4 kPatch^2
// multiplications: the kernel is limited by arithmetic, not by memory.
//
// There are two strips of each operand in shared memory: while the threads compute on one, they load the next into registers and
// then store it beside, with one barrier a step. In shared memory both operands lie with the depth outermost.
#pragma once
#include "minicaffe/kernels/vector.hpp"

namespace mc {

/// One operand, viewed as sides x depth: `side` counts rows of op(A) or columns of op(B). Distances are in elements.
template <class T> struct GemmOperand {
  const T* data;
  index_t ld, batch, term;  // from row to row as it is stored, from batch to batch, from term to term of the sum
  index_t step, wrap;       // from strip to strip, and from the last strip of a term to the first of the next
  bool along_depth;         // a stored row runs along the depth, else along the side
  bool aligned;             // every row of every matrix starts on a 16-byte boundary
};

/// kPatch elements that a thread reads at once.
template <class T, int kPatch> struct alignas(sizeof(T) * kPatch) GemmPatch { T value[kPatch]; };

/// The kernel: a grid of tiles of C, row by row, by batches (z). kThreads, kBarriers, kBlocks and Shared are for kernels/grid.hpp.
template <class T, int side_, int patch_, int depth_> struct Gemm {
  static constexpr int kSide = side_, kPatch = patch_, kDepth = depth_;
  static constexpr int kAcross = kSide / (2 * kPatch);  // threads along a side
  static constexpr int kThreads = kAcross * kAcross;
  static constexpr bool kBarriers = true;
  static constexpr int kBlocks = 512 / kThreads;  // 16 warps: while some wait for a barrier, others compute
  static constexpr int kPack = Pack<T>::kSize;
  static constexpr int kPacks = kSide * kDepth / (kPack * kThreads);  // of each strip, to a thread
  static_assert(kPacks * kPack * kThreads == kSide * kDepth, "every thread loads whole packs");
  static constexpr int kPitch = kSide + 16 / int(sizeof(T));  // stores along the depth spread over the banks
  using Strip = T[kDepth][kPitch];
  using Patch = GemmPatch<T, kPatch>;
  struct Shared {  // of each operand the strip that is computed on, and the next one
    alignas(16) Strip a[2], b[2];
  };

  GemmOperand<T> a, b;
  T* c;
  index_t ldc, c_batch;  // from row to row, and from batch to batch
  int m, n, k, terms;    // C = beta C + alpha (sum over `terms` of op(A) op(B))
  int column_tiles;      // in a row of tiles
  T alpha, beta;

  static MC_DEVICE int side(bool along_depth, int at) { return along_depth ? at / kDepth : at % kSide; }  // of strip element `at`
  static MC_DEVICE int depth(bool along_depth, int at) { return along_depth ? at % kDepth : at / kSide; }

  /// The part of one operand that a thread copies, from global memory to registers to shared memory. Values common to all threads
  /// are read from the kernel's parameters each time: that needs no registers, which are scarce here.
  struct Loader {
    const T* from[kPacks];
    int room[kPacks];  // sides from here to the end of the matrix; beyond it zeros are loaded
    Pack<T> pack[kPacks];

    /// Set the addresses of the first strip, for a tile that begins at side `first` of `sides`.
    MC_DEVICE void start(const GemmOperand<T>& x, const T* data, int first, int sides, int thread) {
      for (int l = 0; l < kPacks; ++l) {
        int at = (thread + l * kThreads) * kPack, s = first + side(x.along_depth, at), d = depth(x.along_depth, at);
        from[l] = data + (x.along_depth ? s * x.ld + d : d * x.ld + s);
        room[l] = sides - s;
      }
    }
    /// Load the strip of which `left` elements of depth are in the matrix, and move on.
    MC_DEVICE void load(const GemmOperand<T>& x, int left, int thread) {
      for (int l = 0; l < kPacks; ++l) {
        int ahead = left - depth(x.along_depth, (thread + l * kThreads) * kPack);
        int valid = x.along_depth ? (room[l] > 0 ? ahead : 0) : (ahead > 0 ? room[l] : 0);
        if (valid >= kPack && x.aligned) {
          pack[l] = *reinterpret_cast<const Pack<T>*>(from[l]);
        } else {
          for (int i = 0; i < kPack; ++i) pack[l].value[i] = i < valid ? from[l][i] : T(0);
        }
        from[l] += left <= kDepth ? x.wrap : x.step;
      }
    }
    /// Store what `load` loaded to shared memory.
    MC_DEVICE void store(const GemmOperand<T>& x, Strip& strip, int thread) const {
      for (int l = 0; l < kPacks; ++l) {
        int at = (thread + l * kThreads) * kPack, s = side(x.along_depth, at), d = depth(x.along_depth, at);
        if (x.along_depth) {
          for (int i = 0; i < kPack; ++i) strip[d + i][s] = pack[l].value[i];
        } else {
          *reinterpret_cast<Pack<T>*>(&strip[d][s]) = pack[l];
        }
      }
    }
  };

  MC_DEVICE void operator()(const Thread& t, Shared& shared) const {  // the tile of a block (kernels/grid.hpp)
    const int thread = int(t.thread());
    const int first_row = int(t.block()) / column_tiles * kSide, first_column = int(t.block()) % column_tiles * kSide;
    // A warp is 4 x 8 threads: the shape that reads the fewest different words.
    constexpr int kWarps = kAcross / 8;
    const int warp = thread / 32, lane = thread % 32;
    const int row = (warp / kWarps * 4 + lane / 8) * kPatch, column = (warp % kWarps * 8 + lane % 8) * kPatch;

    Loader left, right;
    left.start(a, a.data + t.block_z() * a.batch, first_row, m, thread);
    right.start(b, b.data + t.block_z() * b.batch, first_column, n, thread);

    T sum[2][2][kPatch][kPatch] = {};

    int ahead = k;  // depth that is left of the term
    int todo = (k + kDepth - 1) / kDepth * terms, now = 0;  // strips to load and compute; now: which of two is computed on
    if (todo > 0) {
      left.load(a, ahead, thread);
      right.load(b, ahead, thread);
      left.store(a, shared.a[0], thread);
      right.store(b, shared.b[0], thread);
    }
    t.barrier();
    while (--todo >= 0) {
      if (todo > 0) {
        ahead = ahead > kDepth ? ahead - kDepth : k;
        left.load(a, ahead, thread);
        right.load(b, ahead, thread);
      }
#pragma unroll 4  // enough to load ahead; all 8 need a few registers more than there are
      for (int d = 0; d < kDepth; ++d) {
        Patch x[2], y[2];
        for (int h = 0; h < 2; ++h) {
          x[h] = *reinterpret_cast<const Patch*>(&shared.a[now][d][row + h * (kSide / 2)]);
          y[h] = *reinterpret_cast<const Patch*>(&shared.b[now][d][column + h * (kSide / 2)]);
        }
        for (int h = 0; h < 2; ++h)
          for (int g = 0; g < 2; ++g)
            for (int i = 0; i < kPatch; ++i)
              for (int j = 0; j < kPatch; ++j) sum[h][g][i][j] += x[h].value[i] * y[g].value[j];
      }
      now ^= 1;
      if (todo > 0) {
        left.store(a, shared.a[now], thread);
        right.store(b, shared.b[now], thread);
      }
      t.barrier();
    }

    T* to = c + t.block_z() * c_batch;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < kPatch; ++i) {
        const int r = first_row + row + h * (kSide / 2) + i;
        if (r >= m) continue;
        for (int g = 0; g < 2; ++g) write(to + r * ldc, first_column + column + g * (kSide / 2), sum[h][g][i]);
      }
  }

  /// Write kPatch sums of a row of C, from column `first` on. C is not read if beta is 0: it may be undefined, even NaN.
  MC_DEVICE void write(T* line, int first, const T (&sum)[kPatch]) const {
    Patch old;
    if (first + kPatch <= n && (reinterpret_cast<unsigned long long>(line + first) & (sizeof(Patch) - 1)) == 0) {
      Patch* to = reinterpret_cast<Patch*>(line + first);
      if (beta != T(0)) old = *to;
      for (int j = 0; j < kPatch; ++j) old.value[j] = alpha * sum[j] + (beta != T(0) ? beta * old.value[j] : T(0));
      *to = old;
    } else {
      for (int j = 0; j < kPatch; ++j)
        if (first + j < n) line[first + j] = alpha * sum[j] + (beta != T(0) ? beta * line[first + j] : T(0));
    }
  }
};

}  // namespace mc
