/* One number type on one instruction set: rows.c includes this once for each, with
 *   REAL, WHOLE   the number and the integer of its size
 *   BYTES         the width of a vector
 *   TILE_M/N      rows by vectors of a product that stay in registers
 *   TARGET        the attribute that allows the instructions
 *   NAME(x)       the name of x here
 * Every sum runs in an order that the shapes alone decide: a row has the same bits whoever stands beside it.
 */

#define LANES ((int64_t)(BYTES / sizeof(REAL)))
#define HERE static TARGET
#define INLINE static inline __attribute__((always_inline)) TARGET

typedef REAL NAME(vec) __attribute__((vector_size(BYTES)));
typedef REAL NAME(any) __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias)); /* at any address */
typedef WHOLE NAME(ints) __attribute__((vector_size(BYTES)));
typedef WHOLE NAME(any_ints) __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));
#define VEC NAME(vec)
#define INTS NAME(ints)

INLINE VEC NAME(load)(const REAL *p) { return *(const NAME(any) *)p; }
INLINE void NAME(store)(REAL *p, VEC v) { *(NAME(any) *)p = v; }
INLINE VEC NAME(all)(REAL s) { return s - (VEC){0}; }
INLINE VEC NAME(pick)(INTS which, VEC yes, VEC no) { return (VEC)((which & (INTS)yes) | (~which & (INTS)no)); }
INLINE INTS NAME(below)(VEC a, VEC b) { return (INTS)(a < b); }

#define LOAD NAME(load)
#define STORE NAME(store)
#define ALL NAME(all)
#define PICK NAME(pick)
#define BELOW NAME(below)

/* The first `count` lanes; the others are 0. Nothing beyond is touched. */
INLINE VEC NAME(load_some)(const REAL *p, int64_t count)
{
    REAL lanes[LANES] = {0};
    memcpy(lanes, p, (size_t)count * sizeof(REAL));
    return LOAD(lanes);
}

INLINE void NAME(store_some)(REAL *p, VEC v, int64_t count)
{
    REAL lanes[LANES];
    STORE(lanes, v);
    memcpy(p, lanes, (size_t)count * sizeof(REAL));
}

