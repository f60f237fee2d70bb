// What loops in strips call between their steps: 32 or 64 neighbours at once, by instructions that the compiler's
// vectoriser doesn't know, or in loops of its own where the machine lacks those. Comes after `prelude.h` in units that
// need it. Invariant: each value is the one that `prelude.h`'s function of one number gives, NaN's payload aside.
// `to` and `from` are arrays of the loop, which the compiler keeps in registers.
#define CI_STRIP template <int N> CI void
#if defined(__AVX512F__) && !defined(__clang__)
CI ci_f32x16 ci_load_16(const f32 *from) {
  ci_f32x16 x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}
CI void ci_store_16(f32 *to, ci_f32x16 x) { __builtin_memcpy(to, &x, sizeof x); }
#endif
#if defined(__AVX512BF16__) && defined(__AVX512DQ__) && !defined(__clang__)
static __attribute__((noinline, unused)) void ci_narrow_bf16_any(u16 *to, const f32 *from, int n) {
  for (int k = 0; k < n; k++) to[k] = ci_to_bf16(from[k]);
}
// The instruction takes subnormal numbers for zero: strips that have some go the long way.
CI_STRIP ci_narrow_bf16(u16 *to, const f32 *from) {
  u32 subnormal = 0;
  for (int k = 0; k < N; k += 16)
    subnormal |= (u16)__builtin_ia32_fpclassps512_mask(ci_load_16(from + k), 0x20, (u16)-1);
  if (__builtin_expect(subnormal == 0, 1)) {
    for (int k = 0; k < N; k += 16) {
      const auto half = __builtin_ia32_cvtneps2bf16_v16sf(ci_load_16(from + k));
      __builtin_memcpy(to + k, &half, sizeof half);
    }
    return;
  }
  f32 kept[N];
  for (int k = 0; k < N; k += 16) ci_store_16(kept + k, ci_load_16(from + k));
  ci_narrow_bf16_any(to, kept, N);
}
#else
CI_STRIP ci_narrow_bf16(u16 *to, const f32 *from) {
#pragma omp simd
  for (int k = 0; k < N; k++) to[k] = ci_to_bf16(from[k]);
}
#endif
CI_STRIP ci_narrow_f16(u16 *to, const f32 *from) {
#if defined(__AVX512F__) && !defined(__clang__)
  typedef short ci_i16x16 __attribute__((vector_size(32)));
  for (int k = 0; k < N; k += 16) {
    const auto half = __builtin_ia32_vcvtps2ph512_mask(ci_load_16(from + k), 0, ci_i16x16{}, (u16)-1);
    __builtin_memcpy(to + k, &half, sizeof half);
  }
#else
#pragma omp simd
  for (int k = 0; k < N; k++) to[k] = ci_to_f16(from[k]);
#endif
}

// As stores past the caches, if they are to be and `to` is the beginning of a line; `ci_streamed` puts them before what follows.
CI_STRIP ci_stream_lines(void *to, const void *from, bool past) {
#if defined(__AVX512F__)
  if (past && ((u64)to & 63) == 0) {
    for (int k = 0; k < N; k += 64) {
      ci_line line;
      __builtin_memcpy(&line, (const char *)from + k, 64);
      ci_stream((char *)to + k, line);
    }
    return;
  }
#endif
  __builtin_memcpy(to, from, N);
}
CI_STRIP ci_stream_f32(f32 *to, const f32 *from, bool past = true) { ci_stream_lines<N * 4>(to, from, past); }
CI_STRIP ci_stream_bf16(u16 *to, const f32 *from, bool past = true) {
  u16 half[N] __attribute__((aligned(64)));
  ci_narrow_bf16<N>(half, from);
  ci_stream_lines<N * 2>(to, half, past);
}
CI_STRIP ci_stream_f16(u16 *to, const f32 *from, bool past = true) {
  u16 half[N] __attribute__((aligned(64)));
  ci_narrow_f16<N>(half, from);
  ci_stream_lines<N * 2>(to, half, past);
}
// Neighbours as floats, those at even places first: halves of words, which takes two instructions for two vectors.
CI_STRIP ci_widen_bf16(f32 *to, const u16 *from) {
  typedef u32 ci_words __attribute__((vector_size(64)));
  for (int k = 0; k < N; k += 32) {
    ci_words both;
    __builtin_memcpy(&both, from + k, sizeof both);
    const ci_words even = both << 16, odd = both & 0xffff0000u;
    __builtin_memcpy(to + k, &even, sizeof even);
    __builtin_memcpy(to + k + 16, &odd, sizeof odd);
  }
}

CI void ci_streamed() {
#if defined(__AVX512F__)
  __builtin_ia32_sfence();
#endif
}

CI_STRIP ci_exp_strip(f32 *to, const f32 *from) {
#if defined(__AVX512F__) && !defined(__clang__)
  for (int k = 0; k < N; k += 16) { // as `ci_exp`; one instruction scales by 2^n and rounds once
    const ci_f32x16 x = ci_load_16(from + k), zero = {};
    ci_f32x16 c = __builtin_ia32_maxps512_mask(zero - 104.0f, x, zero, (u16)-1, 4); // hands on NaN
    c = __builtin_ia32_minps512_mask(zero + 89.0f, c, zero, (u16)-1, 4);
    const ci_f32x16 n = (c * 0x1.715476p+0f + 0x1.8p23f) - 0x1.8p23f;
    const ci_f32x16 r = n * -0x1.7f7d1cp-20f + (n * -0x1.62e400p-1f + c), s = r * r;
    ci_f32x16 high = r * 0.0083678095f + 0.04166725f;
    high = s * (s * (s * 0.001386349f + high) + (r * 0.16666532f + 0.5f)) + r + 1.0f;
    ci_store_16(to + k, __builtin_ia32_scalefps512_mask(high, n, zero, (u16)-1, 4));
  }
#else
#pragma omp simd
  for (int k = 0; k < N; k++) to[k] = ci_exp(from[k]);
#endif
}

#define CI_CIRCULAR_STRIP(name)                                             \
  CI_STRIP ci_##name##_strip(f32 *to, const f32 *from) {                    \
    u32 large = 0;                                                          \
    _Pragma("omp simd reduction(| : large)") for (int k = 0; k < N; k++)    \
        large |= __builtin_fabsf(from[k]) > CI_NEAR;                        \
    if (__builtin_expect(large == 0, 1)) {                                  \
      _Pragma("omp simd") for (int k = 0; k < N; k++) to[k] = ci_##name##_near(from[k]); \
    } else {                                                                \
      for (int k = 0; k < N; k++) to[k] = ci_##name(from[k]);               \
    }                                                                       \
  }
CI_CIRCULAR_STRIP(sin)
CI_CIRCULAR_STRIP(cos)
CI_CIRCULAR_STRIP(tan)
#undef CI_CIRCULAR_STRIP

#ifdef CI_STRIP_ERF
#if defined(__AVX512F__) && !defined(__clang__)
CI_STRIP ci_erf_strip(f32 *to, const f32 *from) {
  for (int k = 0; k < N; k += 16) ci_store_16(to + k, ci_erf_pieces(ci_load_16(from + k)));
}
#else
CI_STRIP ci_erf_strip(f32 *to, const f32 *from) {
#pragma omp simd
  for (int k = 0; k < N; k++) to[k] = ci_erf_series(from[k]);
}
#endif
#endif
