// Ternary weights times 8-bit activations on the CPU, on packed weights (chimera/ops/packed.py).
//
//   y[t, r] = step[t] * scale[r] * sum_i a[t, i] * c[r, i] + bias[r],   c in {-1, 0, 1}
//
// A weight row is blocks of 128 codes in 32 bytes: byte j holds the codes c + 1 of places j, j + 32,
// j + 64 and j + 96 in its bits 0-1, 2-3, 4-5 and 6-7. With u = c + 1 >= 0 a sum is
// sum a * u - sum a, a product of unsigned and signed bytes, for which x86 has instructions.
// Rows and tokens are padded to whole blocks; padding of a is 0. All sums are exact integers.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ternary_dots.h"

namespace {

// Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even, as torch.
inline float nearest(float x) {
  constexpr float constant = 12582912.0f;  // kept by the compiler: no -ffast-math
  return (x + constant) - constant;
}

// Codes of one token, its step, and the sum of its codes. `codes` has room for whole blocks. Sums
// run in lanes, so that they are vectors of the machine.
void quantise(const float* x, int64_t k, bool norm, float eps, float levels, float nudge,
              float smallest, int8_t* codes, float* step, int32_t* total) {
  constexpr int64_t LANES = 8;
  float peaks[LANES] = {0}, finite[LANES] = {0};
  double squares[LANES] = {0};
  const int64_t whole = k / LANES * LANES;
  for (int64_t i = 0; i < whole; i += LANES)
    for (int64_t j = 0; j < LANES; ++j) {
      const float size = std::fabs(x[i + j]);
      peaks[j] = size > peaks[j] ? size : peaks[j];
      finite[j] += size - size;  // 0, or NaN
    }
  for (int64_t i = whole; i < k; ++i) {
    const float size = std::fabs(x[i]);
    peaks[0] = size > peaks[0] ? size : peaks[0];
    finite[0] += size - size;
  }
  float peak = 0.0f, bad = 0.0f;
  for (int64_t j = 0; j < LANES; ++j) {
    peak = peaks[j] > peak ? peaks[j] : peak;
    bad += finite[j];
  }
  *total = 0;
  if (bad != 0.0f) {  // the whole token is NaN
    std::memset(codes, 0, k);
    *step = NAN;
    return;
  }
  float rstd = 1.0f;
  if (norm) {
    for (int64_t i = 0; i < whole; i += LANES)
      for (int64_t j = 0; j < LANES; ++j) squares[j] += (double)x[i + j] * x[i + j];
    for (int64_t i = whole; i < k; ++i) squares[0] += (double)x[i] * x[i];
    double sum = 0.0;
    for (int64_t j = 0; j < LANES; ++j) sum += squares[j];
    rstd = 1.0f / std::sqrt((float)(sum / (double)k) + eps);
    peak *= rstd;
  }
  const float grid = (peak > smallest ? peak : smallest) / levels;
  int32_t sum = 0;
  if (norm) {  // as torch: x times a factor after the norm, x divided by the step without
    const float factor = rstd / grid * nudge;
    for (int64_t i = 0; i < k; ++i) codes[i] = (int8_t)(int32_t)nearest(x[i] * factor);
  } else {
    const float divisor = grid / nudge;
    for (int64_t i = 0; i < k; ++i) codes[i] = (int8_t)(int32_t)nearest(x[i] / divisor);
  }
  for (int64_t i = 0; i < k; ++i) sum += codes[i];
  *step = grid;
  *total = sum;
}

// Rows first to last of all tokens; `finish` gets the sum of one token and row.
template <typename Finish>
void rows(Dots dots, const int8_t* a, const int32_t* totals, int64_t m, int64_t stride,
          const uint8_t* packed, int64_t first, int64_t last, Finish finish) {
  const int64_t blocks = stride / BLOCK;
  for (int64_t t = 0; t < m; t += TOKENS) {
    const int64_t count = m - t < TOKENS ? m - t : TOKENS;
    for (int64_t r = first; r < last; r += ROWS) {
      const int64_t height = last - r < ROWS ? last - r : ROWS;
      Tile sums;
      dots(a + t * stride, stride, count, packed + r * blocks * BYTES, height, blocks, sums);
      for (int64_t i = 0; i < count; ++i)
        for (int64_t j = 0; j < height; ++j) finish(t + i, r + j, sums[i][j] - totals[t + i]);
    }
  }
}

constexpr int64_t PIECE = 32;    // rows of one piece of work
constexpr int64_t AT_ONCE = 64;  // tokens quantised at once: their codes stay in the cache

}  // namespace

extern "C" {

// The best path of this CPU: 2 AVX-512 VNNI, 1 AVX2, 0 plain.
int32_t chimera_best_path() {
#ifdef X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw")) return 2;
  if (__builtin_cpu_supports("avx2")) return 1;
#endif
  return 0;
}

// out[m, n] = a . c of int8 codes a[m, stride], padded with zeros to whole blocks.
void chimera_product(int32_t number, int32_t threads, const int8_t* a, int64_t m, int64_t stride,
                     const uint8_t* packed, int64_t n, int32_t* out) {
  const Dots dots = path(number);
  std::vector<int32_t> totals(m);
  for (int64_t t = 0; t < m; ++t) {
    int32_t sum = 0;
    for (int64_t i = 0; i < stride; ++i) sum += a[t * stride + i];
    totals[t] = sum;
  }
  const int64_t pieces = (n + PIECE - 1) / PIECE;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const int64_t first = piece * PIECE, last = first + PIECE < n ? first + PIECE : n;
    rows(dots, a, totals.data(), m, stride, packed, first, last,
         [&](int64_t t, int64_t r, int32_t sum) { out[t * n + r] = sum; });
  }
}

// y[m, n] of float inputs x[m, k]. scale has `scales` = 1 or n numbers; bias has n or is null.
void chimera_linear(int32_t number, int32_t threads, const float* x, int64_t m, int64_t k,
                    int32_t norm, float eps, float levels, float nudge, float smallest,
                    const uint8_t* packed, int64_t n, const float* scale, int64_t scales, const float* bias, float* y) {
  const Dots dots = path(number);
  const int64_t stride = (k + BLOCK - 1) / BLOCK * BLOCK;
  const int64_t pieces = (n + PIECE - 1) / PIECE;
  std::vector<int8_t> codes((m < AT_ONCE ? m : AT_ONCE) * stride);
  std::vector<float> steps(m < AT_ONCE ? m : AT_ONCE);
  std::vector<int32_t> totals(m < AT_ONCE ? m : AT_ONCE);
  int8_t* const a = codes.data();
  float* const step = steps.data();
  int32_t* const total = totals.data();
  for (int64_t start = 0; start < m; start += AT_ONCE) {
    const int64_t count = m - start < AT_ONCE ? m - start : AT_ONCE;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
      for (int64_t t = 0; t < count; ++t)
        quantise(x + (start + t) * k, k, norm != 0, eps, levels, nudge, smallest, a + t * stride, step + t,
                 total + t);
#pragma omp for schedule(static)
      for (int64_t piece = 0; piece < pieces; ++piece) {
        const int64_t first = piece * PIECE, last = first + PIECE < n ? first + PIECE : n;
        rows(dots, a, total, count, stride, packed, first, last,
             [&](int64_t t, int64_t r, int32_t sum) {
               const float of_row = scale[scales == 1 ? 0 : r];
               const float value = (float)sum * (step[t] * of_row);
               y[(start + t) * n + r] = bias ? value + bias[r] : value;
             });
      }
    }
  }
}

}  // extern "C"
