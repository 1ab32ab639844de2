// The bodies of AdamW and SumOfSquares, and how they are started.
#pragma once

#include "gpu/body.h"
#include "gpu/entry.h"
#include "gpu/kernel_table.h"

namespace keel::gpu {

// A team for each kItems packs.
template <int P>
struct AdamWBody {
  static constexpr int kLanes = 256;
  AdamW a;

  template <class Team>
  KEEL_BODY void operator()(const Team& team, int64_t index) const {
    const int64_t first = index * kItems;
    team.For(Least(kItems, a.n / P - first), [&](int64_t i) {
      const int64_t at = (first + i) * P;
      const Pack<float, P> gradient = LoadPack<P>(a.gradient + at);
      Pack<float, P> value = LoadPack<P>(a.master + at);
      Pack<float, P> m = LoadPack<P>(a.exp_avg + at);
      Pack<float, P> v = LoadPack<P>(a.exp_avg_sq + at);
      Pack<uint16_t, P> weight;
      for (int k = 0; k < P; ++k) {
        const float g = gradient.at[k] * a.gradient_scale;
        m.at[k] = m.at[k] + (g - m.at[k]) * a.beta1_rest;
        v.at[k] = a.beta2 * v.at[k] + a.beta2_rest * g * g;
        const float denominator = sqrtf(v.at[k]) / a.bias_correction2_sqrt + a.eps;
        value.at[k] = value.at[k] * a.kept - a.step_size * m.at[k] / denominator;
        Store(&weight.at[k], value.at[k]);
      }
      StorePack(a.master + at, value);
      StorePack(a.exp_avg + at, m);
      StorePack(a.exp_avg_sq + at, v);
      if (a.weight != nullptr) StorePack(a.weight + at, weight);
    });
  }
};

// A team for each piece.
template <int P>
struct SumOfSquaresBody {
  static constexpr int kLanes = 256;
  SumOfSquares a;

  template <class Team>
  KEEL_BODY void operator()(const Team& team, int64_t piece) const {
    const float* x = a.x + piece * kSumPiece;
    const int64_t n = Least(kSumPiece, a.n - piece * kSumPiece);
    const double sum = team.Sum(n / P, [&](int64_t i) {
      const Pack<float, P> pack = LoadPack<P>(x + i * P);
      double squares = 0;
      for (int k = 0; k < P; ++k)
        squares += static_cast<double>(pack.at[k]) * static_cast<double>(pack.at[k]);
      return squares;
    });
    team.For(1, [&](int64_t) { a.partial[piece] = sum; });
  }
};

template <class Launcher>
void StartAdamW(const AdamW& a, Stream stream) {
  WithPack<float>(
      {a.n}, {a.gradient, a.master, a.exp_avg, a.exp_avg_sq, a.weight},
      [&]<int P>(PackSize<P>) { Launcher::Run(AdamWBody<P>{a}, Chunks(a.n / P), 0, stream); });
}

template <class Launcher>
void StartSumOfSquares(const SumOfSquares& a, Stream stream) {
  WithPack<float>({a.n}, {a.x}, [&]<int P>(PackSize<P>) {
    Launcher::Run(SumOfSquaresBody<P>{a}, SumPieces(a.n), 0, stream);
  });
}

template <class Launcher>
void AddAdamWTo(KernelTable& table) {
  table.adamw = StartAdamW<Launcher>;
  table.sum_of_squares = StartSumOfSquares<Launcher>;
}

}  // namespace keel::gpu
