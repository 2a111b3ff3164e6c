/* Whole descents of stacks of linear layers, one device after another, so that a device's row stays in the cache.
 *
 * Plain C without Python.h, loaded by ctypes. rows.h is compiled for float and double, on each instruction set that the
 * compiler knows, and normal.h on each set; the caller names one that covey_supports. Needs the vector extensions of gcc and clang.
 */

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif
#ifdef __linux__
#include <sys/mman.h>
#endif

#define ABI 6
#define MOST_LAYERS 32
#define MOST_MOVES 8
#ifndef SOURCE
#define SOURCE "unknown" /* setup.py gives a hash of this file, rows.h and normal.h */
#endif
#define LINE 64 /* bytes that come from memory together */

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

enum { RELU = 1, TANH, SIGMOID, LEAKY_RELU, ELU, SILU, GELU, GELU_TANH };
#define BY_INPUT(activation) ((activation) >= SILU) /* whether its derivative is computed from its input */
enum { CROSS_ENTROPY, SQUARED_ERROR };
enum { NO_L1, SMOOTH, SOFT };
enum { BAD_EXAMPLE = 1, BAD_LABEL, NO_MEMORY, TOO_MANY_LAYERS, TOO_MANY_MOVES };

/* One call, field by field as covey/native/__init__.py writes it. Optional pointers may be NULL. Strides count values. */
struct work {
    int64_t devices, width, batch, batches, layers, examples_held;
    const int64_t *table; /* [layers, 6]: in, out, where the weight [in, out] and the bias start (-1: none), activation,
                             and the bits of the activation's parameter, a double */
    int64_t loss;
    void *rows;
    const void *start, *anchor, *linear;
    const uint8_t *mask;
    const void *at, *other; /* where the gradient is taken, at + share (other - at) if there is another; NULL: at the start */
    int64_t start_stride, anchor_stride, linear_stride, mask_stride, at_stride, other_stride;
    const void *x, *y;
    const int64_t *examples; /* [devices, batches, batch]; one batch serves all steps. To score: of everybody, in order */
    const void *weight;      /* [devices, batches, batch] */
    const int64_t *steps;    /* [devices], as lr, lam and gamma */
    const double *lr, *lam, *gamma, *share;
    double decay, rho, linear_scale;
    double l2; /* of the gradient's own ridge, where it is taken at other rows; then there is no linear term */
    int64_t l1, part_start, part_stop;
    int64_t fresh;    /* whether every step has a batch of its own */
    int64_t factored; /* from so many steps on one batch they are factored; 0: never */
};

/* The numbers of a step of Adam: what the moments keep, and what they lack because they began at 0. */
struct adam {
    double beta1, beta2, mean_correction, square_correction;
};

#define GOLDEN 0x9E3779B97F4A7C15u
static inline uint64_t finalise(uint64_t z) /* of splitmix64, as in covey/draws.py */
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* The numbers of normal.h; covey/draws.py has the same. Polynomials fitted for the least relative error, below 2^-58. */
#define ROOT_HALF 0x3fe6a09e00000000u /* the bits of about sqrt(1/2) */
#define LN2_HIGH 6.93147180369123816490e-01 /* with zeros at its end, so that k times it is exact */
#define LN2_LOW 1.90821492927058770002e-10
#define LOG_TERMS 7
#define SINE_TERMS 9
static const double LOG[LOG_TERMS] = {0.14755898104908072, 0.15318074165540718, 0.18183406102175728, 0.22222201640621805,
                                      0.2857142871219414, 0.39999999999552477, 0.6666666666666713};
static const double SINE[SINE_TERMS] = {0.10085633077354056, -0.7177235801554498, 3.8199270504789338, -15.094641620509961,
                                        42.058693923785235, -76.7058597527985, 81.60524927607341, -41.341702240399755,
                                        6.283185307179586};
#if defined(__x86_64__)
#define APART(value) __asm__("" : "+v"(value))
#elif defined(__aarch64__)
#define APART(value) __asm__("" : "+w"(value))
#else
#define APART(value) __asm__("" : "+m"(value))
#endif

/* A message's 64 bits from `at` on, a multiple of 64; those beyond its width are 0. */
static inline uint64_t word_at(const uint8_t *bits, int64_t width, int64_t at)
{
    uint64_t word = 0;
    if (width - at >= 64)
        memcpy(&word, bits + at / 8, 8);
    else {
        memcpy(&word, bits + at / 8, (size_t)(width - at + 7) / 8);
        word &= ((uint64_t)1 << (width - at)) - 1;
    }
    return word;
}

