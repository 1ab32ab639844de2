// The body of Rotate, and how it is started.
#pragma once

#include "gpu/body.h"
#include "gpu/entry.h"
#include "gpu/kernel_table.h"

namespace keel::gpu {

// A team for each row. A lane has two packs, each of whose elements turns with one of the other's,
// or of the same (kInterleaved), or a pack that does not turn, and writes it to the row and to the
// cache.
template <typename T, int P, bool kInterleaved>
struct RotateBody {
  static constexpr int kLanes = 256;
  Rotate a;

  template <class Team>
  KEEL_BODY void operator()(const Team& team, int64_t row) const {
    const int d = static_cast<int>(a.head_dim);
    const int half = static_cast<int>(a.half);
    const int turning = static_cast<int>(a.heads + a.kv_heads);
    const int64_t width = static_cast<int64_t>(turning + a.kv_heads) * d;
    const T* in = static_cast<const T*>(a.in) + row * width;
    T* out = static_cast<T*>(a.out) + row * width;
    const bool cached = a.kv.keys != nullptr && a.kv.slots[row] >= 0;

    // 1. Pairs.
    const int pairs = half / P;  // packs of a head
    if (pairs > 0) {
      const float* cosine = a.cosine + static_cast<int64_t>(a.positions[row]) * half;
      const float* sine = a.sine + static_cast<int64_t>(a.positions[row]) * half;
      team.For(turning * pairs, [&](int64_t item) {
        const int head = static_cast<int>(item) / pairs;
        const int i = (static_cast<int>(item) - head * pairs) * P;
        const int in_head = kInterleaved ? 2 * i : i;
        const int to_high = kInterleaved ? P : half;
        const int at = head * d + in_head;
        Pack<T, P> low = LoadPack<P>(in + at);
        Pack<T, P> high = LoadPack<P>(in + at + to_high);
        const auto element = [&](int k) -> T& { return k < P ? low.at[k] : high.at[k - P]; };
        const Pack<float, P> c = LoadPack<P>(cosine + i);
        const Pack<float, P> s = LoadPack<P>(sine + i);
        for (int k = 0; k < P; ++k) {
          T& first = element(kInterleaved ? 2 * k : k);
          T& second = element(kInterleaved ? 2 * k + 1 : P + k);
          const float x = Load(first);
          const float y = Load(second);
          const float turn = a.direction * s.at[k];
          Store(&first, x * c.at[k] - y * turn);
          Store(&second, y * c.at[k] + x * turn);
        }
        StorePack(out + at, low);
        StorePack(out + at + to_high, high);
        if (cached && head >= a.heads) {
          T* key = Cached(a.kv.keys, row, head - static_cast<int>(a.heads)) + in_head;
          StorePack(key, low);
          StorePack(key + to_high, high);
        }
      });
    }

    // 2. What stays: the rest of the heads that turn, and the values.
    const int rest = (d - 2 * half) / P;
    const int stays = rest * turning;
    const bool copies = a.in != a.out || cached;
    const int items = copies ? stays + d / P * static_cast<int>(a.kv_heads) : 0;
    team.For(items, [&](int64_t item) {
      const bool value = item >= stays;
      const int size = value ? d / P : rest;  // packs of a head
      const int index = static_cast<int>(item) - (value ? stays : 0);
      const int head = index / size;
      const int i = (index - head * size) * P + (value ? 0 : 2 * half);
      const int64_t at = static_cast<int64_t>(value ? turning + head : head) * d + i;
      const Pack<T, P> pack = LoadPack<P>(in + at);
      if (a.in != a.out) StorePack(out + at, pack);
      if (!cached) return;
      if (value) {
        StorePack(Cached(a.kv.values, row, head) + i, pack);
      } else if (head >= a.heads) {
        StorePack(Cached(a.kv.keys, row, head - static_cast<int>(a.heads)) + i, pack);
      }
    });
  }

 private:
  // Where a token's head stands in the cache.
  KEEL_BODY T* Cached(void* blocks, int64_t row, int head) const {
    const int64_t slot = a.kv.slots[row];
    const int64_t block = slot / a.kv.block_size;
    return static_cast<T*>(blocks) +
           ((block * a.kv_heads + head) * a.kv.block_size + slot - block * a.kv.block_size) *
               a.head_dim;
  }
};

template <class Launcher>
void StartRotate(const Rotate& a, Stream stream) {
  WithElement(a.element, [&]<typename T>(T) {
    WithPack<T>({a.head_dim, a.half, a.head_dim - 2 * a.half},
                {a.in, a.out, a.cosine, a.sine, a.kv.keys, a.kv.values}, [&]<int P>(PackSize<P>) {
                  if (a.interleaved) {
                    Launcher::Run(RotateBody<T, P, true>{a}, a.rows, 0, stream);
                  } else {
                    Launcher::Run(RotateBody<T, P, false>{a}, a.rows, 0, stream);
                  }
                });
  });
}

template <class Launcher>
void AddRotationTo(KernelTable& table) {
  table.rotate = StartRotate<Launcher>;
}

}  // namespace keel::gpu
