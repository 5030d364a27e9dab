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

#if defined(__x86_64__)
#include <immintrin.h>
#define X86 1
#endif

namespace {

constexpr int64_t BLOCK = 128, BYTES = 32, GROUP = 4;

// Sums a[t] . u[r] of `count` <= GROUP tokens with one row of `blocks` blocks.
using Dots = void (*)(const int8_t* a, int64_t stride, int64_t count, const uint8_t* row,
                      int64_t blocks, int32_t* out);

void dots_plain(const int8_t* a, int64_t stride, int64_t count, const uint8_t* row, int64_t blocks,
                int32_t* out) {
  for (int64_t t = 0; t < count; ++t) {
    const int8_t* x = a + t * stride;
    int32_t sum = 0;
    for (int64_t b = 0; b < blocks; ++b)
      for (int64_t part = 0; part < 4; ++part)
        for (int64_t j = 0; j < BYTES; ++j)
          sum += ((row[b * BYTES + j] >> (2 * part)) & 3) * x[b * BLOCK + part * BYTES + j];
    out[t] = sum;
  }
}

#ifdef X86
// A pair of products is at most 2 * 2 * 128 = 512, so 8 blocks of 4 pairs fit 16 bits.
constexpr int64_t BEFORE_WIDENING = 8;

template <int COUNT>
__attribute__((target("avx2"))) void dots_avx2_of(const int8_t* a, int64_t stride,
                                                  const uint8_t* row, int64_t blocks,
                                                  int32_t* out) {
  const __m256i mask = _mm256_set1_epi8(3), ones = _mm256_set1_epi16(1);
  __m256i sums[COUNT];
  for (int t = 0; t < COUNT; ++t) sums[t] = _mm256_setzero_si256();
  for (int64_t first = 0; first < blocks; first += BEFORE_WIDENING) {
    const int64_t last = first + BEFORE_WIDENING < blocks ? first + BEFORE_WIDENING : blocks;
    __m256i narrow[COUNT];
    for (int t = 0; t < COUNT; ++t) narrow[t] = _mm256_setzero_si256();
    for (int64_t b = first; b < last; ++b) {
      const __m256i packed = _mm256_loadu_si256((const __m256i*)(row + b * BYTES));
      const __m256i u0 = _mm256_and_si256(packed, mask);
      const __m256i u1 = _mm256_and_si256(_mm256_srli_epi16(packed, 2), mask);
      const __m256i u2 = _mm256_and_si256(_mm256_srli_epi16(packed, 4), mask);
      const __m256i u3 = _mm256_and_si256(_mm256_srli_epi16(packed, 6), mask);
      for (int t = 0; t < COUNT; ++t) {
        const __m256i* x = (const __m256i*)(a + t * stride + b * BLOCK);
        const __m256i low = _mm256_add_epi16(_mm256_maddubs_epi16(u0, _mm256_loadu_si256(x)),
                                             _mm256_maddubs_epi16(u1, _mm256_loadu_si256(x + 1)));
        const __m256i high = _mm256_add_epi16(_mm256_maddubs_epi16(u2, _mm256_loadu_si256(x + 2)),
                                              _mm256_maddubs_epi16(u3, _mm256_loadu_si256(x + 3)));
        narrow[t] = _mm256_add_epi16(narrow[t], _mm256_add_epi16(low, high));
      }
    }
    for (int t = 0; t < COUNT; ++t)
      sums[t] = _mm256_add_epi32(sums[t], _mm256_madd_epi16(narrow[t], ones));
  }
  for (int t = 0; t < COUNT; ++t) {
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sums[t]),
                                 _mm256_extracti128_si256(sums[t], 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4E));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xB1));
    out[t] = _mm_cvtsi128_si32(half);
  }
}

template <int COUNT>
__attribute__((target("avx512f,avx512bw,avx512vnni"))) void dots_vnni_of(
    const int8_t* a, int64_t stride, const uint8_t* row, int64_t blocks, int32_t* out) {
  const __m512i mask = _mm512_set1_epi8(3);
  __m512i sums[COUNT];
  for (int t = 0; t < COUNT; ++t) sums[t] = _mm512_setzero_si512();
  int64_t b = 0;
  for (; b + 2 <= blocks; b += 2) {
    const __m512i packed = _mm512_loadu_si512(row + b * BYTES);
    const __m512i u[4] = {_mm512_and_si512(packed, mask),
                          _mm512_and_si512(_mm512_srli_epi16(packed, 2), mask),
                          _mm512_and_si512(_mm512_srli_epi16(packed, 4), mask),
                          _mm512_and_si512(_mm512_srli_epi16(packed, 6), mask)};
    for (int t = 0; t < COUNT; ++t) {
      const int8_t* x = a + t * stride + b * BLOCK;
      for (int part = 0; part < 4; ++part) {
        const __m256i first = _mm256_loadu_si256((const __m256i*)(x + part * BYTES));
        const __m256i second = _mm256_loadu_si256((const __m256i*)(x + BLOCK + part * BYTES));
        const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
        sums[t] = _mm512_dpbusd_epi32(sums[t], u[part], both);
      }
    }
  }
  for (int t = 0; t < COUNT; ++t) out[t] = _mm512_reduce_add_epi32(sums[t]);
  if (b < blocks) {  // an odd block
    int32_t rest[COUNT];
    dots_plain(a + b * BLOCK, stride, COUNT, row + b * BYTES, 1, rest);
    for (int t = 0; t < COUNT; ++t) out[t] += rest[t];
  }
}

