// The bodies of PagedAttention, and how they are started (Flash-Decoding, Dao et al. 2023, over
// paged memory, Kwon et al. 2023).
#pragma once

#include <algorithm>

#include "gpu/body.h"
#include "gpu/entry.h"
#include "gpu/kernel_table.h"

namespace keel::gpu {

KEEL_BODY float Tanh(float x) { return 1.0f - 2.0f / (1.0f + Exp(2.0f * x)); }

// Positions [begin, end) of a part that a token at `position` sees.
struct SeenPositions {
  int64_t begin, end;
};
KEEL_BODY SeenPositions Seen(int64_t position, int64_t window, int64_t part) {
  const int64_t first = window > 0 && position >= window ? position - window + 1 : 0;
  const int64_t begin = part * kAttentionPart;
  return {begin < first ? first : begin, Least(begin + kAttentionPart, position + 1)};
}

// Query heads that are computed beside each other, so that keys and values are read once for them.
inline constexpr int kHeads = 4;
struct OfHeads {
  float at[kHeads];
};

// A team for each token, key/value head and part of the positions.
template <typename T, int P>
struct AttentionPartBody {
  static constexpr int kLanes = 256;
  PagedAttention a;
  int64_t parts;

  // Memory of a team, in floats.
  static constexpr int64_t kWeights = kHeads * kAttentionPart;
  static int64_t SharedFloats(int64_t d) {
    return kHeads * d + kWeights + kHeads * std::max<int64_t>(d, P * kLanes);
  }

  template <class Team>
  KEEL_BODY void operator()(const Team& team, int64_t index) const {
    const int64_t part = index % parts;
    const int64_t kv_head = index / parts % a.kv_heads;
    const int64_t token = index / parts / a.kv_heads;
    const SeenPositions seen = Seen(a.positions[token], a.window, part);
    const int64_t count = seen.end - seen.begin;
    if (count <= 0) return;
    const int64_t d = a.head_dim;
    const int group = static_cast<int>(a.heads / a.kv_heads);
    const int32_t* table = a.blocks + a.sequences[token] * a.table_width;
    const T* q_row = static_cast<const T*>(a.qkv) + a.rows[token] * (a.heads + 2 * a.kv_heads) * d;
    float* q = team.template Shared<float>();  // [kHeads, d]
    float* weights = q + kHeads * d;           // [kHeads, kAttentionPart]
    float* slices = weights + kWeights;        // [kHeads, slices, d]

    for (int first = 0; first < group; first += kHeads) {
      const int64_t head = kv_head * group + first;
      const int heads = static_cast<int>(Least(kHeads, group - first));
      // 1. The queries; those of heads that are not there are 0.
      team.For(kHeads * d,
               [&](int64_t i) { q[i] = i < heads * d ? Load(q_row[head * d + i]) : 0.0f; });
      team.Sync();

      // 2. Scores, a position each lane, and their maximum.
      const OfHeads maximum = team.Reduce(
          count, OfHeads{{-INFINITY, -INFINITY, -INFINITY, -INFINITY}},
          [&](OfHeads& largest, int64_t j) {
            const T* key = Cached(a.keys, table, seen.begin + j, kv_head);
            float dots[kHeads] = {};
            for (int64_t i = 0; i < d; i += P) {
              const Pack<T, P> k = LoadPack<P>(key + i);
              for (int g = 0; g < kHeads; ++g) {
                for (int e = 0; e < P; ++e)
                  dots[g] = FusedMultiplyAdd(q[g * d + i + e], Load(k.at[e]), dots[g]);
              }
            }
            for (int g = 0; g < kHeads; ++g) {
              float score = dots[g] * a.scale;
              if (a.softcap > 0) score = a.softcap * Tanh(score / a.softcap);
              weights[g * kAttentionPart + j] = score;
              largest.at[g] = score > largest.at[g] ? score : largest.at[g];
            }
          },
          [](const OfHeads& x, const OfHeads& y) {
            OfHeads larger = x;
            for (int g = 0; g < kHeads; ++g) larger.at[g] = y.at[g] > x.at[g] ? y.at[g] : x.at[g];
            return larger;
          });

      // 3. Weights and their sum. A lane reads the scores that it wrote itself. What multiplies the
      // values is rounded, as in the attention that trains (Dao 2023), so that the two stay close.
      const OfHeads sum = team.Reduce(
          count, OfHeads{{0, 0, 0, 0}},
          [&](OfHeads& total, int64_t j) {
            for (int g = 0; g < kHeads; ++g) {
              const float weight = Exp(weights[g * kAttentionPart + j] - maximum.at[g]);
              total.at[g] += weight;
              weights[g * kAttentionPart + j] = Rounded<T>(weight);
            }
          },
          [](const OfHeads& x, const OfHeads& y) {
            OfHeads both = x;
            for (int g = 0; g < kHeads; ++g) both.at[g] += y.at[g];
            return both;
          });
      team.Sync();

      // 4. Values: a lane has P dims of each head, and every count_slices-th position.
      const int packs = static_cast<int>(d) / P;
      const int count_slices = packs < kLanes ? kLanes / packs : 1;
      team.For(static_cast<int64_t>(packs) * count_slices, [&](int64_t item) {
        const int slice = static_cast<int>(item) / packs;
        const int i = (static_cast<int>(item) - slice * packs) * P;
        float sums[kHeads][P] = {};
        for (int64_t j = slice; j < count; j += count_slices) {
          const Pack<T, P> v = LoadPack<P>(Cached(a.values, table, seen.begin + j, kv_head) + i);
          for (int g = 0; g < kHeads; ++g) {
            const float weight = weights[g * kAttentionPart + j];
            for (int e = 0; e < P; ++e)
              sums[g][e] = FusedMultiplyAdd(weight, Load(v.at[e]), sums[g][e]);
          }
        }
        for (int g = 0; g < kHeads; ++g) {
          for (int e = 0; e < P; ++e) slices[(g * count_slices + slice) * d + i + e] = sums[g][e];
        }
      });
      team.Sync();
      float* kept = a.scratch + ((token * a.heads + head) * parts + part) * (d + 2);
      const int64_t to_next = parts * (d + 2);  // head
      team.For(heads * d, [&](int64_t item) {
        const int64_t g = item / d;
        const int64_t i = item - g * d;
        float total = 0;
        for (int slice = 0; slice < count_slices; ++slice)
          total += slices[(g * count_slices + slice) * d + i];
        kept[g * to_next + i] = total;
      });
      team.For(1, [&](int64_t) {
        for (int g = 0; g < kHeads; ++g) {
          if (g >= heads) continue;
          kept[g * to_next + d] = maximum.at[g];
          kept[g * to_next + d + 1] = sum.at[g];
        }
      });
      team.Sync();
    }
  }

