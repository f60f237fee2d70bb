// The vocabulary of generated CPU kernels: scalar functions that the compiler's own vectoriser turns into vector code.
// Nothing is included: a kernel compiles in a tenth of a second instead of in seconds. Every function is free of
// branches on data (only selections), so that a loop over it vectorises; error at most 2 ulp, NaN, infinities, signed
// zero and subnormal numbers as IEEE 754 asks. Functions that are rare in models call the C library in double precision.
// Invariant: no state, no allocation, no dependence on any library but libm and the OpenMP runtime.
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;
typedef float f32;
typedef double f64;
#define CI static inline __attribute__((always_inline, unused))

extern "C" int omp_get_max_threads(void);
extern "C" int omp_get_thread_num(void);
extern "C" int omp_get_num_threads(void);

// ---- bits -----------------------------------------------------------------------------------------------------------
CI u32 ci_bits(f32 x) { return __builtin_bit_cast(u32, x); }
CI u64 ci_bits(f64 x) { return __builtin_bit_cast(u64, x); }
CI f32 ci_f32_of(u32 x) { return __builtin_bit_cast(f32, x); }
CI f64 ci_f64_of(u64 x) { return __builtin_bit_cast(f64, x); }
CI f32 ci_fma(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
CI f64 ci_fma(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
#define CI_INF __builtin_inff()
#define CI_NAN __builtin_nanf("")

// ---- half precision: stored as 16 bits, computed as float ------------------------------------------------------------
CI f32 ci_from_f16(u16 h) {
  u32 magnitude = ((u32)h & 0x7fffu) << 13;
  u32 finite = ci_bits(ci_f32_of(magnitude) * 0x1p112f);
  u32 bits = magnitude >= 0x0f800000u ? (magnitude | 0x7f800000u) : finite;
  return ci_f32_of(bits | (((u32)h & 0x8000u) << 16));
}
CI u16 ci_to_f16(f32 x) {
  u32 u = ci_bits(x), sign = (u >> 16) & 0x8000u;
  u &= 0x7fffffffu;
  u32 special = u > 0x7f800000u ? 0x7e00u : 0x7c00u;
  u32 small = ci_bits(ci_f32_of(u) + 0.5f) - 0x3f000000u;
  u32 normal = (u - 0x38000000u + 0xfffu + ((u >> 13) & 1u)) >> 13;
  u32 r = u >= 0x47800000u ? special : (u < 0x38800000u ? small : normal);
  return (u16)(r | sign);
}
CI f32 ci_from_bf16(u16 h) { return ci_f32_of((u32)h << 16); }
// Rounding stays among 32-bit lanes, where it costs five operations; a value that is a bfloat16 already is only cut.
CI f32 ci_round_bf16(f32 x) {
  u32 u = ci_bits(x);
  u32 r = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  return ci_f32_of(x != x ? 0x7fc00000u : r);
}
CI u16 ci_cut_bf16(f32 x) { return (u16)(ci_bits(x) >> 16); }
CI u16 ci_to_bf16(f32 x) {
  u32 u = ci_bits(x);
  return x != x ? (u16)0x7fc0u : (u16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
CI f32 ci_round_f16(f32 x) { return ci_from_f16(ci_to_f16(x)); }
CI u16 ci_cut_f16(f32 x) { return ci_to_f16(x); }

#if defined(__AVX512F__) && !defined(__clang__)
typedef f32 ci_f32x16 __attribute__((vector_size(64)));
typedef u32 ci_u32x16 __attribute__((vector_size(64)));
#endif

// ---- exponential and logarithm, float ---------------------------------------------------------------------------------
// exp: x = n ln2 + r, |r| <= ln2/2; 2^n is applied in two halves so that subnormal results round once.
CI f32 ci_exp_series(f32 r) { // exp(r) - 1 on [-ln2/2, ln2/2], exact towards zero
  f32 s = r * r, high = ci_fma(r, 0.0083678095f, 0.04166725f), low = ci_fma(r, 0.16666532f, 0.5f);
  high = ci_fma(s, 0.001386349f, high);
  return ci_fma(s, ci_fma(s, high, low), r);
}
CI f32 ci_exp(f32 x) {
  f32 c = x < -104.0f ? -104.0f : x;
  c = c > 89.0f ? 89.0f : c;
  f32 t = ci_fma(c, 0x1.715476p+0f, 0x1.8p23f), n = t - 0x1.8p23f; // the low bits of t are n
  f32 r = ci_fma(n, -0x1.62e400p-1f, c);
  r = ci_fma(n, -0x1.7f7d1cp-20f, r);
  i32 k = (i32)ci_bits(t) - 0x4b400000, half = k >> 1;
  f32 low = ci_f32_of((u32)(half + 127) << 23), high = ci_f32_of((u32)(k - half + 127) << 23);
  return (ci_exp_series(r) + 1.0f) * low * high;
}
CI f32 ci_expm1_bounded(f32 x) { // |x| <= 87: no overflow, no subnormal number on the way
  f32 t = ci_fma(x, 0x1.715476p+0f, 0x1.8p23f), n = t - 0x1.8p23f;
  f32 r = ci_fma(n, -0x1.62e400p-1f, x);
  r = ci_fma(n, -0x1.7f7d1cp-20f, r);
  f32 scale = ci_f32_of((ci_bits(t) << 23) + 0x3f800000u);
  return ci_fma(scale, ci_exp_series(r), scale - 1.0f);
}
CI f32 ci_log(f32 x) {
  f32 tiny = x < 0x1p-126f ? 0x1p25f : 1.0f, shift = x < 0x1p-126f ? -25.0f : 0.0f;
  u32 u = ci_bits(x * tiny) - 0x3f3504f3u;
  f32 e = (f32)((i32)u >> 23) + shift;
  f32 f = ci_f32_of((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  f32 p = -0.076344125f;
  p = ci_fma(p, f, 0.12761486f);
  p = ci_fma(p, f, -0.13160172f);
  p = ci_fma(p, f, 0.1420177f);
  p = ci_fma(p, f, -0.1662336f);
  p = ci_fma(p, f, 0.20001227f);
  p = ci_fma(p, f, -0.2500082f);
  p = ci_fma(p, f, 0.3333333f);
  f32 s = f * f;
  f32 y = f * s * p;
  y = ci_fma(e, 0x1.7f7d1cp-20f, y);
  y = ci_fma(s, -0.5f, y);
  f32 r = ci_fma(e, 0x1.62e400p-1f, f + y);
  r = x == CI_INF ? x : r;
  r = x == 0.0f ? -CI_INF : r;
  return x < 0.0f || x != x ? CI_NAN : r;
}

// ---- exponential and logarithm, double --------------------------------------------------------------------------------
CI f64 ci_exp(f64 x) {
  f64 c = x < -746.0 ? -746.0 : x;
  c = c > 710.0 ? 710.0 : c;
  f64 t = ci_fma(c, 0x1.71547652b82fep+0, 0x1.8p52);
  f64 n = t - 0x1.8p52;
  f64 r = ci_fma(n, -0x1.62e42fee00000p-1, c);
  r = ci_fma(n, -0x1.a39ef35793c76p-33, r);
  f64 p = 1.0 / 6227020800.0;
  p = ci_fma(p, r, 1.0 / 479001600.0);
  p = ci_fma(p, r, 1.0 / 39916800.0);
  p = ci_fma(p, r, 1.0 / 3628800.0);
  p = ci_fma(p, r, 1.0 / 362880.0);
  p = ci_fma(p, r, 1.0 / 40320.0);
  p = ci_fma(p, r, 1.0 / 5040.0);
  p = ci_fma(p, r, 1.0 / 720.0);
  p = ci_fma(p, r, 1.0 / 120.0);
  p = ci_fma(p, r, 1.0 / 24.0);
  p = ci_fma(p, r, 1.0 / 6.0);
  p = ci_fma(p, r, 0.5);
  p = ci_fma(r * r, p, r) + 1.0;
  // the two halves of n, each a small integer in the low bits of a magic sum
  f64 half = ci_fma(n, 0.5, 0x1.8p52);
  f64 rest = (n - (half - 0x1.8p52)) + 0x1.8p52;
  f64 low = ci_f64_of((ci_bits(half) + 1023u) << 52), high = ci_f64_of((ci_bits(rest) + 1023u) << 52);
  return p * low * high;
}
CI f64 ci_log(f64 x) {
  f64 tiny = x < 0x1p-1022 ? 0x1p54 : 1.0, shift = x < 0x1p-1022 ? -54.0 : 0.0;
  u64 u = ci_bits(x * tiny) - 0x3fe6a09e667f3bcdul;
  // the exponent as a double without a 64-bit integer conversion: biased by 2048, in the low bits of 2^52
  f64 e = ci_f64_of(((u + (2048ul << 52)) >> 52) + 0x4330000000000000ul) - 0x1p52;
  e = (e >= 2048.0 ? e - 2048.0 : e - 2048.0) + shift;
  f64 f = ci_f64_of((u & 0xffffffffffffful) + 0x3fe6a09e667f3bcdul) - 1.0;
  f64 s = f / (2.0 + f), z = s * s, h = 0.5 * f * f;
  f64 p = 0.14810509537151492;
  p = ci_fma(p, z, 0.15313165365286352);
  p = ci_fma(p, z, 0.1818357150509949);
  p = ci_fma(p, z, 0.22222199091523992);
  p = ci_fma(p, z, 0.2857142872927943);
  p = ci_fma(p, z, 0.3999999999951984);
  p = ci_fma(p, z, 0.666666666666671);
  f64 r = z * p;
  f64 y = ci_fma(e, 0x1.62e42fee00000p-1, -((h - ci_fma(s, h + r, e * 0x1.a39ef35793c76p-33)) - f));
  y = x == (f64)CI_INF ? x : y;
  y = x == 0.0 ? -(f64)CI_INF : y;
  return x < 0.0 || x != x ? (f64)CI_NAN : y;
}

// ---- the exponential family -------------------------------------------------------------------------------------------
// For float these go through double, whose 29 further bits cover the cancellation near zero.
CI f32 ci_expm1(f32 x) {
  f64 d = x, small = ci_fma(d * d, 0.5 + d * (1.0 / 6.0), d), large = ci_exp(d) - 1.0;
  f64 r = __builtin_fabs(d) < 0x1p-12 ? small : large;
  return x == 0.0f ? x : (f32)r;
}
CI f64 ci_expm1(f64 x) { return __builtin_expm1(x); }
CI f32 ci_log1p(f32 x) {
  f64 d = x, u = 1.0 + d;
  f64 r = ci_log(u) + (d - (u - 1.0)) / u;
  r = u == (f64)CI_INF ? u : r;
  r = u == 0.0 ? -(f64)CI_INF : r;
  return x == 0.0f ? x : (f32)r;
}
CI f64 ci_log1p(f64 x) { return __builtin_log1p(x); }
CI f32 ci_exp2(f32 x) {
  f64 d = x * 1.0;
  d = d < -200.0 ? -200.0 : d;
  d = d > 200.0 ? 200.0 : d;
  return (f32)ci_exp(d * 0.6931471805599453);
}
CI f64 ci_exp2(f64 x) { return __builtin_exp2(x); }
CI f32 ci_log2(f32 x) { return (f32)(ci_log((f64)x) * 1.4426950408889634); }
CI f64 ci_log2(f64 x) { return __builtin_log2(x); }
CI f32 ci_log10(f32 x) { return (f32)(ci_log((f64)x) * 0.4342944819032518); }
CI f64 ci_log10(f64 x) { return __builtin_log10(x); }
template <class T> CI T ci_sigmoid(T x) { return (T)1 / ((T)1 + ci_exp(-x)); }

CI f32 ci_tanh(f32 x) {
  f32 a = __builtin_fabsf(x);
  a = a > 10.0f ? 10.0f : a;
  f32 e = ci_expm1_bounded(a + a);
  f32 s = x * x, p = -0.049980734f;
  p = ci_fma(p, s, 0.13310939f);
  p = ci_fma(p, s, -0.33332995f);
  f32 small = ci_fma(x * s, p, x); // the quotient rounds thrice, which shows towards zero
  return __builtin_copysignf(a < 0.31f ? small : e / (e + 2.0f), x);
}
CI f64 ci_tanh(f64 x) { return __builtin_tanh(x); }

// erf(x) = 1 - exp(-t q(t)) with t = |x|; written with expm1 it keeps its digits towards zero.
CI f32 ci_erf_series(f32 x) {
  f32 t = __builtin_fabsf(x);
  t = 3.95f < t ? 3.95f : t;
  f32 q = 9.232645e-08f;
  q = ci_fma(q, t, 1.6458063e-07f);
  q = ci_fma(q, t, -1.6604083e-05f);
  q = ci_fma(q, t, 0.0001556536f);
  q = ci_fma(q, t, -0.0007233847f);
  q = ci_fma(q, t, 0.0017841527f);
  q = ci_fma(q, t, -0.0002451872f);
  q = ci_fma(q, t, -0.019119957f);
  q = ci_fma(q, t, 0.102771595f);
  q = ci_fma(q, t, 0.6366198f);
  q = ci_fma(q, t, 0.0033791670955125586f);
  f32 u = ci_fma(t, 1.125f, t * q); // the leading coefficient in two parts: its rounding would cost an ulp
  // 1 - exp(-u) as in `ci_expm1_bounded`; u < 18, so that one step of reduction is enough
  f32 k = ci_fma(u, -0x1.715476p+0f, 0x1.8p23f), r = ci_fma(k - 0x1.8p23f, -0x1.62e430p-1f, -u);
  f32 scale = ci_f32_of((ci_bits(k) << 23) + 0x3f800000u);
  return __builtin_copysignf(ci_fma(-scale, ci_exp_series(r), 1.0f - scale), x);
}
#if (defined(CI_VECTOR_ERF) || defined(CI_STRIP_ERF)) && defined(__AVX512F__) && !defined(__clang__)
// Sixteen pieces of degree five about the multiples of 1/4, in units of 1/4, whose coefficients one permutation each
// picks out of a register: half the work of the series. The compiler's vectoriser can't write a permutation; in loops
// that don't go in strips it calls these functions for a loop over `ci_erf_lanes` by the names that the vector calling
// convention gives them, each of which it may choose: short loops take four lanes.
typedef f32 ci_f32x8 __attribute__((vector_size(32)));
typedef f32 ci_f32x4 __attribute__((vector_size(16)));
static const f32 ci_erf_table[6][16] __attribute__((aligned(64))) = {
  {
    0.0f, 0.2763264f, 0.5204999f, 0.71115565f, 0.8427008f, 0.92290014f, 0.96610516f, 0.9866717f, 0.9953223f,
    0.9985373f, 0.999593f, 0.9998994f, 0.9999779f, 0.9999957f, 0.9999993f, 0.9999999f,
  },
  {
    0.2820948f, 0.26500353f, 0.21969564f, 0.16073278f, 0.10377688f, 0.05913028f, 0.029732572f, 0.013193748f,
    0.0051667457f, 0.0017855796f, 0.00054457114f, 0.00014656942f, 3.4813333e-05f, 7.297287e-06f, 1.3498671e-06f,
    2.2036099e-07f,
  },
  {
    1.521885e-08f, -0.016562374f, -0.027461529f, -0.030137165f, -0.025944257f, -0.018478394f, -0.01114988f,
    -0.0057723424f, -0.0025833773f, -0.0010043639f, -0.00034033295f, -0.000100752164f, -2.6103586e-05f,
    -5.9267422e-06f, -1.1804503e-06f, -2.0641795e-07f,
  },
  {
    -0.005877189f, -0.004830721f, -0.0022885206f, 0.00041849204f, 0.0021619508f, 0.0026177303f, 0.0021680214f,
    0.0014087348f, 0.00075349864f, 0.00033944924f, 0.00013046773f, 4.312816e-05f, 1.2327927e-05f, 3.0587535e-06f,
    6.6060176e-07f, 1.2445075e-07f,
  },
  {
    1.0294908e-06f, 0.00049232517f, 0.000710591f, 0.00058616546f, 0.0002706636f, -2.2119844e-05f, -0.00017244909f,
    -0.00018707766f, -0.00013450695f, -7.480863e-05f, -3.3936903e-05f, -1.2878877e-05f, -4.147469e-06f,
    -1.1436729e-06f, -2.7169716e-07f, -5.5850318e-08f,
  },
  {
    0.000108464934f, 7.768561e-05f, 7.314982e-06f, -5.143523e-05f, -6.710475e-05f, -4.596405e-05f, -1.4661402e-05f,
    6.284879e-06f, 1.2680625e-05f, 1.0387195e-05f, 5.990352e-06f, 2.7108813e-06f, 1.0046477e-06f, 3.1164674e-07f,
    8.19777e-08f, 8.4e-07f, // the last lifts the end of its piece to 1: what is beyond must cancel in 1 - erf
  },
};
static const volatile u32 ci_magnitude = 0x7fffffffu; // volatile: loaded, where gcc would take it from a scalar register
CI ci_f32x16 ci_erf_pieces(ci_f32x16 x) {
  ci_u32x16 magnitude = (ci_u32x16)x & ci_magnitude;
  ci_f32x16 limit = 15.48f - (ci_f32x16){}, zero = {};
  ci_f32x16 a = (ci_f32x16)magnitude * 4.0f;
  a = __builtin_ia32_minps512_mask(limit, a, zero, (u16)-1, 4); // hands on NaN
  ci_f32x16 t = a + 0x1.8p23f, r = a - (t - 0x1.8p23f), c[6]; // the low bits of t number the piece
  for (int k = 0; k < 6; k++) c[k] = __builtin_shuffle(*(const ci_f32x16 *)ci_erf_table[k], (ci_u32x16)t);
  ci_f32x16 p = c[5];
  for (int k = 4; k > 0; k--) p = p * r + c[k];
  p = p * r + (r * -1.4658846e-08f + c[0]); // what rounding 2/sqrt(pi) left over
  return (ci_f32x16)((ci_u32x16)p | ((ci_u32x16)x ^ magnitude));
}
#ifdef CI_VECTOR_ERF
#define CI_LANES extern "C" __attribute__((visibility("hidden"), used, noinline))
extern "C" __attribute__((visibility("hidden"), simd("notinbranch"), const, nothrow)) f32 ci_erf_lanes(f32 x);
CI_LANES ci_f32x16 ci_erf_16(ci_f32x16 x) __asm__("_ZGVeN16v_ci_erf_lanes");
CI_LANES ci_f32x8 ci_erf_8(ci_f32x8 x) __asm__("_ZGVdN8v_ci_erf_lanes");
CI_LANES ci_f32x8 ci_erf_8_avx(ci_f32x8 x) __asm__("_ZGVcN8v_ci_erf_lanes");
CI_LANES ci_f32x4 ci_erf_4(ci_f32x4 x) __asm__("_ZGVbN4v_ci_erf_lanes");
CI_LANES f32 ci_erf_1(f32 x) __asm__("ci_erf_lanes");
ci_f32x16 ci_erf_16(ci_f32x16 x) { return ci_erf_pieces(x); }
ci_f32x8 ci_erf_8(ci_f32x8 x) {
  ci_f32x16 wide = {};
  __builtin_memcpy(&wide, &x, sizeof x);
  wide = ci_erf_pieces(wide);
  __builtin_memcpy(&x, &wide, sizeof x);
  return x;
}
ci_f32x8 ci_erf_8_avx(ci_f32x8 x) { return ci_erf_8(x); }
ci_f32x4 ci_erf_4(ci_f32x4 x) {
  ci_f32x16 wide = {};
  __builtin_memcpy(&wide, &x, sizeof x);
  wide = ci_erf_pieces(wide);
  __builtin_memcpy(&x, &wide, sizeof x);
  return x;
}
f32 ci_erf_1(f32 x) { return ci_erf_pieces((ci_f32x16){x})[0]; }
#undef CI_LANES
CI f32 ci_erf(f32 x) { return ci_erf_lanes(x); }
#endif
#else
CI f32 ci_erf(f32 x) { return ci_erf_series(x); }
#endif
CI f64 ci_erf(f64 x) { return __builtin_erf(x); }
CI f32 ci_erfc(f32 x) { return (f32)__builtin_erfc((f64)x); }
CI f64 ci_erfc(f64 x) { return __builtin_erfc(x); }

// ---- circular functions -----------------------------------------------------------------------------------------------
// Float arguments are reduced in double by two fused steps, which is exact up to CI_NEAR. Larger ones are multiplied by
// 2 / pi of which the whole turns have been taken out beforehand (after M. Payne and R. Hanek, 1983); loops in strips do
// that only where a strip has some.
#define CI_NEAR 0x1p33f
CI f64 ci_quadrant_near(f64 x, u64 *quadrant) {
  f64 t = ci_fma(x, 0.6366197723675814, 0x1.8p52);
  *quadrant = ci_bits(t);
  f64 n = t - 0x1.8p52;
  f64 r = ci_fma(n, -0x1.921fb54442d18p+0, x);
  return ci_fma(n, -0x1.1a62633145c07p-54, r);
}
// Of powers of two times 2 / pi, without whole turns: what multiplies an argument of exponent 33 + 2 i or 34 + 2 i. The first
// has at most 28 bits, so that its product with a float's 24 and one more of the exponent is exact.
static const f64 ci_turns[48] = {
    -0x1.9f246c0000000p-14, -0x1.9f246c8000000p-14, -0x1.9f246c6000000p-14, 0x1.836e4e4000000p-16,
    -0x1.f246c6e000000p-18, 0x1.b727220000000p-23, 0x1.b727220000000p-23, -0x1.236377c000000p-25,
    0x1.b939106000000p-26, -0x1.1b1bbea000000p-28, -0x1.b1bbeb0000000p-32, -0x1.b1bbeae000000p-32,
    0x1.391054a000000p-34, 0x1.c882a54000000p-37, -0x1.bbead60000000p-40, -0x1.bbead60000000p-40,
    0x1.1054a80000000p-42, 0x1.054a7f0000000p-46, 0x1.054a7f0000000p-46, 0x1.529fc20000000p-52,
    0x1.529fc28000000p-52, 0x1.529fc28000000p-52, 0x1.4a7f09e000000p-54, 0x1.29fc276000000p-56,
    0x1.4fe13ac000000p-59, -0x1.603d8a8000000p-60, -0x1.80f62a0000000p-62, 0x1.fc2757e000000p-64,
    -0x1.ec54180000000p-71, -0x1.ec54170000000p-71, -0x1.ec54170000000p-71, 0x1.3abe900000000p-75,
    0x1.3abe8fc000000p-75, -0x1.8a82e0a000000p-76, 0x1.d5f47d4000000p-78, -0x1.505c158000000p-81,
    0x1.5f47d4e000000p-82, 0x1.7d1f534000000p-84, 0x1.f47d4d4000000p-86, -0x1.7056590000000p-91,
    -0x1.7056590000000p-91, 0x1.1f534de000000p-92, 0x1.f534de0000000p-96, 0x1.f534ddc000000p-96,
    -0x1.5964480000000p-101, -0x1.5964480000000p-101, 0x1.4d37704000000p-102, 0x1.34ddc0e000000p-104,
};
static const f64 ci_turns_rest[48] = {
    -0x1.bbead603d8a83p-40, 0x1.1054a7f09d5f4p-42, -0x1.df56b01ec5417p-43, 0x1.054a7f09d5f48p-46,
    -0x1.f56b01ec54170p-47, 0x1.529fc2757d1f5p-52, 0x1.529fc2757d1f5p-52, -0x1.5ac07b1505c16p-53,
    -0x1.6b01ec5417056p-55, -0x1.ac07b1505c159p-57, 0x1.4fe13abe8fa9ap-59, 0x1.3f84eafa3ea6ap-61,
    0x1.fc2757d1f534ep-64, -0x1.ec54170565912p-71, -0x1.ec54170565912p-71, -0x1.ec54170565912p-71,
    -0x1.ec54170565912p-71, 0x1.3abe8fa9a6ee0p-75, 0x1.3abe8fa9a6ee0p-75, 0x1.d5f47d4d37703p-78,
    -0x1.505c1596447e5p-81, -0x1.505c1596447e5p-81, -0x1.4170565911f92p-83, -0x1.05c1596447e49p-85,
    -0x1.70565911f924fp-91, -0x1.70565911f924fp-91, -0x1.70565911f924fp-91, -0x1.c1596447e493bp-93,
    0x1.f534ddc0db629p-96, -0x1.596447e493ad5p-101, -0x1.596447e493ad5p-101, -0x1.596447e493ad5p-101,
    -0x1.65911f924eb53p-103, -0x1.96447e493ad4dp-105, 0x1.a6ee06db14acdp-107, -0x1.6447e493ad4cep-109,
    -0x1.911f924eb5336p-111, 0x1.bb81b6c52b328p-113, -0x1.11f924eb53362p-115, -0x1.1f924eb53361ep-119,
    -0x1.1f924eb53361ep-119, -0x1.f924eb53361dep-123, -0x1.f924eb53361dep-123, 0x1.b6c52b3278872p-129,
    0x1.b6c52b3278872p-129, 0x1.b6c52b3278872p-129, -0x1.24eb53361de38p-131, -0x1.275a99b0ef1bfp-134,
};
CI f64 ci_quadrant(f64 x, u64 *quadrant) {
  f64 near = ci_quadrant_near(x, quadrant);
  i64 half = ((i64)(ci_bits(x) << 1 >> 54)) - ((1023 + 33) >> 1);
  half = half < 0 ? 0 : (half > 47 ? 47 : half);
  f64 p = x * ci_turns[half], q = x * ci_turns_rest[half];
  f64 t = (p + q) + 0x1.8p52;
  bool large = __builtin_fabs(x) > (f64)CI_NEAR;
  *quadrant = large ? ci_bits(t) : *quadrant;
  return large ? ((p - (t - 0x1.8p52)) + q) * 0x1.921fb54442d18p+0 : near;
}
CI f64 ci_sin_core(f64 r) {
  f64 s = r * r, p = 2.71658691508247e-06;
  p = ci_fma(p, s, -0.00019839180778133327);
  p = ci_fma(p, s, 0.008333329084820497);
  p = ci_fma(p, s, -0.16666666642374595);
  return ci_fma(r * s, p, r);
}
CI f64 ci_cos_core(f64 r) {
  f64 s = r * r, p = -2.7230800881085147e-07;
  p = ci_fma(p, s, 2.479984423089777e-05);
  p = ci_fma(p, s, -0.001388888534354093);
  p = ci_fma(p, s, 0.04166666664639407);
  return ci_fma(s * s, p, ci_fma(s, -0.5, 1.0));
}
CI f32 ci_sin_of(f32 x, f64 r, u64 q) {
  f64 a = ci_sin_core(r), b = ci_cos_core(r);
  f64 v = q & 1 ? b : a;
  v = ci_f64_of(ci_bits(v) ^ ((q & 2) << 62));
  v = __builtin_fabsf(x) < CI_INF ? v : (f64)CI_NAN;
  return x == 0.0f ? x : (f32)v;
}
CI f32 ci_cos_of(f32 x, f64 r, u64 q) {
  f64 a = ci_sin_core(r), b = ci_cos_core(r);
  f64 v = q & 1 ? a : b;
  v = ci_f64_of(ci_bits(v) ^ (((q + 1) & 2) << 62));
  return (f32)(__builtin_fabsf(x) < CI_INF ? v : (f64)CI_NAN);
}
CI f32 ci_tan_of(f32 x, f64 r, u64 q) {
  f64 a = ci_sin_core(r), b = ci_cos_core(r);
  f64 v = q & 1 ? -b / a : a / b;
  v = __builtin_fabsf(x) < CI_INF ? v : (f64)CI_NAN;
  return x == 0.0f ? x : (f32)v;
}
#define CI_CIRCULAR(name)                 \
  CI f32 ci_##name##_near(f32 x) {        \
    u64 q;                                \
    f64 r = ci_quadrant_near(x, &q);      \
    return ci_##name##_of(x, r, q);       \
  }                                       \
  CI f32 ci_##name(f32 x) {               \
    u64 q;                                \
    f64 r = ci_quadrant(x, &q);           \
    return ci_##name##_of(x, r, q);       \
  }
CI_CIRCULAR(sin) CI_CIRCULAR(cos) CI_CIRCULAR(tan)
#undef CI_CIRCULAR
CI f64 ci_sin(f64 x) { return __builtin_sin(x); }
CI f64 ci_cos(f64 x) { return __builtin_cos(x); }
CI f64 ci_tan(f64 x) { return __builtin_tan(x); }

// ---- power ------------------------------------------------------------------------------------------------------------
CI f32 ci_pow(f32 x, f32 y) {
  f64 a = __builtin_fabs((f64)x), d = y;
  f64 r = ci_exp(d * ci_log(a));
  f64 whole = __builtin_rint(d), halves = __builtin_rint(d * 0.5) * 2.0;
  bool integral = whole == d, odd = integral && halves != d;
  bool negative = (ci_bits(x) >> 31) != 0;
  r = a == 1.0 && __builtin_fabsf(y) == CI_INF ? 1.0 : r;
  r = x < 0.0f && a < (f64)CI_INF && !integral && y == y ? (f64)CI_NAN : r;
  r = negative && odd ? -r : r;
  r = x != x || y != y ? (f64)CI_NAN : r;
  return y == 0.0f || x == 1.0f ? 1.0f : (f32)r;
}
CI f64 ci_pow(f64 x, f64 y) { return __builtin_pow(x, y); }
CI f32 ci_sqrt(f32 x) { return __builtin_sqrtf(x); }
CI f64 ci_sqrt(f64 x) { return __builtin_sqrt(x); }
CI f32 ci_rsqrt(f32 x) { return 1.0f / __builtin_sqrtf(x); }
CI f64 ci_rsqrt(f64 x) { return 1.0 / __builtin_sqrt(x); }

// ---- the rest of libm, through double ----------------------------------------------------------------------------------
#define CI_LIBM(name)                                                   \
  CI f32 ci_##name(f32 x) { return (f32)__builtin_##name((f64)x); }     \
  CI f64 ci_##name(f64 x) { return __builtin_##name(x); }
CI_LIBM(asin) CI_LIBM(acos) CI_LIBM(atan) CI_LIBM(sinh) CI_LIBM(cosh) CI_LIBM(asinh) CI_LIBM(acosh) CI_LIBM(atanh)
CI_LIBM(lgamma)
#undef CI_LIBM
#define CI_LIBM2(name)                                                                       \
  CI f32 ci_##name(f32 x, f32 y) { return (f32)__builtin_##name((f64)x, (f64)y); }           \
  CI f64 ci_##name(f64 x, f64 y) { return __builtin_##name(x, y); }
CI_LIBM2(atan2) CI_LIBM2(hypot)
#undef CI_LIBM2
CI f32 ci_fmod(f32 x, f32 y) { return __builtin_fmodf(x, y); }
CI f64 ci_fmod(f64 x, f64 y) { return __builtin_fmod(x, y); }
CI f32 ci_nextafter(f32 x, f32 y) { return __builtin_nextafterf(x, y); }
CI f64 ci_nextafter(f64 x, f64 y) { return __builtin_nextafter(x, y); }
#define CI_ROUND(name, builtin)                               \
  CI f32 ci_##name(f32 x) { return __builtin_##builtin##f(x); } \
  CI f64 ci_##name(f64 x) { return __builtin_##builtin(x); }
CI_ROUND(floor, floor) CI_ROUND(ceil, ceil) CI_ROUND(trunc, trunc) CI_ROUND(round, rint) CI_ROUND(abs, fabs)
#undef CI_ROUND
CI f32 ci_copysign(f32 x, f32 y) { return __builtin_copysignf(x, y); }
CI f64 ci_copysign(f64 x, f64 y) { return __builtin_copysign(x, y); }
CI bool ci_signbit(f32 x) { return (ci_bits(x) >> 31) != 0; }
CI bool ci_signbit(f64 x) { return (ci_bits(x) >> 63) != 0; }

// ---- order, sign, integers ----------------------------------------------------------------------------------------------
// maximum and minimum hand on a NaN of either side, as eager does.
template <class T> CI T ci_maximum(T a, T b) { return a > b || a != a ? a : b; }
template <class T> CI T ci_minimum(T a, T b) { return a < b || a != a ? a : b; }
template <class T> CI T ci_logaddexp(T a, T b) {
  T high = ci_maximum<T>(a, b), low = a > b ? b : a;
  return low == high || high != high || high == (T)CI_INF ? (a == b && ci_abs(a) != (T)CI_INF ? high + (T)0.6931471805599453 : high)
                                                          : high + ci_log1p(ci_exp(low - high));
}
template <class T> CI T ci_sign(T x) { return (T)((x > (T)0) - (x < (T)0)); }
template <class T> CI T ci_abs_integer(T x) { return x < (T)0 ? (T)(-x) : x; }
// An integer divided by zero gives zero and the smallest integer by -1 wraps: neither may trap in a masked-out element.
template <class T> CI T ci_truncdiv(T a, T b) {
  T d = b == 0 || b == (T)-1 ? (T)1 : b, q = (T)(a / d);
  q = b == (T)-1 && (T)-1 < (T)0 ? (T)(0 - a) : (b == (T)-1 ? (T)(a == b) : q);
  return b == 0 ? (T)0 : q;
}
template <class T> CI T ci_truncmod(T a, T b) {
  T q = ci_truncdiv<T>(a, b);
  return b == 0 ? (T)0 : (T)(a - q * b);
}
template <class T> CI T ci_floordiv_signed(T a, T b) {
  T q = ci_truncdiv<T>(a, b), r = (T)(a - q * b);
  return (T)(q - (b != 0 && r != 0 && ((r < 0) != (b < 0))));
}
template <class T> CI T ci_mod_signed(T a, T b) {
  T r = ci_truncmod<T>(a, b);
  return (T)(r != 0 && ((r < 0) != (b < 0)) ? r + b : r);
}
template <class T> CI T ci_shift_left(T a, T b) {
  return (u64)(i64)b < sizeof(T) * 8 ? (T)((u64)a << ((u64)b & 63)) : (T)0;
}
template <class T> CI T ci_shift_right(T a, T b) {
  T full = a < 0 ? (T)-1 : (T)0;
  return (u64)(i64)b < sizeof(T) * 8 ? (T)(a >> ((u64)b & (sizeof(T) * 8 - 1))) : full;
}
template <class T> CI T ci_floordiv_float(T a, T b) {
  T m = ci_fmod(a, b), q = (a - m) / b;
  q = m != (T)0 && ((b < (T)0) != (m < (T)0)) ? q - (T)1 : q;
  T f = ci_floor(q);
  f = q - f > (T)0.5 ? f + (T)1 : f;
  f = q != (T)0 ? f : ci_copysign((T)0, a / b);
  return b == (T)0 ? a / b : f;
}
template <class T> CI T ci_mod_float(T a, T b) {
  T m = ci_fmod(a, b);
  return m != (T)0 && ((b < (T)0) != (m < (T)0)) ? m + b : m;
}
template <class T> CI T ci_pow_integer(T base, T exponent) {
  if ((T)-1 < 0 && exponent < 0) return base == 1 ? (T)1 : (base == (T)-1 ? (exponent % 2 ? (T)-1 : (T)1) : (T)0);
  T result = 1;
  while (exponent) {
    if (exponent & 1) result = (T)(result * base);
    exponent = (T)(exponent >> 1);
    base = (T)(base * base);
  }
  return result;
}
// ---- counter-based random numbers: Philox 4x32 with ten rounds ----------------------------------------------------------
CI u32 ci_high(u32 a, u32 b) { return (u32)(((u64)a * b) >> 32); }
CI void ci_philox(u64 seed, u32 c0, u32 c1, u32 c2, u32 c3, u32 *out) {
  u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; round++) {
    u32 n0 = ci_high(0xCD9E8D57u, c2) ^ c1 ^ k0, n2 = ci_high(0xD2511F53u, c0) ^ c3 ^ k1;
    c1 = 0xCD9E8D57u * c2;
    c3 = 0xD2511F53u * c0;
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

CI f64 ci_unit(u32 high, u32 low, u64 plus) {
  u64 u = (((u64)high << 21) | (low >> 11)) + plus;
  return (f64)(i64)u * 0x1p-53;
}
CI f32 ci_philox_uniform_f32(u64 seed, u64 offset, u64 element) {
  u32 w[4];
  u64 four = element >> 2;  // the words of one counter serve four neighbours
  ci_philox(seed, (u32)four, (u32)(four >> 32), (u32)offset, (u32)(offset >> 32), w);
  u32 low = element & 1 ? w[1] : w[0], high = element & 1 ? w[3] : w[2];
  return (f32)(i32)((element & 2 ? high : low) >> 8) * 0x1p-24f;
}
CI f64 ci_philox_uniform_f64(u64 seed, u64 offset, u64 element) {
  u32 w[4];
  ci_philox(seed, (u32)element, (u32)(element >> 32), (u32)offset, (u32)(offset >> 32), w);
  return ci_unit(w[0], w[1], 0);
}
CI f32 ci_philox_normal_f32(u64 seed, u64 offset, u64 element) {
  u32 w[4];
  ci_philox(seed, (u32)element, (u32)(element >> 32), (u32)offset, (u32)(offset >> 32), w);
  f32 radius = (f32)(i32)((w[0] >> 8) + 1) * 0x1p-24f, angle = (f32)(i32)(w[1] >> 8) * 0x1p-24f;
  return ci_sqrt(ci_log(radius) * -2.0f) * ci_cos(angle * 6.2831853071795864f);
}
CI f64 ci_philox_normal_f64(u64 seed, u64 offset, u64 element) {
  u32 w[4];
  ci_philox(seed, (u32)element, (u32)(element >> 32), (u32)offset, (u32)(offset >> 32), w);
  return ci_sqrt(ci_log(ci_unit(w[0], w[1], 1)) * -2.0) * ci_cos(ci_unit(w[2], w[3], 0) * 6.2831853071795864);
}
CI i64 ci_philox_bits_i64(u64 seed, u64 offset, u64 element) {
  u32 w[4];
  ci_philox(seed, (u32)element, (u32)(element >> 32), (u32)offset, (u32)(offset >> 32), w);
  return (i64)((u64)w[0] | ((u64)w[1] << 32));
}

// ---- sums -------------------------------------------------------------------------------------------------------------
// The sum of N = 8, 16, ..., 64 partial sums, by halves.
template <class T, int N> CI T ci_total(const T *parts) {
  typedef T V __attribute__((vector_size(8 * sizeof(T))));
  V v[N / 8];
  __builtin_memcpy(v, parts, sizeof v);
  for (int width = N / 16; width; width /= 2)
    for (int k = 0; k < width; k++) v[k] += v[k + width];
  const V a = v[0];
  return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}

// ---- tiles ------------------------------------------------------------------------------------------------------------
// A tile of a matrix turned: dst[a][b] = src[b * stride + a]; dst rows are `width` long.
template <class T> static __attribute__((noinline, unused)) void ci_turn(const T *src, i64 stride, T *dst, i64 width,
                                                                        i64 na, i64 nb) {
  typedef T V __attribute__((vector_size(8 * sizeof(T))));
  i64 b = 0;
  for (; b + 8 <= nb; b += 8) {
    i64 a = 0;
    for (; a + 8 <= na; a += 8) {
      V r[8], s[8];
      for (int k = 0; k < 8; k++) __builtin_memcpy(&r[k], src + (b + k) * stride + a, sizeof(V));
      // three rounds of interleaving rows k and k + 4 transpose an 8 x 8 block
      for (int round = 0; round < 3; round++) {
        for (int k = 0; k < 4; k++) {
          s[2 * k] = __builtin_shufflevector(r[k], r[k + 4], 0, 8, 1, 9, 2, 10, 3, 11);
          s[2 * k + 1] = __builtin_shufflevector(r[k], r[k + 4], 4, 12, 5, 13, 6, 14, 7, 15);
        }
        for (int k = 0; k < 8; k++) r[k] = s[k];
      }
      for (int k = 0; k < 8; k++) __builtin_memcpy(dst + (a + k) * width + b, &r[k], sizeof(V));
    }
    for (; a < na; a++)
      for (i64 k = b; k < b + 8; k++) dst[a * width + k] = src[k * stride + a];
  }
  for (; b < nb; b++)
    for (i64 a = 0; a < na; a++) dst[a * width + b] = src[b * stride + a];
}

#ifdef __AVX512F__
typedef long long ci_line __attribute__((vector_size(64)));
// A line written past the caches; the two compilers name the instruction differently.
CI void ci_stream(void *to, ci_line line) {
#ifdef __clang__
  __builtin_nontemporal_store(line, (ci_line *)to);
#else
  __builtin_ia32_movntdq512((ci_line *)to, line);
#endif
}
#endif
// One block of N x N elements turned in registers; past the caches if `stream` and a row of it is a line.
template <class T, int N> CI void ci_turn_block(const T *src, i64 from, T *dst, i64 to, bool stream) {
  typedef T V __attribute__((vector_size(N * sizeof(T))));
  V r[N], s[N];
  for (int k = 0; k < N; k++) __builtin_memcpy(&r[k], src + k * from, sizeof(V));
  for (int round = N; round > 1; round /= 2) { // each interleaves rows k and k + N / 2
    for (int k = 0; k < N / 2; k++) {
      if constexpr (N == 8) {
        s[2 * k] = __builtin_shufflevector(r[k], r[k + 4], 0, 8, 1, 9, 2, 10, 3, 11);
        s[2 * k + 1] = __builtin_shufflevector(r[k], r[k + 4], 4, 12, 5, 13, 6, 14, 7, 15);
      } else {
        s[2 * k] = __builtin_shufflevector(r[k], r[k + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        s[2 * k + 1] =
            __builtin_shufflevector(r[k], r[k + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
      }
    }
    for (int k = 0; k < N; k++) r[k] = s[k];
  }
#ifdef __AVX512F__
  if constexpr (sizeof(V) == 64)
    if (stream) {
      for (int k = 0; k < N; k++) ci_stream(dst + k * to, (ci_line)r[k]);
      return;
    }
#endif
  for (int k = 0; k < N; k++) __builtin_memcpy(dst + k * to, &r[k], sizeof(V));
}
#ifdef __AVX512F__
// Two blocks of 16-bit elements, one after the other: together their rows are lines.
CI void ci_turn_lines(const u16 *src, i64 from, u16 *dst, i64 to) {
  u16 rows[16 * 32] __attribute__((aligned(64)));
  ci_turn_block<u16, 16>(src, from, rows, 32, false);
  ci_turn_block<u16, 16>(src + 16 * from, from, rows + 16, 32, false);
  for (int k = 0; k < 16; k++) ci_stream(dst + k * to, *(const ci_line *)(rows + k * 32));
}
#endif
// A matrix turned: dst[a][b] = src[b][a], rows `from` and `to` elements apart. A result larger than the second cache is
// written past the caches, which otherwise read what is overwritten; 64 rows at a time keep pages and lines at hand.
template <class T> static __attribute__((noinline, unused)) void ci_transpose(const T *src, i64 from, T *dst, i64 to,
                                                                             i64 na, i64 nb, bool stream) {
#ifdef __AVX512F__
  enum { N = sizeof(T) <= 4 ? 16 : 8 };
  stream = stream && sizeof(T) > 1 && ((u64)dst | (u64)(to * (i64)sizeof(T))) % 64 == 0;
#else
  enum { N = 8 };
  stream = false;
#endif
  for (i64 begin = 0; begin < nb; begin += 64) {
    const i64 end = begin + 64 < nb ? begin + 64 : nb;
    i64 a = 0;
    for (; a + N <= na; a += N) {
      i64 b = begin;
#ifdef __AVX512F__
      if constexpr (sizeof(T) == 2)
        for (; stream && b + 32 <= end; b += 32) ci_turn_lines(src + b * from + a, from, dst + a * to + b, to);
#endif
      for (; b + N <= end; b += N) ci_turn_block<T, N>(src + b * from + a, from, dst + a * to + b, to, stream);
      for (; b < end; b++)
        for (i64 k = a; k < a + N; k++) dst[k * to + b] = src[b * from + k];
    }
    for (; a < na; a++)
      for (i64 b = begin; b < end; b++) dst[a * to + b] = src[b * from + a];
  }
#ifdef __AVX512F__
  if (stream) __builtin_ia32_sfence();
#endif
}

// ---- sharing a loop among threads ------------------------------------------------------------------------------------
typedef int (*ci_body)(char *const *, const i64 *, i64, i64, char *const *);
// Runs body over [0, total) in at most `threads` contiguous shares; `rows` holds `count` private rows for each.
static __attribute__((noinline, unused)) int ci_run(ci_body body, char *const *p, const i64 *s, i64 total, i64 threads,
                                                    char *const *rows, i64 count, i64 align) {
  if (threads <= 1) return body(p, s, 0, total, rows);
  u32 bad = 0;
#pragma omp parallel num_threads(threads) reduction(| : bad)
  {
    i64 n = omp_get_num_threads(), t = omp_get_thread_num();
    i64 chunk = ((total + n - 1) / n + align - 1) / align * align, begin = t * chunk, end = begin + chunk;
    end = end < total ? end : total;
    if (begin < end) bad |= (u32)body(p, s, begin, end, rows + t * count);
  }
  return (int)bad;
}

// ---- special functions that libm lacks -------------------------------------------------------------------------------
CI f64 ci_digamma(f64 x) {
  if (x == 0.0) return __builtin_copysign(__builtin_inf(), -x);
  f64 result = 0.0;
  if (x < 0.0) {
    f64 whole = __builtin_trunc(x);
    if (whole == x) return __builtin_nan("");
    f64 rest = x - whole;
    result = -3.14159265358979323846 / __builtin_tan(3.14159265358979323846 * rest);
    x = 1.0 - x;
  }
  while (x < 10.0) {
    result -= 1.0 / x;
    x += 1.0;
  }
  if (x == 10.0) return result + 2.25175258906672110764;
  f64 z = 1.0 / (x * x);
  f64 p = 1.0 / 12;
  p = ci_fma(p, -z, 691.0 / 32760);
  p = ci_fma(p, -z, 1.0 / 132);
  p = ci_fma(p, -z, 1.0 / 240);
  p = ci_fma(p, -z, 1.0 / 252);
  p = ci_fma(p, -z, 1.0 / 120);
  p = ci_fma(p, -z, 1.0 / 12);
  return result + __builtin_log(x) - 0.5 / x - z * p;
}
CI f32 ci_digamma(f32 x) { return (f32)ci_digamma((f64)x); }
// A rational start value, then two steps of Newton's method on erf.
CI f64 ci_erfinv(f64 y) {
  f64 a = __builtin_fabs(y);
  if (!(a <= 1.0)) return __builtin_nan("");
  if (a == 1.0) return __builtin_copysign(__builtin_inf(), y);
  f64 l = __builtin_log1p(-y * y), c = 2.0 / (3.14159265358979323846 * 0.147) + 0.5 * l;
  f64 x = __builtin_copysign(__builtin_sqrt(__builtin_sqrt(c * c - l / 0.147) - c), y);
  for (int step = 0; step < 4; step++) {
    // beyond 0.5 the residual comes from erfc, which keeps its digits near 1
    f64 residual = a < 0.5 ? __builtin_erf(x) - y
                           : ((1.0 - a) - __builtin_erfc(__builtin_fabs(x))) * (y < 0.0 ? -1.0 : 1.0);
    f64 u = residual / (1.1283791670955126 * __builtin_exp(-x * x));
    x -= u / (1.0 + x * u);
  }
  return x;
}
CI f32 ci_erfinv(f32 x) { return (f32)ci_erfinv((f64)x); }

// ---- complex numbers ---------------------------------------------------------------------------------------------------
template <class T> struct ci_complex {
  T re, im;
};
typedef ci_complex<f32> c64;
typedef ci_complex<f64> c128;
#define CI_COMPLEX template <class T> CI
CI_COMPLEX ci_complex<T> operator+(ci_complex<T> a, ci_complex<T> b) { return {a.re + b.re, a.im + b.im}; }
CI_COMPLEX ci_complex<T> operator-(ci_complex<T> a, ci_complex<T> b) { return {a.re - b.re, a.im - b.im}; }
CI_COMPLEX ci_complex<T> operator-(ci_complex<T> a) { return {-a.re, -a.im}; }
CI_COMPLEX ci_complex<T> operator*(ci_complex<T> a, ci_complex<T> b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
CI_COMPLEX ci_complex<T> operator/(ci_complex<T> a, ci_complex<T> b) {
  // scaled by the larger part of the divisor, so that squares neither overflow nor vanish
  bool first = ci_abs(b.re) >= ci_abs(b.im);
  T large = first ? b.re : b.im, small = first ? b.im : b.re, ratio = small / large, scale = large + small * ratio;
  if (large == 0) return {a.re / ci_abs(b.re), a.im / ci_abs(b.im)};
  return first ? ci_complex<T>{(a.re + a.im * ratio) / scale, (a.im - a.re * ratio) / scale}
               : ci_complex<T>{(a.re * ratio + a.im) / scale, (a.im * ratio - a.re) / scale};
}
CI_COMPLEX bool operator==(ci_complex<T> a, ci_complex<T> b) { return a.re == b.re && a.im == b.im; }
CI_COMPLEX bool operator!=(ci_complex<T> a, ci_complex<T> b) { return a.re != b.re || a.im != b.im; }
// The C library's functions have the special values of C's Annex G, as eager does; single precision goes through double.
template <class T> CI _Complex double ci_to_library(ci_complex<T> a) {
  _Complex double z;
  __real__ z = a.re;
  __imag__ z = a.im;
  return z;
}
CI c128 ci_from_library(_Complex double z) { return {__real__ z, __imag__ z}; }
#define CI_LIBM_COMPLEX(name)                                                             \
  CI_COMPLEX ci_complex<T> ci_##name(ci_complex<T> a) {                                    \
    c128 r = ci_from_library(__builtin_c##name(ci_to_library(a)));                         \
    return {(T)r.re, (T)r.im};                                                             \
  }
CI_LIBM_COMPLEX(exp) CI_LIBM_COMPLEX(log) CI_LIBM_COMPLEX(sqrt) CI_LIBM_COMPLEX(sin) CI_LIBM_COMPLEX(cos)
CI_LIBM_COMPLEX(tan) CI_LIBM_COMPLEX(asin) CI_LIBM_COMPLEX(acos) CI_LIBM_COMPLEX(atan) CI_LIBM_COMPLEX(sinh)
CI_LIBM_COMPLEX(cosh) CI_LIBM_COMPLEX(tanh) CI_LIBM_COMPLEX(asinh) CI_LIBM_COMPLEX(acosh) CI_LIBM_COMPLEX(atanh)
#undef CI_LIBM_COMPLEX
CI_COMPLEX ci_complex<T> ci_pow(ci_complex<T> a, ci_complex<T> b) {
  c128 r = ci_from_library(__builtin_cpow(ci_to_library(a), ci_to_library(b)));
  return {(T)r.re, (T)r.im};
}
CI_COMPLEX ci_complex<T> ci_scaled(ci_complex<T> a, T factor) { return {a.re * factor, a.im * factor}; }
CI_COMPLEX ci_complex<T> ci_exp2(ci_complex<T> a) { return ci_exp(ci_scaled<T>(a, (T)0.6931471805599453)); }
CI_COMPLEX ci_complex<T> ci_log2(ci_complex<T> a) { return ci_scaled<T>(ci_log(a), (T)1.4426950408889634); }
CI_COMPLEX ci_complex<T> ci_log10(ci_complex<T> a) { return ci_scaled<T>(ci_log(a), (T)0.4342944819032518); }
CI_COMPLEX ci_complex<T> ci_expm1(ci_complex<T> a) { // exp(a) - 1 without the cancellation towards zero
  f64 half = __builtin_sin(a.im * 0.5), grown = __builtin_expm1(a.re);
  return {(T)(grown * __builtin_cos(a.im) - 2.0 * half * half), (T)((grown + 1.0) * __builtin_sin(a.im))};
}
CI_COMPLEX ci_complex<T> ci_log1p(ci_complex<T> a) {
  f64 re = a.re, im = a.im, size = __builtin_hypot(re, im);
  f64 near = 0.5 * __builtin_log1p(re * (2.0 + re) + im * im), far = __builtin_log(__builtin_hypot(re + 1.0, im));
  return {(T)(size < 0.5 ? near : far), (T)__builtin_atan2(im, re + 1.0)};
}
CI_COMPLEX ci_complex<T> ci_rsqrt(ci_complex<T> a) { return ci_complex<T>{1, 0} / ci_sqrt(a); }
CI_COMPLEX ci_complex<T> ci_sigmoid(ci_complex<T> a) { return ci_complex<T>{1, 0} / (ci_complex<T>{1, 0} + ci_exp(-a)); }
