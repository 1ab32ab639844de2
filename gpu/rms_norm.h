// The bodies of RmsNorm and RmsNormBackward, and how they are started.
#pragma once

#include "gpu/block_memory.h"
#include "gpu/body.h"
#include "gpu/entry.h"
#include "gpu/kernel_table.h"

namespace keel::gpu {

// Of the vector `index`: its first element's place in x.
KEEL_BODY int64_t PlaceOf(const Vectors& v, int64_t index) {
  const int64_t row = index / v.groups;
  return row * v.stride + (index - row * v.groups) * v.n;
}

// A team for each vector.
template <typename T, int P, int Lanes>
struct RmsNormBody {
  static constexpr int kLanes = Lanes;
  RmsNorm a;

  template <class Team>
  KEEL_BODY void operator()(const Team& team, int64_t index) const {
    const int64_t place = PlaceOf(a.vectors, index);
    const int64_t packs = a.vectors.n / P;
    const T* x = static_cast<const T*>(a.x) + place;
    if (a.add != nullptr) {
      const T* add = static_cast<const T*>(a.add) + place;
      T* sum = static_cast<T*>(a.sum) + place;
      team.For(packs, [&](int64_t i) {
        Pack<T, P> s = LoadPack<P>(x + i * P);
        const Pack<T, P> y = LoadPack<P>(add + i * P);
        for (int k = 0; k < P; ++k) Store(&s.at[k], Load(s.at[k]) + Load(y.at[k]));
        StorePack(sum + i * P, s);
      });
      x = sum;  // each lane reads what it wrote itself
    }
    const float squares = team.Sum(packs, [&](int64_t i) {
      const Pack<T, P> p = LoadPack<P>(x + i * P);
      float sum = 0;
      for (int k = 0; k < P; ++k) sum += Load(p.at[k]) * Load(p.at[k]);
      return sum;
    });
    const float r = 1.0f / sqrtf(squares / static_cast<float>(a.vectors.n) + a.eps);
    const T* weight = static_cast<const T*>(a.weight);
    T* out = static_cast<T*>(a.out) + place;
    team.For(packs, [&](int64_t i) {
      Pack<T, P> p = LoadPack<P>(x + i * P);
      const Pack<T, P> w = LoadPack<P>(weight + i * P);
      for (int k = 0; k < P; ++k) Store(&p.at[k], Load(p.at[k]) * r * (a.offset + Load(w.at[k])));
      StorePack(out + i * P, p);
    });
    if (a.rstd != nullptr) team.For(1, [&](int64_t) { a.rstd[index] = r; });
  }
};

// With h = x * r: dx = r * (w dy - h * mean(w dy h)), dw += dy h. A team for each part of the
// vectors; a lane has the same columns of all of them, so that it sums their gradient alone.
template <typename T, int P, int Lanes>
struct RmsNormBackwardBody {
  static constexpr int kLanes = Lanes;
  RmsNormBackward a;
  int64_t count;  // vectors
  int64_t parts;
  bool in_shared;  // a part's sums

  template <class Team>
  KEEL_BODY void operator()(const Team& team, int64_t part) const {
    const int64_t n = a.vectors.n;
    const int64_t packs = n / P;
    const T* weight = static_cast<const T*>(a.weight);
    float* kept = a.scratch + part * n;
    float* sums = in_shared ? team.template Shared<float>() : kept;
    team.For(packs, [&](int64_t i) {
      for (int k = 0; k < P; ++k) sums[i * P + k] = 0;
    });
    const int64_t end = count * (part + 1) / parts;
    for (int64_t v = count * part / parts; v < end; ++v) {
      const int64_t place = PlaceOf(a.vectors, v);
      const T* dy = static_cast<const T*>(a.dy) + place;
      const T* x = static_cast<const T*>(a.x) + place;
      const T* dsum = a.dsum != nullptr ? static_cast<const T*>(a.dsum) + place : nullptr;
      T* dx = static_cast<T*>(a.dx) + place;
      const float r = a.rstd[v];
      const float dot = team.Sum(packs, [&](int64_t i) {
        const Pack<T, P> g = LoadPack<P>(dy + i * P);
        const Pack<T, P> p = LoadPack<P>(x + i * P);
        const Pack<T, P> w = LoadPack<P>(weight + i * P);
        float sum = 0;
        for (int k = 0; k < P; ++k)
          sum += Load(g.at[k]) * (a.offset + Load(w.at[k])) * Load(p.at[k]);
        return sum;
      });
      const float mean = dot * r / static_cast<float>(n);
      team.For(packs, [&](int64_t i) {
        Pack<T, P> g = LoadPack<P>(dy + i * P);
        const Pack<T, P> p = LoadPack<P>(x + i * P);
        const Pack<T, P> w = LoadPack<P>(weight + i * P);
        Pack<T, P> more = {};
        if (dsum != nullptr) more = LoadPack<P>(dsum + i * P);
        for (int k = 0; k < P; ++k) {
          const float h = Load(p.at[k]) * r;
          const float gradient = Load(g.at[k]);
          sums[i * P + k] += gradient * h;
          const float own = r * (gradient * (a.offset + Load(w.at[k])) - h * mean);
          // Rounded before it is added, as two operations would.
          Store(&g.at[k], dsum != nullptr ? Rounded<T>(own) + Load(more.at[k]) : own);
        }
        StorePack(dx + i * P, g);
      });
    }
    if (in_shared) {
      team.For(packs, [&](int64_t i) {
        for (int k = 0; k < P; ++k) kept[i * P + k] = sums[i * P + k];
      });
    }
  }
};

// into[c] += the sum of parts[p, c] over p, in 8 slices, which are summed in order. A team for
// each 32 columns.
struct ColumnSumBody {
  static constexpr int kLanes = 256;
  static constexpr int64_t kColumns = 32;
  static constexpr int64_t kSlices = kLanes / kColumns;
  const float* parts;
  int64_t count;
  int64_t n;
  float* into;