INLINE INTS NAME(first)(int64_t count)
{
    static const WHOLE order[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return (INTS)(*(const NAME(any_ints) *)order < (WHOLE)count);
}

INLINE REAL NAME(total)(VEC v)
{
    REAL lanes[LANES];
    STORE(lanes, v);
    for (int64_t half = LANES / 2; half; half /= 2)
        for (int64_t k = 0; k < half; k++) lanes[k] += lanes[k + half];
    return lanes[0];
}

INLINE int64_t NAME(padded)(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

/* ---- exp and tanh: Cody and Waite's reduction, Cephes' polynomials; NaN in, NaN out ---- */

/* exp within its range. */
INLINE VEC NAME(exp_inside)(VEC x)
{
    const int single = sizeof(REAL) == 4;
    const REAL magic = single ? 12582912.0f : 6755399441055744.0; /* 1.5 * 2^(mantissa bits): adding it rounds to a whole number */
    const VEC shifted = x * (REAL)1.4426950408889634074 + magic, n = shifted - magic;
    VEC r, p;
    if (single) {
        r = x - n * (REAL)0.693359375 + n * (REAL)2.12194440e-4;
        p = ALL((REAL)1.9875691500e-4);
        p = p * r + (REAL)1.3981999507e-3;
        p = p * r + (REAL)8.3334519073e-3;
        p = p * r + (REAL)4.1665795894e-2;
        p = p * r + (REAL)1.6666665459e-1;
        p = p * r + (REAL)5.0000001201e-1;
    } else {
        static const double factors[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880,
                                         1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5};
        r = x - n * (REAL)6.93145751953125e-1 - n * (REAL)1.42860682030941723212e-6;
        p = ALL((REAL)factors[0]);
        for (int k = 1; k < 12; k++) p = p * r + (REAL)factors[k];
    }
    p = p * (r * r) + r + (REAL)1;
    return p * (VEC)(((INTS)shifted << (single ? 23 : 52)) + (INTS)ALL((REAL)1));
}

INLINE VEC NAME(exp)(VEC x)
{
    const VEC low = ALL(sizeof(REAL) == 4 ? -87.0f : -708.0), high = ALL(sizeof(REAL) == 4 ? 88.37f : 709.4);
    const INTS under = BELOW(x, low), over = BELOW(high, x);
    const VEC e = NAME(exp_inside)(PICK(under, low, PICK(over, high, x)));
    return PICK(under, ALL(0), PICK(over, ALL((REAL)INFINITY), e));
}

/* In float: x P(x^2) / Q(x^2), fitted for the least relative error up to 9, within 3 units in the last place. */
INLINE VEC NAME(tanh_rational)(VEC x)
{
    const INTS sign = (INTS)ALL((REAL)-0.0);
    const VEC one = ALL(1), nine = ALL(9), whole = (VEC)((INTS)x & ~sign), size = PICK(BELOW(nine, whole), nine, whole);
    const VEC z = size * size;
    VEC p = z * (REAL)1.825504983e-11 - (REAL)1.278034497e-08, q = z * (REAL)2.280995729e-04 + (REAL)2.376314843e-02;
    p = p * z + (REAL)9.267382400e-06;
    q = q * z + (REAL)4.625250764e-01;
    p = p * z + (REAL)2.920757053e-03;
    q = q * z + (REAL)1;
    p = p * z + (REAL)1.291922378e-01;
    p = p * z + (REAL)9.999999412e-01;
    const VEC y = size * p / q;
    return (VEC)((INTS)PICK(BELOW(size, nine) & BELOW(y, one), y, PICK((INTS)(size == size), one, size)) | ((INTS)x & sign));
}

/* In double: a rational function near 0, beyond it by the exponential. */
INLINE VEC NAME(tanh)(VEC x)
{
    if (sizeof(REAL) == 4) return NAME(tanh_rational)(x);
    const INTS sign = (INTS)ALL((REAL)-0.0);
    const VEC size = (VEC)((INTS)x & ~sign), z = x * x, low = ALL(-50); /* beyond 25 it is 1 */
    const INTS small = BELOW(size, ALL((REAL)0.625));
    const VEC twice = -2 * size, e = NAME(exp_inside)(PICK(BELOW(twice, low), low, twice));
    const VEC large = 1 - 2 * e / (1 + e);
    VEC q = z + (REAL)1.12811678491632931402e2, p = ALL((REAL)-9.64399179425052238628e-1);
    q = q * z + (REAL)2.23548839060100448583e3;
    q = q * z + (REAL)4.84406305325125486048e3;
    p = p * z - (REAL)9.92877231001918586564e1;
    p = p * z - (REAL)1.61468768441708447952e3;
    return (VEC)((INTS)PICK(small, x + x * (z * (p / q)), large) | ((INTS)x & sign));
}

/* ---- products: c += a b, with a tile of c in registers and the sum over k in order ---- */

typedef void NAME(tile)(int64_t, const REAL *, int64_t, int64_t, const REAL *, int64_t, REAL *, int64_t, int64_t, const char *);

/* c[m, :] += sum_k a[m * am + k * ak] * b[k, :], m < rows, over `vectors` vectors; of the last one, only `last` lanes belong to c
 * (the others are the start of its next row, and stay). What lies at `soon` is fetched on the way. */
INLINE void NAME(tile_body)(const int rows, const int vectors, int64_t depth, const REAL *a, int64_t am, int64_t ak,
                            const REAL *b, int64_t bs, REAL *c, int64_t cs, int64_t last, const char *soon)
{
    VEC sum[TILE_M][TILE_N];
    UNROLL for (int m = 0; m < rows; m++)
        UNROLL for (int j = 0; j < vectors; j++) sum[m][j] = LOAD(c + m * cs + j * LANES);
    for (int64_t k = 0; k < depth; k++) {
        VEC right[TILE_N];
        __builtin_prefetch(soon + k * LINE, 0, 2);
        UNROLL for (int j = 0; j < vectors; j++) right[j] = LOAD(b + k * bs + j * LANES);
        UNROLL for (int m = 0; m < rows; m++) {
            const VEC left = ALL(a[m * am + k * ak]);
            UNROLL for (int j = 0; j < vectors; j++) sum[m][j] += left * right[j];
        }
    }
    const int end = vectors - 1;
    __asm__ volatile("" ::: "memory"); /* or the values from before the loop would be kept, in registers that it needs */
    /* All read before any is written: a row's own values are written after those of the row above it. */
    UNROLL for (int m = 0; m < rows; m++) sum[m][end] = PICK(NAME(first)(last), sum[m][end], LOAD(c + m * cs + end * LANES));
    UNROLL for (int m = 0; m < rows; m++)
        UNROLL for (int j = 0; j < vectors; j++) STORE(c + m * cs + j * LANES, sum[m][j]);
}

#define TILE(m, n)                                                                                                              \
    HERE void NAME(tile_##m##_##n)(int64_t depth, const REAL *a, int64_t am, int64_t ak, const REAL *b, int64_t bs, REAL *c,     \
                                   int64_t cs, int64_t last, const char *soon)                                                  \
    {                                                                                                                           \
        NAME(tile_body)(m, n, depth, a, am, ak, b, bs, c, cs, last, soon);                                                      \
    }
#define TILES(n) TILE(1, n) TILE(2, n) TILE(3, n) TILE(4, n)
#define TILE_ROW(m) NAME(tile_##m##_1), NAME(tile_##m##_2), NAME(tile_##m##_3)
TILES(1) TILES(2) TILES(3)
#if TILE_M == 6
TILES(4) TILE(5, 1) TILE(5, 2) TILE(5, 3) TILE(5, 4) TILE(6, 1) TILE(6, 2) TILE(6, 3) TILE(6, 4)
static NAME(tile) *const NAME(tiles)[TILE_M][TILE_N] = {
    {TILE_ROW(1), NAME(tile_1_4)}, {TILE_ROW(2), NAME(tile_2_4)}, {TILE_ROW(3), NAME(tile_3_4)},
    {TILE_ROW(4), NAME(tile_4_4)}, {TILE_ROW(5), NAME(tile_5_4)}, {TILE_ROW(6), NAME(tile_6_4)}};
#else
static NAME(tile) *const NAME(tiles)[TILE_M][TILE_N] = {{TILE_ROW(1)}, {TILE_ROW(2)}, {TILE_ROW(3)}, {TILE_ROW(4)}};
#endif

/* c [rows, width] += a b over whole vectors, in tiles of about equal size, while what comes next is fetched from `soon` on. */
HERE void NAME(product_then)(int64_t rows, int64_t width, int64_t depth, const REAL *a, int64_t am, int64_t ak, const REAL *b,
                             int64_t bs, REAL *c, int64_t cs, const void *soon)
{
    const char *next = soon;
    const int64_t vectors = NAME(padded)(width) / LANES;
    const int64_t across = (vectors + TILE_N - 1) / TILE_N, down = (rows + TILE_M - 1) / TILE_M;
    for (int64_t s = 0; s < across; s++) {
        const int64_t from = s * vectors / across, to = (s + 1) * vectors / across;
        const int64_t last = s + 1 == across ? width - (vectors - 1) * LANES : LANES;
        for (int64_t t = 0; t < down; t++) {
            const int64_t top = t * rows / down, bottom = (t + 1) * rows / down;
            NAME(tiles)[bottom - top - 1][to - from - 1](depth, a + top * am, am, ak, b + from * LANES, bs,
                                                         c + top * cs + from * LANES, cs, last, next);
            next += depth * LINE;
        }
    }
}

HERE void NAME(product)(int64_t rows, int64_t width, int64_t depth, const REAL *a, int64_t am, int64_t ak, const REAL *b,
                        int64_t bs, REAL *c, int64_t cs)
{
    NAME(product_then)(rows, width, depth, a, am, ak, b, bs, c, cs, a);
}

/* ---- a device: its scratch memory, and one step ---- */

#define DEPTH 64       /* rows of a weight that stay in the first cache while all examples meet them */
#define LONG 100       /* factored steps from which on their rounding is kept small */
#define BLOCK 2400     /* values of a weight between its two visits in an update */

typedef struct {
    int64_t in, out, weight, bias, activation;
    int64_t wide;      /* out in whole vectors */
    int64_t edge;      /* the last rows of the weight, from which a whole vector would reach past its end */
    REAL parameter;    /* of the activation */
    REAL *outputs, *errors; /* [batch, wide] */
    REAL *inside;      /* [batch, wide]: what goes into the activation, where its derivative needs it */
} NAME(layer);
#define LAYER NAME(layer)

typedef struct {
    const struct work *work;
    LAYER layers[MOST_LAYERS];
    int64_t lowest;    /* the lowest layer that moves */
    int64_t batch, wide; /* examples; inputs in whole vectors */
    int apart;         /* whether examples are summed before they meet the weights: one rounding a step, not one for each */
    REAL *x;           /* [batch, wide] */
    REAL *scaled;      /* errors times -lr, [batch, widest] */
    REAL *turned;      /* a weight transposed */
    REAL *rim;         /* the last rows of a weight, padded */
    REAL *before;      /* a block as it came in */
    REAL *point;       /* a mixture of two rows, where the gradient is taken */
    REAL *gram, *start, *pull, *span; /* x x' [batch, batch]; x W, x A and C [batch, wide of layer 0] */
    REAL share[];      /* what each example weighs */
} NAME(device);
#define DEVICE NAME(device)

/* A step's numbers for one device. */
typedef struct {
    REAL keep, pull, lr, linear, l1, inverse_rho, soft; /* linear: what the linear term is scaled by */
    int kind; /* of the quadratic terms: NOTHING, NEAR, FAR or BOTH */
} NAME(terms);
#define TERMS NAME(terms)

enum { NAME(NOTHING), NAME(NEAR), NAME(FAR), NAME(BOTH) };
#define NOTHING NAME(NOTHING)
#define NEAR NAME(NEAR)
#define FAR NAME(FAR)
#define BOTH NAME(BOTH)

/* keep * x + pull * anchor; where keep + pull = 1, so written that x = anchor stays as it is. */
INLINE VEC NAME(quadratic)(const int kind, const TERMS *t, VEC x, VEC anchor)
{
    if (kind == NOTHING) return x * t->keep;
    if (kind == NEAR) return x + t->pull * (anchor - x);
    if (kind == FAR) return anchor - (1 - t->pull) * (anchor - x);
    return x * t->keep + t->pull * anchor;
}

INLINE VEC NAME(new_value)(const int kind, const int linear, const int smooth, const TERMS *t, VEC x, VEC anchor, VEC slope)
{
    VEC out = NAME(quadratic)(kind, t, x, anchor);
    if (linear) out -= t->lr * (t->linear * slope);
    if (smooth) out -= t->l1 * NAME(tanh)(x * t->inverse_rho);
    return out;
}

INLINE void NAME(move_as)(const int kind, const int linear, const int smooth, const TERMS *t, int64_t count, const REAL *from,
                          const REAL *anchor, const REAL *slope, REAL *to)
{
    const VEC zero = ALL(0);
    int64_t k = 0;
    for (; k + LANES <= count; k += LANES)
        STORE(to + k, NAME(new_value)(kind, linear, smooth, t, LOAD(from + k), kind != NOTHING ? LOAD(anchor + k) : zero,
                                      linear ? LOAD(slope + k) : zero));
    const int64_t rest = count - k;
    if (rest)
        NAME(store_some)(to + k, NAME(new_value)(kind, linear, smooth, t, NAME(load_some)(from + k, rest),
                                                 kind != NOTHING ? NAME(load_some)(anchor + k, rest) : zero,
                                                 linear ? NAME(load_some)(slope + k, rest) : zero), rest);
}

/* All terms but the data's, at the values that came in. */
HERE void NAME(move)(const TERMS *t, int64_t count, const REAL *from, const REAL *anchor, const REAL *slope, REAL *to)
{
    const int linear = slope != NULL, smooth = t->l1 != 0;
    if (from == to && t->kind == NOTHING && t->keep == 1 && !linear && !smooth) return;
    switch (t->kind * 4 + linear * 2 + smooth) {
#define MOVE(kind, linear, smooth)                                                                                              \
    case kind * 4 + linear * 2 + smooth: NAME(move_as)(kind, linear, smooth, t, count, from, anchor, slope, to); break;
#define MOVES(kind) MOVE(kind, 0, 0) MOVE(kind, 0, 1) MOVE(kind, 1, 0) MOVE(kind, 1, 1)
        MOVES(0) MOVES(1) MOVES(2) MOVES(3)
#undef MOVES
#undef MOVE
    }
}

/* The soft threshold, and what may not move put back. */
HERE void NAME(settle)(const DEVICE *d, const TERMS *t, int64_t at, int64_t count, const REAL *before, const uint8_t *mask, REAL *x)
{
    const struct work *w = d->work;
    if (w->l1 == SOFT) {
        const VEC limit = ALL(t->soft);
        for (int64_t k = 0; k < count; k += LANES) {
            const int64_t some = count - k < LANES ? count - k : LANES;
            const VEC v = some == LANES ? LOAD(x + k) : NAME(load_some)(x + k, some);
            VEC c = PICK(BELOW(limit, v), limit, v);
            c = PICK(BELOW(v, -limit), -limit, c);
            if (some == LANES) STORE(x + k, v - c);
            else NAME(store_some)(x + k, v - c, some);
        }
    }
    if (mask)
        for (int64_t k = 0; k < count; k++) x[k] = mask[at + k] ? x[k] : before[k];
    const int64_t head = w->part_start - at < count ? w->part_start - at : count;
    if (head > 0) memcpy(x, before, (size_t)head * sizeof(REAL));
    const int64_t tail = w->part_stop > at ? w->part_stop - at : 0;
    if (tail < count) memcpy(x + tail, before + tail, (size_t)(count - tail) * sizeof(REAL));
}

/* Where a device's rows are: read from `from`, written to `to`; the gradient is that at `at`, NULL for where `from` is. */
struct NAME(row) {
    const REAL *from, *anchor, *linear, *at, *other;
    const uint8_t *mask;
    REAL *to;
};
#define ROW struct NAME(row)

/* One block of a row, [at, at + count): moved by all terms but the data's; returns where its values of before are. */
HERE const REAL *NAME(move_block)(const DEVICE *d, const TERMS *t, int64_t at, int64_t count, const ROW *r)
{
    const REAL *from = r->from + at, *before = from;
    if (r->from == r->to && (d->work->mask || d->work->part_start > at || d->work->part_stop < at + count))
        before = memcpy(d->before, from, (size_t)count * sizeof(REAL));
    NAME(move)(t, count, from, r->anchor ? r->anchor + at : NULL, r->linear ? r->linear + at : NULL, r->to + at);
    return before;
}

HERE int NAME(moves)(const struct work *w, int64_t at, int64_t count)
{
    return at < w->part_stop && at + count > w->part_start;
}

/* A block that lies outside the part that moves. */
HERE void NAME(leave)(const ROW *r, int64_t at, int64_t count)
{
    if (r->from != r->to) memcpy(r->to + at, r->from + at, (size_t)count * sizeof(REAL));
}

/* weight <- terms(weight) + x' scaled, a block of its rows at a time. */
HERE void NAME(update_weight)(const DEVICE *d, const LAYER *l, const TERMS *t, const ROW *r, const REAL *x, int64_t xs,
                              const REAL *scaled)
{
    int64_t some = BLOCK / l->out / TILE_M * TILE_M;
    some = some ? some : TILE_M;
    for (int64_t top = 0; top < l->in; top += some) {
        const int64_t rows = l->in - top < some ? l->in - top : some, at = l->weight + top * l->out, count = rows * l->out;
        if (!NAME(moves)(d->work, at, count)) {
            NAME(leave)(r, at, count);
            continue;
        }
        const REAL *before = NAME(move_block)(d, t, at, count, r);
        REAL *to = r->to + at, *sum = d->apart ? memset(d->before, 0, (size_t)count * sizeof(REAL)) : to;
        int64_t inner = l->in - l->edge - top;
        inner = inner < 0 ? 0 : inner < rows ? inner : rows;
        if (inner) NAME(product)(inner, l->out, d->batch, x + top, 1, xs, scaled, l->wide, sum, l->out);
        for (int64_t i = inner; i < rows; i++) {
            memcpy(d->rim, sum + i * l->out, (size_t)l->out * sizeof(REAL));
            NAME(product)(1, l->wide, d->batch, x + top + i, 1, xs, scaled, l->wide, d->rim, l->wide);
            memcpy(sum + i * l->out, d->rim, (size_t)l->out * sizeof(REAL));
        }
        if (d->apart)
            for (int64_t k = 0; k < count; k++) to[k] += sum[k];
        NAME(settle)(d, t, at, count, before, r->mask, to);
    }
}

HERE void NAME(update_bias)(const DEVICE *d, const LAYER *l, const TERMS *t, const ROW *r, const REAL *scaled)
{
    if (!NAME(moves)(d->work, l->bias, l->out)) {
        NAME(leave)(r, l->bias, l->out);
        return;
    }
    const REAL *before = NAME(move_block)(d, t, l->bias, l->out, r);
    REAL *to = r->to + l->bias;
    for (int64_t j = 0; j < l->out; j += LANES) {
        const int64_t some = l->out - j < LANES ? l->out - j : LANES;
        const VEC moved = NAME(load_some)(to + j, some);
        VEC sum = d->apart ? ALL(0) : moved;
        for (int64_t b = 0; b < d->batch; b++) sum += LOAD(scaled + b * l->wide + j);
        NAME(store_some)(to + j, d->apart ? moved + sum : sum, some);
    }
    NAME(settle)(d, t, l->bias, l->out, before, r->mask, to);
}

HERE void NAME(scale)(REAL *to, const REAL *from, REAL factor, int64_t count)
{
    for (int64_t k = 0; k < count; k++) to[k] = factor * from[k];
}

HERE void NAME(update)(const DEVICE *d, const LAYER *l, const TERMS *t, const ROW *r, int weight)
{
    NAME(scale)(d->scaled, l->errors, -t->lr, d->batch * l->wide);
    const LAYER *under = l - 1;
    if (weight) {
        if (l == d->layers) NAME(update_weight)(d, l, t, r, d->x, d->wide, d->scaled);
        else NAME(update_weight)(d, l, t, r, under->outputs, under->wide, d->scaled);
    }
    if (l->bias >= 0) NAME(update_bias)(d, l, t, r, d->scaled);
}

/* outputs += x weight; the last rows of the weight through a padded copy. */
HERE void NAME(times_weight)(const DEVICE *d, const LAYER *l, const REAL *x, int64_t xs, const REAL *weight, REAL *outputs)
{
    const int64_t inner = l->in - l->edge;
    for (int64_t k = 0; k < inner; k += DEPTH)
        NAME(product_then)(d->batch, l->wide, inner - k < DEPTH ? inner - k : DEPTH, x + k, xs, 1, weight + k * l->out, l->out,
                           outputs, l->wide, weight + (k + DEPTH) * l->out);
    for (int64_t i = 0; i < l->edge; i++)
        memcpy(d->rim + i * l->wide, weight + (inner + i) * l->out, (size_t)l->out * sizeof(REAL));
    NAME(product)(d->batch, l->wide, l->edge, x + inner, xs, 1, d->rim, l->wide, outputs, l->wide);
}

HERE void NAME(start_outputs)(const DEVICE *d, const LAYER *l, const REAL *row)
{
    for (int64_t b = 0; b < d->batch; b++) {
        REAL *out = l->outputs + b * l->wide;
        if (l->bias >= 0) memcpy(out, row + l->bias, (size_t)l->out * sizeof(REAL));
        else memset(out, 0, (size_t)l->out * sizeof(REAL));
    }
}

/* The normal distribution function. With x = |z| / sqrt(2) and t = 2 / (2 + x), erfc(x) = t P(2t - 1) exp(-x^2): P is fitted
 * within 1e-14 in double and 1e-7 in float. */
INLINE VEC NAME(normal_cdf)(VEC z)
{
    static const double many[] = {
        -1.517077442002204e-08, 3.9014937452618824e-08, 6.35527906956497e-08, -3.076233563165349e-07, 1.313023643314157e-07,
        9.885446270502362e-07, -1.931306172501594e-06, -5.343219390470509e-07, 8.118530262293832e-06, -1.0869018195250059e-05,
        -1.7094264009764967e-05, 7.224379221738263e-05, -1.7181496391962813e-05, -0.00033153872978242545, 0.0004186475057580076,
        0.0015453062910335696, -0.0032395925002784718, -0.010755330962078641, 0.01822111575260095, 0.1397360462784684,
        0.34358034220690875, 0.5107913526210096};
    static const double few[] = {-3.627002806837349e-05, -0.00019344791470791121, 0.0004298832072907741, 0.0014358613504885755,
                                 -0.003242819850403143, -0.01071801613830236, 0.018221477084328485, 0.13973148070688396,
                                 0.3435803351392811, 0.5107914435569673};
    const int single = sizeof(REAL) == 4, count = single ? 10 : 22;
    const double *factors = single ? few : many;
    const VEC x = (VEC)((INTS)z & ~(INTS)ALL((REAL)-0.0)) * (REAL)0.70710678118654752440;
    const VEC t = 2 / (2 + x), s = 2 * t - 1;
    VEC p = ALL((REAL)factors[0]);
    for (int k = 1; k < count; k++) p = p * s + (REAL)factors[k];
    const VEC half = (REAL)0.5 * t * p * NAME(exp)(-x * x);
    return PICK(BELOW(z, ALL(0)), half, 1 - half);
}

/* sqrt(2/pi) (z + c z^3), of GELU's approximation. */
INLINE VEC NAME(gelu_inner)(VEC z) { return (REAL)0.79788456080286535588 * (z + (REAL)0.044715 * (z * z * z)); }

INLINE VEC NAME(sigmoid)(VEC z) { return 1 / (1 + NAME(exp)(-z)); }

INLINE VEC NAME(activate)(const LAYER *l, VEC z)
{
    switch (l->activation) {
    case RELU: return PICK(BELOW(z, ALL(0)), ALL(0), z);
    case TANH: return NAME(tanh)(z);
    case LEAKY_RELU: return PICK(BELOW(z, ALL(0)), l->parameter * z, z);
    case ELU: return PICK(BELOW(z, ALL(0)), l->parameter * (NAME(exp)(z) - 1), z);
    case SILU: return z * NAME(sigmoid)(z);
    case GELU: return z * NAME(normal_cdf)(z);
    case GELU_TANH: return (REAL)0.5 * z * (1 + NAME(tanh)(NAME(gelu_inner)(z)));
    }
    return NAME(sigmoid)(z);
}

/* The derivative where the input was z; those not BY_INPUT look at the output alone. */
INLINE VEC NAME(slope)(const LAYER *l, VEC z, VEC out)
{
    switch (l->activation) {
    case RELU: return PICK(BELOW(ALL(0), out), ALL(1), ALL(0));
    case TANH: return 1 - out * out;
    case LEAKY_RELU: return PICK(BELOW(ALL(0), out), ALL(1), ALL(l->parameter));
    case ELU: return PICK(BELOW(ALL(0), out), ALL(1), out + l->parameter);
    case SILU: {
        const VEC s = NAME(sigmoid)(z);
        return s * (1 + z * (1 - s));
    }
    case GELU: return NAME(normal_cdf)(z) + z * (REAL)0.39894228040143267794 * NAME(exp)((REAL)-0.5 * z * z);
    case GELU_TANH: {
        const VEC t = NAME(tanh)(NAME(gelu_inner)(z));
        const VEC inner = (REAL)0.79788456080286535588 * (1 + (REAL)(3 * 0.044715) * (z * z));
        return (REAL)0.5 * (1 + t) + (REAL)0.5 * z * (1 - t * t) * inner;
    }
    }
    return out * (1 - out);
}

HERE void NAME(finish_outputs)(const DEVICE *d, const LAYER *l)
{
    REAL *out = l->outputs;
    const int64_t count = d->batch * l->wide;
    if (BY_INPUT(l->activation)) memcpy(l->inside, out, (size_t)count * sizeof(REAL));
    if (l->activation)
        for (int64_t k = 0; k < count; k += LANES) STORE(out + k, NAME(activate)(l, LOAD(out + k)));
}

HERE void NAME(forward)(const DEVICE *d, int64_t from, const REAL *row)
{
    for (int64_t n = from; n < d->work->layers; n++) {
        const LAYER *l = d->layers + n;
        NAME(start_outputs)(d, l, row);
        if (n) NAME(times_weight)(d, l, l[-1].outputs, l[-1].wide, row + l->weight, l->outputs);
        else NAME(times_weight)(d, l, d->x, d->wide, row + l->weight, l->outputs);
        NAME(finish_outputs)(d, l);
    }
}

/* softmax - [label], times the example's share. */
HERE void NAME(cross_entropy)(const LAYER *l, const REAL *out, int64_t label, REAL share, REAL *errors)
{
    const int64_t end = l->wide - LANES;
    const INTS inside = NAME(first)(l->out - end);
    VEC most = ALL((REAL)-INFINITY), sum = ALL(0);
    for (int64_t k = 0; k <= end; k += LANES) {
        const VEC z = k < end ? LOAD(out + k) : PICK(inside, LOAD(out + k), ALL((REAL)-INFINITY));
        STORE(errors + k, z);
        most = PICK(BELOW(most, z), z, most);
    }
    REAL top = most[0];
    for (int64_t k = 1; k < LANES; k++) top = most[k] > top ? most[k] : top;
    for (int64_t k = 0; k <= end; k += LANES) {
        const VEC e = NAME(exp)(LOAD(errors + k) - top);
        STORE(errors + k, e);
        sum += e;
    }
    const REAL all = NAME(total)(sum);
    for (int64_t k = 0; k <= end; k += LANES) STORE(errors + k, LOAD(errors + k) / all);
    errors[label] -= 1;
    for (int64_t k = 0; k <= end; k += LANES) STORE(errors + k, LOAD(errors + k) * share);
}

HERE void NAME(loss)(const DEVICE *d, const int64_t *examples)
{
    const LAYER *l = d->layers + d->work->layers - 1;
    for (int64_t b = 0; b < d->batch; b++) {
        const REAL *out = l->outputs + b * l->wide;
        REAL *errors = l->errors + b * l->wide;
        if (d->work->loss == CROSS_ENTROPY) {
            NAME(cross_entropy)(l, out, ((const int64_t *)d->work->y)[examples[b]], d->share[b], errors);
        } else {
            const REAL *y = (const REAL *)d->work->y + examples[b] * l->out;
            for (int64_t j = 0; j < l->out; j++) errors[j] = (out[j] - y[j]) * d->share[b];
        }
    }
}

/* The errors of every layer from `lowest` on, from those of the last. */
HERE void NAME(backward)(const DEVICE *d, int64_t lowest, const REAL *row)
{
    for (int64_t n = d->work->layers - 1; n > lowest; n--) {
        const LAYER *l = d->layers + n, *under = l - 1;
        const REAL *weight = row + l->weight;
        for (int64_t j = 0; j < l->out; j++)
            for (int64_t i = 0; i < l->in; i++) d->turned[j * under->wide + i] = weight[i * l->out + j];
        memset(under->errors, 0, (size_t)(d->batch * under->wide) * sizeof(REAL));
        NAME(product)(d->batch, under->wide, l->out, l->errors, l->wide, 1, d->turned, under->wide, under->errors, under->wide);
        const REAL *inside = BY_INPUT(under->activation) ? under->inside : under->outputs;
        if (under->activation)
            for (int64_t k = 0; k < d->batch * under->wide; k += LANES)
                STORE(under->errors + k,
                      LOAD(under->errors + k) * NAME(slope)(under, LOAD(inside + k), LOAD(under->outputs + k)));
    }
}

/* Fetch the examples of one step; what is wrong with them, if anything. */
HERE int NAME(fetch)(DEVICE *d, const int64_t *examples, const REAL *weight)
{
    const struct work *w = d->work;
    const int64_t in = d->layers[0].in, out = d->layers[w->layers - 1].out;
    REAL sum = 0;
    for (int64_t b = 0; b < d->batch; b++) {
        const int64_t e = examples[b];
        if (e < 0 || e >= w->examples_held) return BAD_EXAMPLE;
        if (w->loss == CROSS_ENTROPY && (((const int64_t *)w->y)[e] < 0 || ((const int64_t *)w->y)[e] >= out)) return BAD_LABEL;
        memcpy(d->x + b * d->wide, (const REAL *)w->x + e * in, (size_t)in * sizeof(REAL));
        if (weight) sum += weight[b];
    }
    for (int64_t b = 0; b < d->batch; b++) d->share[b] = weight ? weight[b] / sum : 1 / (REAL)d->batch;
    return 0;
}

HERE TERMS NAME(terms_of)(const struct work *w, int64_t n)
{
    const double lr = w->lr[n], lam = w->anchor ? w->lam[n] : 0, gamma = w->l1 ? w->gamma[n] : 0;
    TERMS t = {0};
    t.keep = (REAL)(1 - lr * (lam + w->decay)), t.pull = (REAL)(lr * lam), t.lr = (REAL)lr;
    t.linear = (REAL)w->linear_scale;
    t.l1 = w->l1 == SMOOTH ? (REAL)(lr * gamma) : 0, t.inverse_rho = w->l1 == SMOOTH ? (REAL)(1 / w->rho) : 0;
    t.soft = (REAL)(lr * gamma);
    t.kind = lam == 0 ? NOTHING : w->decay != 0 ? BOTH : t.pull < (REAL)0.5 ? NEAR : FAR;
    return t;
}

HERE void NAME(move_all)(const DEVICE *d, const TERMS *t, const ROW *r)
{
    for (int64_t at = 0; at < d->work->width; at += BLOCK) {
        const int64_t left = d->work->width - at, count = left < BLOCK ? left : BLOCK;
        const REAL *before = NAME(move_block)(d, t, at, count, r);
        NAME(settle)(d, t, at, count, before, r->mask, r->to + at);
    }
}

/* to = a + share (b - a), so written that either end is exact. */
HERE void NAME(mix)(REAL share, int64_t count, const REAL *a, const REAL *b, REAL *to)
{
    TERMS t = {0};
    t.pull = share, t.kind = share < (REAL)0.5 ? NEAR : FAR;
    NAME(move)(&t, count, a, b, NULL, to);
}

/* Where the gradient of a step is taken. */
HERE const REAL *NAME(point)(const DEVICE *d, int64_t n, const ROW *r)
{
    if (!r->at) return r->from;
    if (!r->other) return r->at;
    NAME(mix)((REAL)d->work->share[n], d->work->width, r->at, r->other, d->point);
    return d->point;
}

/* Steps of device n, whose batches begin with number `first`. */
HERE int NAME(plain_steps)(DEVICE *d, int64_t n, ROW *r, int64_t first)
{
    const struct work *w = d->work;
    TERMS t = NAME(terms_of)(w, n);
    const int ridge = r->at && w->l2 != 0;
    if (ridge) t.linear = (REAL)w->l2;
    for (int64_t step = 0; step < w->steps[n]; step++) {
        if (!w->layers) { /* no data: every other term, block by block */
            NAME(move_all)(d, &t, r);
            r->from = r->to;
            continue;
        }
        const int64_t at = (n * w->batches + first + (w->fresh ? step : 0)) * d->batch;
        if (step == 0 || w->fresh) {
            const int wrong = NAME(fetch)(d, w->examples + at, w->weight ? (const REAL *)w->weight + at : NULL);
            if (wrong) return wrong;
        }
        const REAL *point = NAME(point)(d, n, r);
        if (ridge) r->linear = point;
        NAME(forward)(d, 0, point);
        NAME(loss)(d, w->examples + at);
        NAME(backward)(d, d->lowest, point);
        for (int64_t l = 0; l < w->layers; l++) NAME(update)(d, d->layers + l, &t, r, 1);
        r->from = r->to;
    }
    return 0;
}

/* x x', by rows that are padded with zeros; four products at a time. */
HERE void NAME(inner_products)(const DEVICE *d)
{
    const int64_t n = d->batch;
    for (int64_t a = 0; a < n; a++)
        for (int64_t b = 0; b <= a; b += 4) {
            const REAL *left = d->x + a * d->wide, *right[4];
            VEC sum[4];
            UNROLL for (int u = 0; u < 4; u++) sum[u] = ALL(0), right[u] = d->x + (b + u < n ? b + u : a) * d->wide;
            for (int64_t k = 0; k < d->wide; k += LANES) {
                const VEC v = LOAD(left + k);
                UNROLL for (int u = 0; u < 4; u++) sum[u] += v * LOAD(right[u] + k);
            }
            for (int64_t u = 0; u < 4 && b + u <= a; u++) d->gram[a * n + b + u] = d->gram[(b + u) * n + a] = NAME(total)(sum[u]);
        }
}

/* Many steps on one batch, factored as in covey/gram.py: W = a W0 + b A + x' C, and only a, b and C change. */
HERE int NAME(factored_steps)(DEVICE *d, int64_t n, ROW *r)
{
    const struct work *w = d->work;
    const LAYER *l = d->layers;
    const TERMS t = NAME(terms_of)(w, n);
    const int64_t size = d->batch * l->wide, at = n * w->batches * d->batch;
    const int wrong = NAME(fetch)(d, w->examples + at, w->weight ? (const REAL *)w->weight + at : NULL);
    if (wrong) return wrong;
    const int pulled = t.kind != NOTHING;
    const REAL *pull = pulled && r->anchor != r->from ? d->pull : d->start;
    memset(d->start, 0, (size_t)size * sizeof(REAL)), memset(d->span, 0, (size_t)size * sizeof(REAL));
    NAME(times_weight)(d, l, d->x, d->wide, r->from + l->weight, d->start);
    if (pull == d->pull) {
        memset(d->pull, 0, (size_t)size * sizeof(REAL));
        NAME(times_weight)(d, l, d->x, d->wide, r->anchor + l->weight, d->pull);
    }
    NAME(inner_products)(d);
    d->apart = w->steps[n] >= LONG;
    const REAL lost = (REAL)(w->lr[n] * ((w->anchor ? w->lam[n] : 0) + w->decay)); /* 1 - keep, whose rounding adds up */
    TERMS whole = t; /* of all steps together */
    whole.keep = 1, whole.pull = 0;
    ROW others = *r;
    for (int64_t step = 0; step < w->steps[n]; step++) {
        NAME(start_outputs)(d, l, others.from);
        for (int64_t k = 0; k < size; k += LANES)
            STORE(l->outputs + k, LOAD(l->outputs + k) + (whole.keep * LOAD(d->start + k) + whole.pull * LOAD(pull + k)));
        NAME(product)(d->batch, l->wide, d->batch, d->gram, d->batch, 1, d->span, l->wide, l->outputs, l->wide);
        NAME(finish_outputs)(d, l);
        NAME(forward)(d, 1, others.from);
        NAME(loss)(d, w->examples + at);
        NAME(backward)(d, 0, others.from);
        for (int64_t k = 0; k < w->layers; k++) NAME(update)(d, d->layers + k, &t, &others, k > 0);
        others.from = others.to;
        if (d->apart) {
            for (int64_t k = 0; k < size; k += LANES)
                STORE(d->span + k, LOAD(d->span + k) - (lost * LOAD(d->span + k) + t.lr * LOAD(l->errors + k)));
            whole.keep -= lost * whole.keep, whole.pull += t.pull - lost * whole.pull;
            continue;
        }
        for (int64_t k = 0; k < size; k += LANES)
            STORE(d->span + k, t.keep * LOAD(d->span + k) - t.lr * LOAD(l->errors + k));
        whole.keep = t.keep * whole.keep, whole.pull = t.keep * whole.pull + t.pull;
    }
    whole.kind = t.kind == NOTHING || t.kind == BOTH ? t.kind : whole.pull < (REAL)0.5 ? NEAR : FAR;
    NAME(update_weight)(d, l, &whole, r, d->x, d->wide, d->span);
    d->apart = 0;
    return 0;
}

/* The memory of one call: the device, then its arrays, each at a whole vector. With no memory yet, only how much. */
HERE int64_t NAME(lay_out)(const struct work *w, DEVICE *d, char *memory)
{
    int64_t used = 0;
#define ROOM(pointer, count)                                                                                                    \
    do {                                                                                                                        \
        if (memory) pointer = (void *)(memory + used);                                                                          \
        used += NAME(padded)(count) * (int64_t)sizeof(REAL);                                                                    \
    } while (0)
    used = ((int64_t)sizeof(DEVICE) + w->batch * (int64_t)sizeof(REAL) + 63) / 64 * 64;
    int64_t widest = 1, turned = 1, rim = 1, block = BLOCK;
    for (int64_t n = 0; n < w->layers; n++) {
        const int64_t *row = w->table + 6 * n, in = row[0], out = row[1], wide = NAME(padded)(out);
        const int64_t needed = (wide - out + out - 1) / out, edge = needed < 1 ? 1 : needed < in ? needed : in;
        if (memory) {
            LAYER *l = d->layers + n;
            l->in = in, l->out = out, l->weight = row[2], l->bias = row[3], l->activation = row[4];
            l->wide = wide, l->edge = edge;
            double parameter;
            memcpy(&parameter, row + 5, sizeof parameter);
            l->parameter = (REAL)parameter;
        }
        ROOM(d->layers[n].outputs, w->batch * wide);
        ROOM(d->layers[n].errors, w->batch * wide);
        ROOM(d->layers[n].inside, BY_INPUT(row[4]) ? w->batch * wide : 0);
        widest = wide > widest ? wide : widest;
        rim = edge * wide > rim ? edge * wide : rim;
        block = TILE_M * out > block ? TILE_M * out : block;
        turned = n && NAME(padded)(in) * out > turned ? NAME(padded)(in) * out : turned;
    }
    const int64_t first = w->layers ? w->batch * NAME(padded)(w->table[1]) : 0;
    ROOM(d->x, w->layers ? w->batch * NAME(padded)(w->table[0]) : 0);
    ROOM(d->scaled, w->batch * widest);
    ROOM(d->turned, turned);
    ROOM(d->rim, rim);
    ROOM(d->before, block);
    ROOM(d->point, w->other ? w->width : 0);
    if (w->factored) {
        ROOM(d->gram, w->batch * w->batch);
        ROOM(d->start, first);
        ROOM(d->pull, first);
        ROOM(d->span, first);
    }
#undef ROOM
    return used;
}

/* A device with its arrays, in memory that the caller frees; NULL where there is none. */
HERE DEVICE *NAME(device_of)(const struct work *w, char **memory)
{
    const int64_t size = NAME(lay_out)(w, NULL, NULL);
    *memory = calloc(1, (size_t)size + 64);
    if (!*memory) return NULL;
    char *aligned = *memory + (64 - (uintptr_t)*memory % 64) % 64;
    DEVICE *d = (DEVICE *)aligned;
    NAME(lay_out)(w, d, aligned);
    d->work = w, d->batch = w->batch, d->wide = w->layers ? NAME(padded)(w->table[0]) : 0;
    return d;
}

HERE int64_t NAME(lowest)(const DEVICE *d)
{
    const struct work *w = d->work;
    int64_t lowest = w->layers;
    for (int64_t n = w->layers - 1; n >= 0; n--) {
        const LAYER *l = d->layers + n;
        if (NAME(moves)(w, l->weight, l->in * l->out) || (l->bias >= 0 && NAME(moves)(w, l->bias, l->out))) lowest = n;
    }
    return lowest;
}

HERE ROW NAME(row_of)(const struct work *w, int64_t n)
{
    ROW r = {0};
    r.from = (const REAL *)w->start + n * w->start_stride;
    r.to = (REAL *)w->rows + n * w->width;
    if (w->anchor) r.anchor = (const REAL *)w->anchor + n * w->anchor_stride;
    if (w->linear) r.linear = (const REAL *)w->linear + n * w->linear_stride;
    if (w->mask) r.mask = w->mask + n * w->mask_stride;
    if (w->at) r.at = (const REAL *)w->at + n * w->at_stride;
    if (w->other) r.other = (const REAL *)w->other + n * w->other_stride;
    return r;
}

HERE int NAME(descend)(const struct work *w)
{
    char *memory;
    DEVICE *d = NAME(device_of)(w, &memory);
    if (!d) return NO_MEMORY;
    d->lowest = NAME(lowest)(d);
    int wrong = 0;
    for (int64_t n = 0; n < w->devices && !wrong; n++) {
        ROW r = NAME(row_of)(w, n);
        if (w->steps[n] <= 0)
            NAME(leave)(&r, 0, w->width);
        else
            wrong = w->factored && w->steps[n] >= w->factored ? NAME(factored_steps)(d, n, &r) : NAME(plain_steps)(d, n, &r, 0);
    }
    free(memory);
    return wrong;
}

/* Several moves by turns, each on rows that the others read or write; one device after another. */
HERE int NAME(alternate)(const struct work *moves, int64_t count, int64_t times)
{
    char *memory[MOST_MOVES] = {0};
    DEVICE *d[MOST_MOVES];
    int wrong = 0;
    for (int64_t m = 0; m < count && !wrong; m++) {
        d[m] = NAME(device_of)(moves + m, memory + m);
        if (d[m]) d[m]->lowest = NAME(lowest)(d[m]);
        else wrong = NO_MEMORY;
    }
    const int64_t devices = count ? moves[0].devices : 0;
    for (int64_t n = 0; n < devices && !wrong; n++)
        for (int64_t time = 0; time < times && !wrong; time++)
            for (int64_t m = 0; m < count && !wrong; m++) {
                ROW r = NAME(row_of)(moves + m, n);
                wrong = NAME(plain_steps)(d[m], n, &r, moves[m].batches > 1 ? time : 0);
            }
    for (int64_t m = 0; m < count; m++) free(memory[m]);
    return wrong;
}

/* Loss of one example and whether its label has the largest output, the first of equal ones. */
HERE double NAME(tally)(const struct work *w, const LAYER *l, const REAL *out, int64_t example, double *right)
{
    double loss = 0;
    if (w->loss == SQUARED_ERROR) {
        const REAL *y = (const REAL *)w->y + example * l->out;
        for (int64_t j = 0; j < l->out; j++) loss += 0.5 * (double)(out[j] - y[j]) * (double)(out[j] - y[j]);
        return loss;
    }
    const int64_t label = ((const int64_t *)w->y)[example];
    int64_t most = 0;
    for (int64_t j = 1; j < l->out; j++) most = out[j] > out[most] ? j : most;
    for (int64_t j = 0; j < l->out; j += LANES) {
        const VEC e = NAME(exp)((j + LANES <= l->out ? LOAD(out + j) : NAME(load_some)(out + j, l->out - j)) - out[most]);
        loss += NAME(total)(PICK(NAME(first)(l->out - j < LANES ? l->out - j : LANES), e, ALL(0)));
    }
    *right += most == label;
    return log(loss) + ((double)out[most] - (double)out[label]);
}

/* Right answers and summed loss of each device's model on its own examples, `counts[n]` from `starts[n]` on. */
HERE int NAME(score)(const struct work *w, const int64_t *starts, const int64_t *counts, double *right, double *loss)
{
    char *memory;
    DEVICE *d = NAME(device_of)(w, &memory);
    if (!d) return NO_MEMORY;
    const LAYER *last = d->layers + w->layers - 1;
    int wrong = 0;
    for (int64_t n = 0; n < w->devices && !wrong; n++) {
        const REAL *row = (const REAL *)w->start + n * w->start_stride;
        right[n] = loss[n] = 0;
        for (int64_t at = 0; at < counts[n] && !wrong; at += w->batch) {
            const int64_t *examples = w->examples + starts[n] + at;
            d->batch = counts[n] - at < w->batch ? counts[n] - at : w->batch;
            wrong = NAME(fetch)(d, examples, NULL);
            if (wrong) break;
            NAME(forward)(d, 0, row);
            for (int64_t b = 0; b < d->batch; b++)
                loss[n] += NAME(tally)(w, last, last->outputs + b * last->wide, examples[b], right + n);
        }
    }
    free(memory);
    return wrong;
}

/* ---- Adam ---- */

INLINE VEC NAME(sqrt)(VEC v)
{
#if BYTES == 64
    return sizeof(REAL) == 4 ? (VEC)_mm512_sqrt_ps((__m512)v) : (VEC)_mm512_sqrt_pd((__m512d)v);
#elif BYTES == 32
    return sizeof(REAL) == 4 ? (VEC)_mm256_sqrt_ps((__m256)v) : (VEC)_mm256_sqrt_pd((__m256d)v);
#else
    for (int64_t k = 0; k < LANES; k++) v[k] = sizeof(REAL) == 4 ? (REAL)sqrtf((float)v[k]) : (REAL)sqrt((double)v[k]);
    return v;
#endif
}

/* One step of Adam along g, from x into `to`; the moments in place. */
HERE void NAME(adam)(const struct adam *a, double lr, int64_t count, const REAL *x, const REAL *g, REAL *mean, REAL *square, REAL *to)
{
    const REAL keep1 = (REAL)a->beta1, keep2 = (REAL)a->beta2, new1 = (REAL)(1 - a->beta1), new2 = (REAL)(1 - a->beta2);
    const REAL rate = (REAL)(lr / a->mean_correction), grow = (REAL)(1 / a->square_correction), least = (REAL)1e-8;
    for (int64_t k = 0; k < count; k += LANES) {
        const int64_t some = count - k < LANES ? count - k : LANES;
        const int whole = some == LANES;
        const VEC slope = whole ? LOAD(g + k) : NAME(load_some)(g + k, some);
        const VEC m = keep1 * (whole ? LOAD(mean + k) : NAME(load_some)(mean + k, some)) + new1 * slope;
        const VEC s = keep2 * (whole ? LOAD(square + k) : NAME(load_some)(square + k, some)) + new2 * (slope * slope);
        const VEC moved = (whole ? LOAD(x + k) : NAME(load_some)(x + k, some)) - rate * m / (NAME(sqrt)(grow * s) + least);
        if (whole) {
            STORE(mean + k, m), STORE(square + k, s), STORE(to + k, moved);
        } else {
            NAME(store_some)(mean + k, m, some), NAME(store_some)(square + k, s, some), NAME(store_some)(to + k, moved, some);
        }
    }
}

/* ---- rows on the wire ---- */

/* to = from with |v| <= threshold set to +0.0; returns how many values have any bit set. */
HERE int64_t NAME(cut_row)(const REAL *from, REAL *to, int64_t width, int cut, REAL threshold)
{
    const INTS sign = (INTS)ALL((REAL)-0.0);
    const VEC limit = ALL(threshold);
    int64_t k = 0, count = 0;
    while (k + LANES <= width) {
        INTS seen = {0}; /* counts per lane, well within an integer of this size */
        const int64_t stop = width - k < LANES * 65536 ? width : k + LANES * 65536;
        for (; k + LANES <= stop; k += LANES) {
            INTS v = *(const NAME(any_ints) *)(from + k);
            if (cut) v &= ~(INTS)((VEC)(v & ~sign) <= limit);
            if (to) *(NAME(any_ints) *)(to + k) = v;
            seen -= (INTS)(v != 0);
        }
        for (int64_t j = 0; j < LANES; j++) count += seen[j];
    }
    for (; k < width; k++) {
        REAL v = from[k];
        if (cut && (v < 0 ? -v : v) <= threshold) v = 0;
        WHOLE bits;
        memcpy(&bits, &v, sizeof bits);
        if (to) to[k] = v;
        count += bits != 0;
    }
    return count;
}

HERE int NAME(finite)(const REAL *values, int64_t count)
{
    const WHOLE high = sizeof(REAL) == 4 ? (WHOLE)0x7f800000 : (WHOLE)0x7ff0000000000000;
    int64_t k = 0;
    while (k + LANES <= count) {
        INTS bad = {0};
        const int64_t stop = count - k < 4096 ? count : k + 4096;
        for (; k + LANES <= stop; k += LANES) bad |= (INTS)((*(const NAME(any_ints) *)(values + k) & high) == high);
        for (int64_t j = 0; j < LANES; j++)
            if (bad[j]) return 0;
    }
    for (; k < count; k++)
        if (!(values[k] - values[k] == 0)) return 0;
    return 1;
}

HERE void NAME(tanh_row)(const REAL *from, REAL *to, int64_t count)
{
    for (int64_t k = 0; k < count; k += LANES) {
        const int64_t some = count - k < LANES ? count - k : LANES;
        NAME(store_some)(to + k, NAME(tanh)(NAME(load_some)(from + k, some)), some);
    }
}

/* Messages start at any address. */
typedef WHOLE NAME(loose) __attribute__((aligned(1), may_alias));
#define LOOSE NAME(loose)

/* Which of `count` values, at most 64, have any bit set. */
INLINE uint64_t NAME(nonzero)(const LOOSE *values, int64_t count)
{
#if BYTES == 64
    if (count == 64) {
        uint64_t word = 0;
        for (int j = 0; j < 64; j += LANES) {
            const __m512i v = _mm512_loadu_si512(values + j);
            word |= (uint64_t)(sizeof(REAL) == 4 ? _mm512_test_epi32_mask(v, v) : _mm512_test_epi64_mask(v, v)) << j;
        }
        return word;
    }
#endif
    uint8_t yes[64] = {0};
    if (count == 64)
        for (int j = 0; j < 64; j++) yes[j] = values[j] != 0;
    else
        for (int j = 0; j < count; j++) yes[j] = values[j] != 0;
    return word_of(yes);
}

/* A bit for each value that is not 0; returns how many. */
HERE int64_t NAME(bits)(const LOOSE *values, int64_t width, uint8_t *bits)
{
    int64_t sent = 0;
    for (int64_t k = 0; k < width; k += 64) {
        const int64_t count = width - k < 64 ? width - k : 64;
        const uint64_t word = NAME(nonzero)(values + k, count);
        memcpy(bits + k / 8, &word, (size_t)(count + 7) / 8);
        sent += __builtin_popcountll(word);
    }
    return sent;
}

/* The values under the bits, moved together; no more than `sent`. Returns how many. */
HERE int64_t NAME(squeeze)(const LOOSE *values, const uint8_t *bits, int64_t width, LOOSE *to, int64_t sent)
{
    int64_t n = 0;
    for (int64_t k = 0; k < width && n < sent; k += 64) {
        uint64_t word = word_at(bits, width, k);
        const LOOSE *from = values + k;
        if (width - k >= 64 && sent - n >= 64 && __builtin_popcountll(word) > FEW) {
#if BYTES == 64
            for (int j = 0; j < 64; j += LANES, word >>= LANES) {
                const __m512i v = _mm512_loadu_si512(from + j);
                const __m512i some = sizeof(REAL) == 4 ? _mm512_maskz_compress_epi32((__mmask16)word, v)
                                                       : _mm512_maskz_compress_epi64((__mmask8)word, v);
                _mm512_storeu_si512(to + n, some);
                n += __builtin_popcountll(word << (64 - LANES));
            }
#else
            for (int j = 0; j < 64; j++) {
                to[n] = from[j];
                n += word >> j & 1;
            }
#endif
        } else
            for (; word && n < sent; word &= word - 1) to[n++] = from[__builtin_ctzll(word)];
    }
    return n;
}

/* The reverse: the values under the bits, zeros elsewhere. Returns how many of the `sent` values were taken. */
HERE int64_t NAME(spread)(const LOOSE *values, int64_t sent, const uint8_t *bits, int64_t width, LOOSE *to)
{
    int64_t n = 0;
    for (int64_t k = 0; k < width; k += 64) {
        uint64_t word = word_at(bits, width, k);
        LOOSE *here = to + k;
        if (width - k >= 64 && sent - n >= 64 && __builtin_popcountll(word) > FEW) {
#if BYTES == 64
            for (int j = 0; j < 64; j += LANES, word >>= LANES) {
                const __m512i v = _mm512_loadu_si512(values + n);
                const __m512i some = sizeof(REAL) == 4 ? _mm512_maskz_expand_epi32((__mmask16)word, v)
                                                       : _mm512_maskz_expand_epi64((__mmask8)word, v);
                _mm512_storeu_si512(here + j, some);
                n += __builtin_popcountll(word << (64 - LANES));
            }
#else
            for (int j = 0; j < 64; j++) {
                here[j] = values[n] & -(WHOLE)(word >> j & 1);
                n += word >> j & 1;
            }
#endif
        } else {
            memset(here, 0, (size_t)(width - k < 64 ? width - k : 64) * sizeof(REAL));
            for (; word && n < sent; word &= word - 1) here[__builtin_ctzll(word)] = values[n++];
        }
    }
    return n;
}

/* The 16 bits of a value: IEEE's half, or `brain`, the upper half of a float. To nearest, ties to even, by way of float as torch
 * does it; what is finite stays so, and there is one NaN. */
INLINE uint16_t NAME(half)(REAL value, const int brain)
{
    const REAL most = (REAL)FLT_MAX;
    if (sizeof(REAL) == 8 && !isinf(value)) value = value > most ? most : value < -most ? -most : value;
    const float single = (float)value, shifted = fabsf(single) + 0.5f; /* whose last place is that of the smallest halves */
    uint32_t bits, small;
    memcpy(&bits, &single, 4);
    memcpy(&small, &shifted, 4);
    const uint32_t magnitude = bits & 0x7fffffff, infinite = brain ? 0x7f80 : 0x7c00, drop = brain ? 16 : 13;
    /* choices by masks: a branch would keep this from being vectors */
    const uint32_t tiny = -(uint32_t)(!brain && magnitude < 0x38800000), odd = -(uint32_t)(magnitude >= 0x7f800000);
    const uint32_t nan = -(uint32_t)(magnitude > 0x7f800000);
    uint32_t half = (magnitude - (brain ? 0 : 0x38000000) + ((1u << (drop - 1)) - 1) + (magnitude >> drop & 1)) >> drop;
    half = half < infinite ? half : infinite - 1;
    half = (half & ~tiny) | ((small - 0x3f000000) & tiny);
    half = (half & ~odd) | (infinite & odd) | (bits >> 16 & 0x8000);
    return (uint16_t)((half & ~nan) | ((infinite | (brain ? 0x40 : 0x200)) & nan));
}

INLINE REAL NAME(whole)(uint32_t half, const int brain)
{
    const uint32_t magnitude = half & 0x7fff, sign = (half & 0x8000) << 16;
    uint32_t bits = magnitude << 16, small = magnitude | 0x3f000000;
    float single;
    if (!brain) {
        memcpy(&single, &small, 4);
        single -= 0.5f;
        memcpy(&small, &single, 4);
        const uint32_t tiny = -(uint32_t)(magnitude < 0x400);
        bits = (magnitude << 13) + (magnitude < 0x7c00 ? 0x38000000 : 0x70000000);
        bits = (small & tiny) | (bits & ~tiny);
    }
    bits |= sign;
    memcpy(&single, &bits, 4);
    return (REAL)single;
}

/* A bit for each value whose 16 bits are not 0. */
HERE void NAME(half_bits)(const REAL *values, int64_t width, uint8_t *bits, int brain)
{
    for (int64_t k = 0; k < width; k += 64) {
        const int64_t count = width - k < 64 ? width - k : 64;
        uint8_t yes[64] = {0};
        if (brain)
            for (int64_t j = 0; j < count; j++) yes[j] = NAME(half)(values[k + j], 1) != 0;
        else
            for (int64_t j = 0; j < count; j++) yes[j] = NAME(half)(values[k + j], 0) != 0;
        const uint64_t word = word_of(yes);
        memcpy(bits + k / 8, &word, (size_t)(count + 7) / 8);
    }
}

HERE void NAME(narrow)(const REAL *from, uint8_t *to, int64_t count, int brain)
{
    loose16 *out = (loose16 *)to;
    if (brain)
        for (int64_t k = 0; k < count; k++) out[k] = NAME(half)(from[k], 1);
    else
        for (int64_t k = 0; k < count; k++) out[k] = NAME(half)(from[k], 0);
}

/* Returns how many are a NaN that `narrow` does not make. */
HERE int64_t NAME(widen)(const uint8_t *from, REAL *to, int64_t count, int brain)
{
    const loose16 *in = (const loose16 *)from;
    int64_t strange = 0;
    if (brain)
        for (int64_t k = 0; k < count; k++) {
            to[k] = NAME(whole)(in[k], 1);
            strange += (in[k] & 0x7fff) > 0x7f80 && in[k] != 0x7fc0;
        }
    else
        for (int64_t k = 0; k < count; k++) {
            to[k] = NAME(whole)(in[k], 0);
            strange += (in[k] & 0x7fff) > 0x7c00 && in[k] != 0x7e00;
        }
    return strange;
}

/* What is left of the values after both. */
HERE void NAME(blur)(const REAL *from, REAL *to, int64_t count, int brain)
{
    if (brain)
        for (int64_t k = 0; k < count; k++) to[k] = NAME(whole)(NAME(half)(from[k], 1), 1);
    else
        for (int64_t k = 0; k < count; k++) to[k] = NAME(whole)(NAME(half)(from[k], 0), 0);
}

/* The scale of a block whose largest magnitude has these bits: so few of its own that `levels` times it is exact. */
INLINE REAL NAME(grain)(WHOLE peak, int levels)
{
    const WHOLE infinite = sizeof(REAL) == 4 ? (WHOLE)0x7f800000 : (WHOLE)0x7ff0000000000000;
    const REAL least = sizeof(REAL) == 4 ? (REAL)FLT_MIN : (REAL)DBL_MIN;
    REAL scale;
    if (peak == 0) return 0;
    if (peak >= infinite) return (REAL)NAN;
    memcpy(&scale, &peak, sizeof scale);
    scale /= (REAL)levels;
    scale = scale < least ? least : scale;
    memcpy(&peak, &scale, sizeof scale);
    peak &= ~(WHOLE)levels;
    memcpy(&scale, &peak, sizeof scale);
    return scale;
}

/* Integers up to `levels` and the scale of each block, by the rules of covey/codecs/quantised.py; `place` is where the draws of
 * stochastic rounding are. */
HERE void NAME(quantise)(const REAL *from, int8_t *to, REAL *scales, int64_t width, int64_t block, int levels, int stochastic,
                         uint64_t place)
{
    const REAL magic = sizeof(REAL) == 4 ? 12582912.0f : 6755399441055744.0; /* adding it rounds, ties to even */
    const WHOLE positive = (WHOLE)((((uint64_t)1) << (8 * sizeof(REAL) - 1)) - 1);
    for (int64_t start = 0; start < width; start += block) {
        const int64_t stop = width - start < block ? width : start + block;
        WHOLE peak = 0;
        for (int64_t k = start; k < stop; k++) {
            WHOLE size;
            memcpy(&size, from + k, sizeof size);
            size &= positive;
            peak = size > peak ? size : peak;
        }
        const REAL scale = NAME(grain)(peak, levels);
        *scales++ = scale;
        if (!(scale > 0))
            memset(to + start, 0, (size_t)(stop - start));
        else if (stochastic)
            for (int64_t k = start; k < stop; k++) {
                const REAL value = from[k] / scale, size = value < 0 ? -value : value;
                const int32_t below = (int32_t)size;
                const int64_t draw = (int64_t)(finalise(place + GOLDEN * (uint64_t)k) >> 11);
                const int32_t up = below + ((double)draw < (double)(size - (REAL)below) * 9007199254740992.0);
                const int32_t whole = up > levels ? levels : up;
                to[k] = (int8_t)(value < 0 ? -whole : whole);
            }
        else
            for (int64_t k = start; k < stop; k++) to[k] = (int8_t)(int32_t)((from[k] / scale + magic) - magic);
    }
}

/* The values again, and the largest magnitude among the integers of each block. */
HERE void NAME(dequantise)(const int8_t *from, const REAL *scales, REAL *to, uint8_t *peaks, int64_t width, int64_t block)
{
    for (int64_t start = 0; start < width; start += block) {
        const int64_t stop = width - start < block ? width : start + block;
        const REAL scale = *scales++;
        int low = 0, high = 0;
        for (int64_t k = start; k < stop; k++) {
            to[k] = (REAL)from[k] * scale;
            low = from[k] < low ? from[k] : low;
            high = from[k] > high ? from[k] : high;
        }
        *peaks++ = (uint8_t)(-low > high ? -low : high);
    }
}

#undef LANES
#undef HERE
#undef INLINE
#undef VEC
#undef INTS
#undef LOAD
#undef STORE
#undef ALL
#undef PICK
#undef BELOW
#undef LOOSE
#undef TILE
#undef TILES
#undef TILE_ROW
#undef DEPTH
#undef BLOCK
#undef LAYER
#undef DEVICE
#undef TERMS
#undef NOTHING
#undef NEAR
#undef FAR
#undef BOTH
#undef ROW
#undef REAL
#undef WHOLE
#undef BYTES
#undef TILE_M
#undef TILE_N
#undef TARGET
#undef NAME