/* 64 bytes of 0 or 1 as bits. */
static inline uint64_t word_of(const uint8_t *yes)
{
    uint64_t word = 0, eight;
    for (int j = 0; j < 64; j += 8) {
        memcpy(&eight, yes + j, 8);
        word |= (eight * 0x0102040810204080u >> 56) << j;
    }
    return word;
}

typedef uint16_t loose16 __attribute__((aligned(1), may_alias));
#define FEW 8 /* values of 64: so many are moved one by one */

#define JOIN2(a, b) a##_##b
#define JOIN(a, b) JOIN2(a, b)

#define NAME(x) JOIN(x, plain_f32)
#define REAL float
#define WHOLE int32_t
#define BYTES 16
#define TILE_M 4
#define TILE_N 3
#define TARGET
#include "rows.h"

#define NAME(x) JOIN(x, plain_f64)
#define REAL double
#define WHOLE int64_t
#define BYTES 16
#define TILE_M 4
#define TILE_N 3
#define TARGET
#include "rows.h"

#define NAME(x) JOIN(x, plain)
#define BYTES 16
#define TARGET
#include "normal.h"

#if defined(__x86_64__)
#define X86 1

#define NAME(x) JOIN(x, avx2)
#define BYTES 32
#define TARGET __attribute__((target("avx2,fma")))
#include "normal.h"

#define NAME(x) JOIN(x, avx512)
#define BYTES 64
#define TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")))
#include "normal.h"

#define NAME(x) JOIN(x, avx2_f32)
#define REAL float
#define WHOLE int32_t
#define BYTES 32
#define TILE_M 4
#define TILE_N 3
#define TARGET __attribute__((target("avx2,fma")))
#include "rows.h"

#define NAME(x) JOIN(x, avx2_f64)
#define REAL double
#define WHOLE int64_t
#define BYTES 32
#define TILE_M 4
#define TILE_N 3
#define TARGET __attribute__((target("avx2,fma")))
#include "rows.h"

#define NAME(x) JOIN(x, avx512_f32)
#define REAL float
#define WHOLE int32_t
#define BYTES 64
#define TILE_M 6
#define TILE_N 4
#define TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")))
#include "rows.h"

#define NAME(x) JOIN(x, avx512_f64)
#define REAL double
#define WHOLE int64_t
#define BYTES 64
#define TILE_M 6
#define TILE_N 4
#define TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")))
#include "rows.h"

#endif

enum { PLAIN, AVX2, AVX512 };

int covey_abi(void);
const char *covey_source(void);
int covey_supports(int set);
int covey_descend(int set, int twice, const struct work *w);
int covey_alternate(int set, int twice, const struct work *moves, int64_t count, int64_t times);
int covey_score(int set, int twice, const struct work *w, const int64_t *starts, const int64_t *counts, double *right, double *loss);
int covey_cut_count(int set, int twice, const void *from, void *to, int64_t rows, int64_t width, int cut, double threshold,
                    int64_t *counts);
int covey_finite(int set, int twice, const void *values, int64_t count);
int covey_tanh(int set, int twice, const void *from, void *to, int64_t count);
int covey_adam(int set, int twice, const struct adam *a, int64_t rows, int64_t width, const double *lr, const void *x,
               const void *g, void *mean, void *square, void *to);
int covey_choose(int64_t count, const int64_t *group, const uint64_t *keys, const uint64_t *sizes, int64_t turns, uint64_t *number);
int covey_normal(int set, int twice, const uint64_t *states, int64_t nodes, int64_t width, void *to);
int covey_large_pages(void *from, int64_t size);
int64_t covey_bits(int set, int twice, const void *values, int64_t width, uint8_t *bits);
int64_t covey_squeeze(int set, int twice, const void *values, const uint8_t *bits, int64_t width, void *to, int64_t sent);
int64_t covey_spread(int set, int twice, const void *values, int64_t sent, const uint8_t *bits, int64_t width, void *to);
int64_t covey_ones(const uint8_t *bits, int64_t width);
int64_t covey_gap_length(const uint8_t *bits, int64_t width);
int64_t covey_write_gaps(const uint8_t *bits, int64_t width, uint8_t *to);
int covey_read_gaps(const uint8_t *from, int64_t length, int64_t sent, uint8_t *bits, int64_t width);
int covey_half_bits(int set, int twice, const void *values, int64_t width, uint8_t *bits, int brain);
int covey_narrow(int set, int twice, const void *from, uint8_t *to, int64_t count, int brain);
int64_t covey_widen(int set, int twice, const uint8_t *from, void *to, int64_t count, int brain);
int covey_blur(int set, int twice, const void *from, void *to, int64_t count, int brain);
int covey_quantise(int set, int twice, const void *from, int8_t *to, void *scales, int64_t width, int64_t block, int levels,
                   int stochastic, uint64_t key);