// `NAME(a, stride, count, row, blocks, out)` calls NAME_of with the number of tokens known.
#define DOTS(NAME)                                                                               \
  void NAME(const int8_t* a, int64_t stride, int64_t count, const uint8_t* row, int64_t blocks, \
            int32_t* out) {                                                                      \
    if (count == 4) return NAME##_of<4>(a, stride, row, blocks, out);                            \
    if (count == 3) return NAME##_of<3>(a, stride, row, blocks, out);                            \
    if (count == 2) return NAME##_of<2>(a, stride, row, blocks, out);                            \
    NAME##_of<1>(a, stride, row, blocks, out);                                                   \
  }

DOTS(dots_avx2)
DOTS(dots_vnni)
#undef DOTS
#endif

Dots path(int32_t number) {
#ifdef X86
  if (number == 2) return dots_vnni;
  if (number == 1) return dots_avx2;
#endif
  return dots_plain;
}

// Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even, as torch.
inline float nearest(float x) {
  constexpr float constant = 12582912.0f;  // kept by the compiler: no -ffast-math
  return (x + constant) - constant;
}

// Codes of one token, its step, and the sum of its codes. `codes` has room for whole blocks. Sums
// run in lanes, so that they are vectors of the machine.
void quantise(const float* x, int64_t k, bool norm, float eps, float levels, float smallest,
              int8_t* codes, float* step, int32_t* total) {
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
    const float factor = rstd / grid;
    for (int64_t i = 0; i < k; ++i) codes[i] = (int8_t)(int32_t)nearest(x[i] * factor);
  } else {
    for (int64_t i = 0; i < k; ++i) codes[i] = (int8_t)(int32_t)nearest(x[i] / grid);
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
  for (int64_t t = 0; t < m; t += GROUP) {
    const int64_t count = m - t < GROUP ? m - t : GROUP;
    for (int64_t r = first; r < last; ++r) {
      int32_t sums[GROUP];
      dots(a + t * stride, stride, count, packed + r * blocks * BYTES, blocks, sums);
      for (int64_t i = 0; i < count; ++i) finish(t + i, r, sums[i] - totals[t + i]);
    }
  }
}

constexpr int64_t ROWS = 32;      // of one piece of work
constexpr int64_t TOKENS = 64;    // quantised at once: their codes stay in the cache

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
  const int64_t pieces = (n + ROWS - 1) / ROWS;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const int64_t first = piece * ROWS, last = first + ROWS < n ? first + ROWS : n;
    rows(dots, a, totals.data(), m, stride, packed, first, last,
         [&](int64_t t, int64_t r, int32_t sum) { out[t * n + r] = sum; });
  }
}

// y[m, n] of float inputs x[m, k]. scale has `scales` = 1 or n numbers; bias has n or is null.
void chimera_linear(int32_t number, int32_t threads, const float* x, int64_t m, int64_t k,
                    int32_t norm, float eps, float levels, float smallest, const uint8_t* packed,
                    int64_t n, const float* scale, int64_t scales, const float* bias, float* y) {
  const Dots dots = path(number);
  const int64_t stride = (k + BLOCK - 1) / BLOCK * BLOCK;
  const int64_t pieces = (n + ROWS - 1) / ROWS;
  std::vector<int8_t> codes((m < TOKENS ? m : TOKENS) * stride);
  std::vector<float> steps(m < TOKENS ? m : TOKENS);
  std::vector<int32_t> totals(m < TOKENS ? m : TOKENS);
  int8_t* const a = codes.data();
  float* const step = steps.data();
  int32_t* const total = totals.data();
  for (int64_t start = 0; start < m; start += TOKENS) {
    const int64_t count = m - start < TOKENS ? m - start : TOKENS;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
      for (int64_t t = 0; t < count; ++t)
        quantise(x + (start + t) * k, k, norm != 0, eps, levels, smallest, a + t * stride, step + t,
                 total + t);
#pragma omp for schedule(static)
      for (int64_t piece = 0; piece < pieces; ++piece) {
        const int64_t first = piece * ROWS, last = first + ROWS < n ? first + ROWS : n;
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
