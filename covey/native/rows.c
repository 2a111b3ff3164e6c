/* Whole descents of stacks of linear layers, one device after another, so that a device's row stays in the cache.
 *
 * Plain C without Python.h, loaded by ctypes. rows.h is compiled for float and double, on each instruction set that the
 * compiler knows; the caller names one that covey_supports. Needs the vector extensions of gcc and clang.
 */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ABI 4
#define MOST_LAYERS 32
#ifndef SOURCE
#define SOURCE "unknown" /* setup.py gives a hash of this file and rows.h */
#endif
#define LINE 64 /* bytes that come from memory together */

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

enum { RELU = 1, TANH, SIGMOID };
enum { CROSS_ENTROPY, SQUARED_ERROR };
enum { NO_L1, SMOOTH, SOFT };
enum { BAD_EXAMPLE = 1, BAD_LABEL, NO_MEMORY, TOO_MANY_LAYERS };

/* One call, field by field as covey/native/__init__.py writes it. Optional pointers may be NULL. Strides count values. */
struct work {
    int64_t devices, width, batch, batches, layers, examples_held;
    const int64_t *table; /* [layers, 5]: in, out, where the weight [in, out] and the bias start (-1: none), activation */
    int64_t loss;
    void *rows;
    const void *start, *anchor, *linear;
    const uint8_t *mask;
    int64_t start_stride, anchor_stride, linear_stride, mask_stride;
    const void *x, *y;
    const int64_t *examples; /* [devices, batches, batch]; one batch serves all steps. To score: of everybody, in order */
    const void *weight;      /* [devices, batches, batch] */
    const int64_t *steps;    /* [devices], as lr, lam and gamma */
    const double *lr, *lam, *gamma;
    double decay, rho;
    int64_t l1, part_start, part_stop;
    int64_t factored; /* from so many steps on one batch they are factored; 0: never */
};

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

#if defined(__x86_64__)
#define X86 1

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
int covey_score(int set, int twice, const struct work *w, const int64_t *starts, const int64_t *counts, double *right, double *loss);
int covey_cut_count(int set, int twice, const void *from, void *to, int64_t rows, int64_t width, int cut, double threshold,
                    int64_t *counts);
int covey_finite(int set, int twice, const void *values, int64_t count);
int covey_tanh(int set, int twice, const void *from, void *to, int64_t count);
int covey_choose(int64_t count, const int64_t *group, const uint64_t *keys, const uint64_t *sizes, int64_t turns, uint64_t *number);

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

static uint64_t finalise(uint64_t z) /* of splitmix64, as in covey/draws.py */
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* The keyed permutation of draws.choose (swap-or-not), at each number in place: the same integers as there. */
int covey_choose(int64_t count, const int64_t *group, const uint64_t *keys, const uint64_t *sizes, int64_t turns, uint64_t *number)
{
    for (int64_t n = 0; n < count; n++) {
        const uint64_t key = keys[group[n]], size = sizes[group[n]];
        uint64_t at = number[n];
        for (int64_t turn = 0; turn < turns; turn++) {
            const uint64_t pivot = finalise(key + 0x9E3779B97F4A7C15u * (2 * (uint64_t)turn + 1));
            const uint64_t partner = (pivot % size + size - at) % size;
            if (finalise(pivot ^ finalise(at > partner ? at : partner)) & 1) at = partner;
        }
        number[n] = at;
    }
    return 0;
}