 private:
  KEEL_BODY const T* Cached(const void* blocks, const int32_t* table, int64_t position,
                            int64_t head) const {
    const int64_t place = position / a.block_size;
    return static_cast<const T*>(blocks) +
           ((table[place] * a.kv_heads + head) * a.block_size + position - place * a.block_size) *
               a.head_dim;
  }
};

// A team for each token and head: the parts that it sees, in their order.
template <typename T>
struct AttentionJoinBody {
  static constexpr int kLanes = 32;
  PagedAttention a;
  int64_t parts;

  template <class Team>
  KEEL_BODY void operator()(const Team& team, int64_t index) const {
    const int64_t token = index / a.heads;
    const int64_t head = index - token * a.heads;
    const int64_t d = a.head_dim;
    const int64_t position = a.positions[token];
    const int64_t begin =
        a.window > 0 && position >= a.window ? (position - a.window + 1) / kAttentionPart : 0;
    const int64_t end = position / kAttentionPart + 1;
    const float* kept = a.scratch + index * parts * (d + 2);
    const float sink = a.sinks != nullptr ? a.sinks[head] : -INFINITY;
    float maximum = sink;
    for (int64_t part = begin; part < end; ++part) {
      const float of_part = kept[part * (d + 2) + d];
      maximum = of_part > maximum ? of_part : maximum;
    }
    T* out = static_cast<T*>(a.out) + (a.rows[token] * a.heads + head) * d;
    team.For(d, [&](int64_t i) {
      float sum = 0;
      float weights = a.sinks != nullptr ? Exp(sink - maximum) : 0.0f;
      for (int64_t part = begin; part < end; ++part) {
        const float* of_part = kept + part * (d + 2);
        const float scale = Exp(of_part[d] - maximum);
        sum += of_part[i] * scale;
        weights += of_part[d + 1] * scale;
      }
      Store(&out[i], sum / weights);
    });
  }
};

template <class Launcher>
void StartPagedAttention(const PagedAttention& a, Stream stream) {
  const int64_t parts = a.parts();
  WithElement(a.element, [&]<typename T>(T) {
    WithPack<T>({a.head_dim}, {a.keys, a.values}, [&]<int P>(PackSize<P>) {
      using Body = AttentionPartBody<T, P>;
      Launcher::Run(Body{a, parts}, a.tokens * a.kv_heads * parts,
                    Body::SharedFloats(a.head_dim) * static_cast<int64_t>(sizeof(float)), stream);
    });
    Launcher::Run(AttentionJoinBody<T>{a, parts}, a.tokens * a.heads, 0, stream);
  });
}

template <class Launcher>
void AddPagedAttentionTo(KernelTable& table) {
  table.paged_attention = StartPagedAttention<Launcher>;
}

}  // namespace keel::gpu
