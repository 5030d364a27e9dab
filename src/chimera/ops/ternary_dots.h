// Integer sums of 8-bit activations with packed ternary weights, for ternary.cpp: a plain path, one for
// AVX2 and one for AVX-512 VNNI, each by tiles of a few tokens and rows. Sums are those of u = c + 1.

#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#define X86 1
#endif

namespace {

constexpr int64_t BLOCK = 128, BYTES = 32, TOKENS = 4, ROWS = 4;

// Sums a[t] . u[r] of a tile: `tokens` <= TOKENS tokens of `stride` codes with `rows` <= ROWS rows of
// `blocks` blocks, into out[t][r].
using Tile = int32_t[TOKENS][ROWS];
using Dots = void (*)(const int8_t* a, int64_t stride, int64_t tokens, const uint8_t* row,
                      int64_t rows, int64_t blocks, Tile out);

void dots_plain(const int8_t* a, int64_t stride, int64_t tokens, const uint8_t* row, int64_t rows,
                int64_t blocks, Tile out) {
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t r = 0; r < rows; ++r) {
      const int8_t* x = a + t * stride;
      const uint8_t* w = row + r * blocks * BYTES;
      int32_t sum = 0;
      for (int64_t b = 0; b < blocks; ++b)
        for (int64_t part = 0; part < 4; ++part)
          for (int64_t j = 0; j < BYTES; ++j)
            sum += ((w[b * BYTES + j] >> (2 * part)) & 3) * x[b * BLOCK + part * BYTES + j];
      out[t][r] = sum;
    }
}

#ifdef X86
// A pair of products is at most 2 * 2 * 128 = 512, so 8 blocks of 4 pairs fit 16 bits.
constexpr int64_t BEFORE_WIDENING = 8;

template <int COUNT>
__attribute__((target("avx2"))) void row_avx2(const int8_t* a, int64_t stride, const uint8_t* row,
                                              int64_t blocks, Tile out, int64_t r) {
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
    out[t][r] = _mm_cvtsi128_si32(half);
  }
}

template <int COUNT>
void dots_avx2_of(const int8_t* a, int64_t stride, const uint8_t* row, int64_t rows, int64_t blocks,
                  Tile out) {
  for (int64_t r = 0; r < rows; ++r)
    row_avx2<COUNT>(a, stride, row + r * blocks * BYTES, blocks, out, r);
}

#define VNNI __attribute__((target("avx512f,avx512bw,avx512vnni"), always_inline)) inline

// 64 bytes: 32 of one block and 32 of the next, or zeros where there is none.
VNNI __m512i pair(const void* first, const void* second) {
  const __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i*)first));
  const __m256i high = second ? _mm256_loadu_si256((const __m256i*)second) : _mm256_setzero_si256();
  return _mm512_inserti64x4(low, high, 1);
}

// The sums of four vectors.
VNNI __m128i sums_of(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  const __m512i all =
      _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  const __m256i half =
      _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

// Codes of one part at their place in the byte: 4^part times too large.
template <int PART>
VNNI __m512i in_place(__m512i packed) {
  return _mm512_and_si512(packed, _mm512_set1_epi8((char)(3 << (2 * PART))));
}

// Weights of one token come from memory: they are asked for so many rows before their turn.
constexpr int64_t AHEAD = 32;

// One token. A sum per part needs no shift of the codes, and sums do not wait for one another.
template <int COUNT>
VNNI void add_pair_of_one(__m512i (&sums)[ROWS][4], const int8_t* x, const uint8_t* row,
                          int64_t stride, bool whole) {
  const int8_t* y = whole ? x + BLOCK : nullptr;
  const __m512i x0 = pair(x, y), x1 = pair(x + BYTES, y ? y + BYTES : y);
  const __m512i x2 = pair(x + 2 * BYTES, y ? y + 2 * BYTES : y);
  const __m512i x3 = pair(x + 3 * BYTES, y ? y + 3 * BYTES : y);
  for (int r = 0; r < COUNT; ++r) {
    const uint8_t* w = row + r * stride;
    _mm_prefetch((const char*)(w + AHEAD * stride), _MM_HINT_T0);
    const __m512i packed = whole ? _mm512_loadu_si512(w) : pair(w, nullptr);
    sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], in_place<0>(packed), x0);
    sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], in_place<1>(packed), x1);
    sums[r][2] = _mm512_dpbusd_epi32(sums[r][2], in_place<2>(packed), x2);
    sums[r][3] = _mm512_dpbusd_epi32(sums[r][3], in_place<3>(packed), x3);
  }
}