  template <class Team>
  KEEL_BODY void operator()(const Team& team, int64_t index) const {
    float* slices = team.template Shared<float>();
    team.For(kLanes, [&](int64_t lane) {
      const int64_t column = index * kColumns + lane % kColumns;
      float sum = 0;
      if (column < n) {
        for (int64_t p = lane / kColumns; p < count; p += kSlices) sum += parts[p * n + column];
      }
      slices[lane] = sum;
    });
    team.Sync();
    team.For(Least(kColumns, n - index * kColumns), [&](int64_t lane) {
      float sum = 0;
      for (int64_t slice = 0; slice < kSlices; ++slice) sum += slices[slice * kColumns + lane];
      into[index * kColumns + lane] += sum;
    });
  }
};

// A warp is enough for short vectors.
template <class Launcher, template <typename, int, int> class Body, typename T, int P,
          class... More>
void RunByLength(int64_t n, int64_t teams, int64_t shared, Stream stream, const More&... more) {
  if (n / P <= 128) {
    Launcher::Run(Body<T, P, 32>{more...}, teams, shared, stream);
  } else {
    Launcher::Run(Body<T, P, 256>{more...}, teams, shared, stream);
  }
}

template <class Launcher>
void StartRmsNorm(const RmsNorm& a, Stream stream) {
  const Vectors& v = a.vectors;
  WithElement(a.element, [&]<typename T>(T) {
    WithPack<T>({v.n, v.stride}, {a.x, a.add, a.sum, a.weight, a.out}, [&]<int P>(PackSize<P>) {
      RunByLength<Launcher, RmsNormBody, T, P>(v.n, v.count(), 0, stream, a);
    });
  });
}

template <class Launcher>
void StartRmsNormBackward(const RmsNormBackward& a, Stream stream) {
  const Vectors& v = a.vectors;
  const int64_t parts = WeightGradientParts(v);
  if (parts == 0) return;
  WithElement(a.element, [&]<typename T>(T) {
    WithPack<T>({v.n, v.stride}, {a.dy, a.x, a.dsum, a.weight, a.dx}, [&]<int P>(PackSize<P>) {
      const int64_t bytes = v.n * static_cast<int64_t>(sizeof(float));
      const int64_t teams_of_block = v.n / P <= 128 ? 8 : 1;
      const bool in_shared = bytes * teams_of_block <= kBlockMemory;
      RunByLength<Launcher, RmsNormBackwardBody, T, P>(v.n, parts, in_shared ? bytes : 0, stream, a,
                                                       v.count(), parts, in_shared);
    });
  });
  Launcher::Run(ColumnSumBody{a.scratch, parts, v.n, a.weight_gradient},
                (v.n + ColumnSumBody::kColumns - 1) / ColumnSumBody::kColumns,
                ColumnSumBody::kLanes * static_cast<int64_t>(sizeof(float)), stream);
}

template <class Launcher>
void AddRmsNormTo(KernelTable& table) {
  table.rms_norm = StartRmsNorm<Launcher>;
  table.rms_norm_backward = StartRmsNormBackward<Launcher>;
}

}  // namespace keel::gpu
