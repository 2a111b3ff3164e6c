/* Standard normal numbers by address, on one instruction set: rows.c includes this once for each, with
 *   BYTES, TARGET, NAME(x)   as in rows.h
 * The numbers have the same bits on every instruction set, and as covey/draws.py makes them by torch: only sums, products,
 * quotients and square roots of doubles, which are all rounded to nearest, in the same order. No product is fused with a sum.
 */

#define LANES ((int64_t)(BYTES / sizeof(double)))
#define HERE static TARGET
#define INLINE static inline __attribute__((always_inline)) TARGET

typedef double NAME(real) __attribute__((vector_size(BYTES)));
typedef uint64_t NAME(word) __attribute__((vector_size(BYTES)));
typedef double NAME(any_real) __attribute__((vector_size(BYTES), aligned(8), may_alias));
typedef float NAME(any_single) __attribute__((vector_size(BYTES / 2), aligned(4), may_alias));
#define DOUBLES NAME(real)
#define WORDS NAME(word)

/* A product that the compiler cannot fuse with the sum it goes into. */
INLINE DOUBLES NAME(times)(DOUBLES a, DOUBLES b)
{
    DOUBLES product = a * b;
    APART(product);
    return product;
}
#define TIMES NAME(times)

/* Coefficients of a polynomial in z, the highest first. */
INLINE DOUBLES NAME(polynomial)(const double *c, int count, DOUBLES z)
{
    DOUBLES p = c[0] - (DOUBLES){0};
    UNROLL for (int k = 1; k < count; k++) p = TIMES(p, z) + c[k];
    return p;
}

/* The upper 53 bits of a hash as a number in [0, 1): two halves, each exact in a double, and so is their sum. */
INLINE DOUBLES NAME(fraction)(WORDS z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z = (z ^ (z >> 31)) >> 11;
#if BYTES == 64
    return __builtin_convertvector(z, DOUBLES) * 0x1p-53;
#else
    const DOUBLES high = (DOUBLES)((z >> 32) | 0x4530000000000000u) - 0x1.00000001p84;
    return (high + (DOUBLES)((z & 0xffffffffu) | 0x4330000000000000u)) * 0x1p-53;
#endif
}

/* -log(x) for x in [2^-53, 1]: x = 2^k (1 + f) with 1 + f from sqrt(1/2) on. With s = f / (2 + f) and z = s^2,
 * log(1 + f) = 2 artanh(s) = f - (f^2/2 - s (f^2/2 + z L(z))). */
INLINE DOUBLES NAME(minus_log)(DOUBLES x)
{
    const DOUBLES zero = {0};
    const WORDS scaled = (WORDS)x - ROOT_HALF;
    const DOUBLES k = (DOUBLES)(((scaled + (64ull << 52)) >> 52) | 0x4330000000000000u) - (0x1p52 + 64);
    const DOUBLES f = (DOUBLES)((scaled & 0x000fffffffffffffu) + ROOT_HALF) - 1;
    const DOUBLES s = f / (f + 2), z = TIMES(s, s), half = TIMES(TIMES(f, f), zero + 0.5);
    const DOUBLES rest = TIMES(z, NAME(polynomial)(LOG, LOG_TERMS, z));
    const DOUBLES low = TIMES(s, half + rest) + TIMES(k, zero + LN2_LOW);
    return ((half - low) - f) - TIMES(k, zero + LN2_HIGH);
}

/* sqrt(-2 log(1 - u)) cos(2 pi v), where cos(2 pi v) = sin(2 pi b) for b = |v - 1/2| - 1/4, which is exact. */
INLINE DOUBLES NAME(box_muller)(DOUBLES u, DOUBLES v)
{
    const DOUBLES zero = {0}, one = zero + 1;
    const DOUBLES minus_log = NAME(minus_log)(one - u), square = minus_log + minus_log;
    const WORDS positive = (WORDS){0} + 0x7fffffffffffffffu;
    const DOUBLES b = (DOUBLES)((WORDS)(v - 0.5) & positive) - 0.25;
    const DOUBLES cosine = TIMES(b, NAME(polynomial)(SINE, SINE_TERMS, TIMES(b, b)));
    DOUBLES radius;
#if BYTES == 64
    radius = (DOUBLES)_mm512_sqrt_pd((__m512d)square);
#elif BYTES == 32
    radius = (DOUBLES)_mm256_sqrt_pd((__m256d)square);
#else
    for (int j = 0; j < LANES; j++) radius[j] = __builtin_sqrt(square[j]);
#endif
    return TIMES(radius, cosine);
}

/* [nodes, width] numbers, double or float: number k of a node from its slots k and width + k. */
HERE void NAME(normal)(int64_t nodes, int64_t width, const uint64_t *states, int twice, void *to)
{
    static const uint64_t order[8] = {0, GOLDEN, 2 * GOLDEN, 3 * GOLDEN, 4 * GOLDEN, 5 * GOLDEN, 6 * GOLDEN, 7 * GOLDEN};
    WORDS lanes;
    memcpy(&lanes, order, sizeof lanes);
    const WORDS across = (WORDS){0} + GOLDEN * (uint64_t)width;
    for (int64_t n = 0; n < nodes; n++)
        for (int64_t k = 0; k < width; k += LANES) {
            const WORDS at = lanes + (states[n] + GOLDEN * (uint64_t)k);
            const DOUBLES z = NAME(box_muller)(NAME(fraction)(at), NAME(fraction)(at + across));
            const NAME(any_single) single = __builtin_convertvector(z, NAME(any_single));
            const size_t some = (size_t)(width - k < LANES ? width - k : LANES);
            double *wide = (double *)to + n * width + k;
            float *narrow = (float *)to + n * width + k;
            if (some == (size_t)LANES) {
                if (twice) *(NAME(any_real) *)wide = z;
                else *(NAME(any_single) *)narrow = single;
            } else if (twice)
                memcpy(wide, &z, some * sizeof(double));
            else
                memcpy(narrow, &single, some * sizeof(float));
        }
}

#undef LANES
#undef HERE
#undef INLINE
#undef DOUBLES
#undef WORDS
#undef TIMES
#undef BYTES
#undef TARGET
#undef NAME