template <int COUNT>
__attribute__((target("avx512f,avx512bw,avx512vnni"))) void one_vnni(
    const int8_t* a, const uint8_t* row, int64_t blocks, Tile out) {
  __m512i sums[ROWS][4], totals[ROWS];
  for (int r = 0; r < ROWS; ++r)
    for (int part = 0; part < 4; ++part) sums[r][part] = _mm512_setzero_si512();
  const int64_t stride = blocks * BYTES;
  int64_t b = 0;
  for (; b + 2 <= blocks; b += 2)
    add_pair_of_one<COUNT>(sums, a + b * BLOCK, row + b * BYTES, stride, true);
  if (b < blocks) add_pair_of_one<COUNT>(sums, a + b * BLOCK, row + b * BYTES, stride, false);
  for (int r = 0; r < ROWS; ++r)
    totals[r] = _mm512_add_epi32(
        _mm512_add_epi32(sums[r][0], _mm512_srai_epi32(sums[r][1], 2)),
        _mm512_add_epi32(_mm512_srai_epi32(sums[r][2], 4), _mm512_srai_epi32(sums[r][3], 6)));
  _mm_storeu_si128((__m128i*)out[0], sums_of(totals[0], totals[1], totals[2], totals[3]));
}

// Several tokens and ROWS rows: every vector that is loaded serves several products.
template <int COUNT, int PART>
VNNI void add_part(__m512i (&sums)[TOKENS][ROWS], const __m512i (&packed)[ROWS], const int8_t* a,
                   int64_t stride, bool whole) {
  __m512i u[ROWS];
  for (int r = 0; r < ROWS; ++r)
    u[r] = _mm512_and_si512(_mm512_srli_epi16(packed[r], 2 * PART), _mm512_set1_epi8(3));
  for (int t = 0; t < COUNT; ++t) {
    const int8_t* x = a + t * stride + PART * BYTES;
    const __m512i both = pair(x, whole ? x + BLOCK : nullptr);
    for (int r = 0; r < ROWS; ++r) sums[t][r] = _mm512_dpbusd_epi32(sums[t][r], u[r], both);
  }
}

template <int COUNT>
VNNI void add_pair(__m512i (&sums)[TOKENS][ROWS], const int8_t* a, int64_t stride,
                   const uint8_t* row, int64_t between, bool whole) {
  __m512i packed[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    const uint8_t* w = row + r * between;
    packed[r] = whole ? _mm512_loadu_si512(w) : pair(w, nullptr);
  }
  add_part<COUNT, 0>(sums, packed, a, stride, whole);
  add_part<COUNT, 1>(sums, packed, a, stride, whole);
  add_part<COUNT, 2>(sums, packed, a, stride, whole);
  add_part<COUNT, 3>(sums, packed, a, stride, whole);
}

template <int COUNT>
__attribute__((target("avx512f,avx512bw,avx512vnni"))) void tile_vnni(
    const int8_t* a, int64_t stride, const uint8_t* row, int64_t blocks, Tile out) {
  __m512i sums[TOKENS][ROWS];
  for (int t = 0; t < COUNT; ++t)
    for (int r = 0; r < ROWS; ++r) sums[t][r] = _mm512_setzero_si512();
  const int64_t between = blocks * BYTES;
  int64_t b = 0;
  for (; b + 2 <= blocks; b += 2)
    add_pair<COUNT>(sums, a + b * BLOCK, stride, row + b * BYTES, between, true);
  if (b < blocks) add_pair<COUNT>(sums, a + b * BLOCK, stride, row + b * BYTES, between, false);
  for (int t = 0; t < COUNT; ++t)
    _mm_storeu_si128((__m128i*)out[t], sums_of(sums[t][0], sums[t][1], sums[t][2], sums[t][3]));
}

template <int COUNT>
void dots_vnni_of(const int8_t* a, int64_t stride, const uint8_t* row, int64_t rows, int64_t blocks,
                  Tile out) {
  if (rows == ROWS && COUNT > 1) return tile_vnni<COUNT>(a, stride, row, blocks, out);
  for (int t = 0; t < COUNT; ++t) {  // one token, or the last rows
    const int8_t* x = a + t * stride;
    if (rows == 4) one_vnni<4>(x, row, blocks, out + t);
    if (rows == 3) one_vnni<3>(x, row, blocks, out + t);
    if (rows == 2) one_vnni<2>(x, row, blocks, out + t);
    if (rows == 1) one_vnni<1>(x, row, blocks, out + t);
  }
}

// `NAME` calls NAME_of with the number of tokens known.
#define DOTS(NAME)                                                                             \
  void NAME(const int8_t* a, int64_t stride, int64_t tokens, const uint8_t* row, int64_t rows, \
            int64_t blocks, Tile out) {                                                        \
    if (tokens == 4) return NAME##_of<4>(a, stride, row, rows, blocks, out);                   \
    if (tokens == 3) return NAME##_of<3>(a, stride, row, rows, blocks, out);                   \
    if (tokens == 2) return NAME##_of<2>(a, stride, row, rows, blocks, out);                   \
    NAME##_of<1>(a, stride, row, rows, blocks, out);                                           \
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

}  // namespace
