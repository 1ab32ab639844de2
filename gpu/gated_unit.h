// The bodies of GatedUnit and GatedUnitBackward, and how they are started.
#pragma once

#include "gpu/body.h"
#include "gpu/entry.h"
#include "gpu/kernel_table.h"

namespace keel::gpu {

// A gate is x * Weight(x), a sigmoid of something whose slope at x is Slope(x).
struct SiluGate {
  KEEL_BODY static float Weight(float x) { return 1.0f / (1.0f + Exp(-x)); }
  KEEL_BODY static float Slope(float) { return 1.0f; }
};
// (1 + tanh(u)) / 2 is the sigmoid of 2 u.
struct GeluTanhGate {
  static constexpr float kRoot = 1.5957691216057308f;  // 2 sqrt(2 / pi)
  static constexpr float kCube = 0.044715f;
  KEEL_BODY static float Weight(float x) {
    return SiluGate::Weight(kRoot * (x + kCube * x * x * x));
  }
  KEEL_BODY static float Slope(float x) { return kRoot * (1.0f + 3.0f * kCube * x * x); }
};

// A team for each kItems packs of a row.
template <class G, typename T, int P>
struct GatedUnitBody {
  static constexpr int kLanes = 256;
  GatedUnit a;
  int64_t chunks;  // of a row

  template <class Team>
  KEEL_BODY void operator()(const Team& team, int64_t index) const {
    const int64_t row = index / chunks;
    const int64_t first = (index - row * chunks) * kItems;
    const T* gates = static_cast<const T*>(a.gate_up) + row * 2 * a.n;
    T* out = static_cast<T*>(a.out) + row * a.n;
    team.For(Least(kItems, a.n / P - first), [&](int64_t i) {
      const int64_t at = (first + i) * P;
      Pack<T, P> g = LoadPack<P>(gates + at);
      const Pack<T, P> u = LoadPack<P>(gates + a.n + at);
      for (int k = 0; k < P; ++k) {
        const float x = Load(g.at[k]);
        Store(&g.at[k], x * G::Weight(x) * Load(u.at[k]));
      }
      StorePack(out + at, g);
    });
  }
};

template <class G, typename T, int P>
struct GatedUnitBackwardBody {
  static constexpr int kLanes = 256;
  GatedUnitBackward a;
  int64_t chunks;

  template <class Team>
  KEEL_BODY void operator()(const Team& team, int64_t index) const {
    const int64_t row = index / chunks;
    const int64_t first = (index - row * chunks) * kItems;
    const T* gates = static_cast<const T*>(a.gate_up) + row * 2 * a.n;
    const T* dout = static_cast<const T*>(a.dout) + row * a.n;
    T* dgates = static_cast<T*>(a.dgate_up) + row * 2 * a.n;
    team.For(Least(kItems, a.n / P - first), [&](int64_t i) {
      const int64_t at = (first + i) * P;
      Pack<T, P> g = LoadPack<P>(gates + at);
      Pack<T, P> u = LoadPack<P>(gates + a.n + at);
      const Pack<T, P> d = LoadPack<P>(dout + at);
      for (int k = 0; k < P; ++k) {
        const float x = Load(g.at[k]);
        const float up = Load(u.at[k]);
        const float gradient = Load(d.at[k]);
        const float s = G::Weight(x);
        Store(&g.at[k], gradient * up * s * (1.0f + x * (1.0f - s) * G::Slope(x)));
        Store(&u.at[k], gradient * x * s);
      }
      StorePack(dgates + at, g);
      StorePack(dgates + a.n + at, u);
    });
  }
};

template <class Launcher, template <class, typename, int> class Body, class Args>
void StartGated(const Args& a, std::initializer_list<const void*> pointers, Stream stream) {
  WithElement(a.element, [&]<typename T>(T) {
    WithPack<T>({a.n}, pointers, [&]<int P>(PackSize<P>) {
      const int64_t chunks = Chunks(a.n / P);
      if (a.gate == Gate::kSilu) {
        Launcher::Run(Body<SiluGate, T, P>{a, chunks}, a.rows * chunks, 0, stream);
      } else {
        Launcher::Run(Body<GeluTanhGate, T, P>{a, chunks}, a.rows * chunks, 0, stream);
      }
    });
  });
}

template <class Launcher>
void StartGatedUnit(const GatedUnit& a, Stream stream) {
  StartGated<Launcher, GatedUnitBody>(a, {a.gate_up, a.out}, stream);
}

template <class Launcher>
void StartGatedUnitBackward(const GatedUnitBackward& a, Stream stream) {
  StartGated<Launcher, GatedUnitBackwardBody>(a, {a.gate_up, a.dout, a.dgate_up}, stream);
}

template <class Launcher>
void AddGatedUnitTo(KernelTable& table) {
  table.gated_unit = StartGatedUnit<Launcher>;
  table.gated_unit_backward = StartGatedUnitBackward<Launcher>;
}

}  // namespace keel::gpu