int covey_dequantise(int set, int twice, const int8_t *from, const void *scales, void *to, uint8_t *peaks, int64_t width,
                     int64_t block);
int covey_pack_nibbles(const int8_t *from, uint8_t *to, int64_t count);
int covey_unpack_nibbles(const uint8_t *from, int8_t *to, int64_t count);

int covey_abi(void) { return ABI; }

const char *covey_source(void) { return SOURCE; }

int covey_supports(int set)
{
#ifdef X86
    __builtin_cpu_init();
    if (set == AVX512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (set == AVX2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return set == PLAIN;
}

#ifdef X86
#define EACH(set, twice, CALL)                                                                                                  \
    switch ((set) * 2 + !!(twice)) {                                                                                            \
    case PLAIN * 2: CALL(plain_f32, float) break;                                                                               \
    case PLAIN * 2 + 1: CALL(plain_f64, double) break;                                                                          \
    case AVX2 * 2: CALL(avx2_f32, float) break;                                                                                 \
    case AVX2 * 2 + 1: CALL(avx2_f64, double) break;                                                                            \
    case AVX512 * 2: CALL(avx512_f32, float) break;                                                                             \
    case AVX512 * 2 + 1: CALL(avx512_f64, double) break;                                                                        \
    }
#else
#define EACH(set, twice, CALL)                                                                                                  \
    if (twice) CALL(plain_f64, double) else CALL(plain_f32, float)
#endif

int covey_descend(int set, int twice, const struct work *w)
{
    if (w->layers > MOST_LAYERS) return TOO_MANY_LAYERS;
    int wrong = 0;
#define CALL(suffix, real) { wrong = JOIN(descend, suffix)(w); }
    EACH(set, twice, CALL)
#undef CALL
    return wrong;
}

int covey_alternate(int set, int twice, const struct work *moves, int64_t count, int64_t times)
{
    if (count > MOST_MOVES) return TOO_MANY_MOVES;
    for (int64_t m = 0; m < count; m++)
        if (moves[m].layers > MOST_LAYERS) return TOO_MANY_LAYERS;
    int wrong = 0;
#define CALL(suffix, real) { wrong = JOIN(alternate, suffix)(moves, count, times); }
    EACH(set, twice, CALL)
#undef CALL
    return wrong;
}

int covey_score(int set, int twice, const struct work *w, const int64_t *starts, const int64_t *counts, double *right, double *loss)
{
    if (w->layers > MOST_LAYERS) return TOO_MANY_LAYERS;
    int wrong = 0;
#define CALL(suffix, real) { wrong = JOIN(score, suffix)(w, starts, counts, right, loss); }
    EACH(set, twice, CALL)
#undef CALL
    return wrong;
}

int covey_cut_count(int set, int twice, const void *from, void *to, int64_t rows, int64_t width, int cut, double threshold,
                    int64_t *counts)
{
    for (int64_t n = 0; n < rows; n++) {
#define CALL(suffix, real)                                                                                                      \
    {                                                                                                                           \
        counts[n] = JOIN(cut_row, suffix)((const real *)from + n * width, to ? (real *)to + n * width : NULL, width, cut,       \
                                          (real)threshold);                                                                     \
    }
        EACH(set, twice, CALL)
#undef CALL
    }
    return 0;
}

int covey_finite(int set, int twice, const void *values, int64_t count)
{
    int answer = 0;
#define CALL(suffix, real) { answer = JOIN(finite, suffix)(values, count); }
    EACH(set, twice, CALL)
#undef CALL
    return answer;
}

int covey_tanh(int set, int twice, const void *from, void *to, int64_t count)
{
#define CALL(suffix, real) { JOIN(tanh_row, suffix)(from, to, count); }
    EACH(set, twice, CALL)
#undef CALL
    return 0;
}

/* One step of Adam for each row, with a step size of its own. */
int covey_adam(int set, int twice, const struct adam *a, int64_t rows, int64_t width, const double *lr, const void *x,
               const void *g, void *mean, void *square, void *to)
{
    for (int64_t n = 0; n < rows; n++) {
        const int64_t at = n * width;
#define CALL(suffix, real)                                                                                                      \
    {                                                                                                                           \
        JOIN(adam, suffix)(a, lr[n], width, (const real *)x + at, (const real *)g + at, (real *)mean + at, (real *)square + at, \
                           (real *)to + at);                                                                                    \
    }
        EACH(set, twice, CALL)
#undef CALL
    }
    return 0;
}

/* The keyed permutation of draws.choose (swap-or-not), at each number in place: the same integers as there. */
int covey_choose(int64_t count, const int64_t *group, const uint64_t *keys, const uint64_t *sizes, int64_t turns, uint64_t *number)
{
    for (int64_t n = 0; n < count; n++) {
        const uint64_t key = keys[group[n]], size = sizes[group[n]];
        uint64_t at = number[n];
        for (int64_t turn = 0; turn < turns; turn++) {
            const uint64_t pivot = finalise(key + GOLDEN * (2 * (uint64_t)turn + 1));
            const uint64_t partner = (pivot % size + size - at) % size;
            if (finalise(pivot ^ finalise(at > partner ? at : partner)) & 1) at = partner;
        }
        number[n] = at;
    }
    return 0;
}

/* Standard normal numbers, [nodes, width], as draws.normal makes them; `states` are the nodes' hashes there. */
int covey_normal(int set, int twice, const uint64_t *states, int64_t nodes, int64_t width, void *to)
{
#ifdef X86
    if (set == AVX512) normal_avx512(nodes, width, states, twice, to);
    if (set == AVX2) normal_avx2(nodes, width, states, twice, to);
#endif
    if (set == PLAIN) normal_plain(nodes, width, states, twice, to);
    return 0;
}

/* ---- rows on the wire: which values are sent (a bit each), those values, and the gaps between them ----
 * Whatever the bytes are, nothing outside the lengths given is read or written. */

/* Ask for pages of 2 MB where the system has them: memory that is written for the first time is mostly spent on getting it. */
int covey_large_pages(void *from, int64_t size)
{
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t page = 4096, at = (uintptr_t)from, start = (at + page - 1) / page * page;
    const uintptr_t stop = (at + (uintptr_t)size) / page * page;
    return stop > start ? madvise((void *)start, stop - start, MADV_HUGEPAGE) : 0;
#else
    return from == NULL || size < 0;
#endif
}

int64_t covey_bits(int set, int twice, const void *values, int64_t width, uint8_t *bits)
{
    int64_t sent = 0;
#define CALL(suffix, real) { sent = JOIN(bits, suffix)(values, width, bits); }
    EACH(set, twice, CALL)
#undef CALL
    return sent;
}

int64_t covey_squeeze(int set, int twice, const void *values, const uint8_t *bits, int64_t width, void *to, int64_t sent)
{
    int64_t count = 0;
#define CALL(suffix, real) { count = JOIN(squeeze, suffix)(values, bits, width, to, sent); }
    EACH(set, twice, CALL)
#undef CALL
    return count;
}

int64_t covey_spread(int set, int twice, const void *values, int64_t sent, const uint8_t *bits, int64_t width, void *to)
{
    int64_t count = 0;
#define CALL(suffix, real) { count = JOIN(spread, suffix)(values, sent, bits, width, to); }
    EACH(set, twice, CALL)
#undef CALL
    return count;
}

int64_t covey_ones(const uint8_t *bits, int64_t width)
{
    int64_t count = 0;
    for (int64_t k = 0; k < width; k += 64) count += __builtin_popcountll(word_at(bits, width, k));
    return count;
}

/* The bytes that the gaps before each set bit take, seven bits to a byte: within a word all but the first are below 64. */
int64_t covey_gap_length(const uint8_t *bits, int64_t width)
{
    int64_t length = 0, next = 0;
    for (int64_t k = 0; k < width; k += 64) {
        const uint64_t word = word_at(bits, width, k);
        if (!word) continue;
        for (int64_t gap = k + __builtin_ctzll(word) - next; gap >>= 7;) length++;
        length += __builtin_popcountll(word);
        next = k + 64 - __builtin_clzll(word);
    }
    return length;
}

/* Those gaps, lowest seven bits first, the highest bit set on all bytes of a gap but its last. Returns their length. */
int64_t covey_write_gaps(const uint8_t *bits, int64_t width, uint8_t *to)
{
    int64_t at = 0, next = 0;
    for (int64_t k = 0; k < width; k += 64) {
        uint64_t word = word_at(bits, width, k);
        if (!word) continue;
        int64_t gap = k + __builtin_ctzll(word) - next;
        for (; gap > 127; gap >>= 7) to[at++] = (uint8_t)(gap | 128);
        to[at++] = (uint8_t)gap;
        next = k + __builtin_ctzll(word) + 1;
        for (word &= word - 1; word; word &= word - 1) {
            const int64_t here = k + __builtin_ctzll(word);
            to[at++] = (uint8_t)(here - next);
            next = here + 1;
        }
    }
    return at;
}

/* The bits of `sent` gaps that fill `length` bytes, into zeros. Returns 0 where the bytes are nothing else. */
int covey_read_gaps(const uint8_t *from, int64_t length, int64_t sent, uint8_t *bits, int64_t width)
{
    int64_t at = 0, place = 0;
    for (; sent > 0; sent--) {
        if (at == length) return 1;
        int64_t gap = from[at++];
        if (gap > 127) {
            gap &= 127;
            for (int shift = 7;; shift += 7) {
                if (at == length || shift > 28) return 1;
                const int64_t more = from[at++];
                gap |= (more & 127) << shift;
                if (more > 127) continue;
                if (!more) return 1; /* written longer than it is */
                break;
            }
        }
        if (gap >= width - place) return 1;
        place += gap;
        bits[place / 8] |= (uint8_t)(1 << place % 8);
        place++;
    }
    return at != length;
}

int covey_half_bits(int set, int twice, const void *values, int64_t width, uint8_t *bits, int brain)
{
#define CALL(suffix, real) { JOIN(half_bits, suffix)(values, width, bits, brain); }
    EACH(set, twice, CALL)
#undef CALL
    return 0;
}

int covey_narrow(int set, int twice, const void *from, uint8_t *to, int64_t count, int brain)
{
#define CALL(suffix, real) { JOIN(narrow, suffix)(from, to, count, brain); }
    EACH(set, twice, CALL)
#undef CALL
    return 0;
}

int64_t covey_widen(int set, int twice, const uint8_t *from, void *to, int64_t count, int brain)
{
    int64_t strange = 0;
#define CALL(suffix, real) { strange = JOIN(widen, suffix)(from, to, count, brain); }
    EACH(set, twice, CALL)
#undef CALL
    return strange;
}

int covey_blur(int set, int twice, const void *from, void *to, int64_t count, int brain)
{
#define CALL(suffix, real) { JOIN(blur, suffix)(from, to, count, brain); }
    EACH(set, twice, CALL)
#undef CALL
    return 0;
}

int covey_quantise(int set, int twice, const void *from, int8_t *to, void *scales, int64_t width, int64_t block, int levels,
                   int stochastic, uint64_t key)
{
    const uint64_t place = finalise(key); /* as draws.bits has it for id 0 */
#define CALL(suffix, real) { JOIN(quantise, suffix)(from, to, scales, width, block, levels, stochastic, place); }
    EACH(set, twice, CALL)
#undef CALL
    return 0;
}

int covey_dequantise(int set, int twice, const int8_t *from, const void *scales, void *to, uint8_t *peaks, int64_t width,
                     int64_t block)
{
#define CALL(suffix, real) { JOIN(dequantise, suffix)(from, scales, to, peaks, width, block); }
    EACH(set, twice, CALL)
#undef CALL
    return 0;
}

int covey_pack_nibbles(const int8_t *from, uint8_t *to, int64_t count)
{
    for (int64_t k = 0; k < count / 2; k++) to[k] = (uint8_t)((from[2 * k] & 15) | (from[2 * k + 1] & 15) << 4);
    if (count % 2) to[count / 2] = from[count - 1] & 15;
    return 0;
}

int covey_unpack_nibbles(const uint8_t *from, int8_t *to, int64_t count)
{
    for (int64_t k = 0; k < count / 2; k++) {
        to[2 * k] = (int8_t)(((from[k] & 15) ^ 8) - 8);
        to[2 * k + 1] = (int8_t)((from[k] >> 4 ^ 8) - 8);
    }
    if (count % 2) to[count - 1] = (int8_t)(((from[count / 2] & 15) ^ 8) - 8);
    return 0;
}
