// The bodies of TokenStatistics and TokenGradient, and how they are started.
#pragma once

#include "gpu/body.h"
#include "gpu/entry.h"
#include "gpu/kernel_table.h"

namespace keel::gpu {

// What a part of a row amounts to, relative to its own maximum.
struct SoftmaxPart {
  float maximum;
  float sum;       // of exp(y)
  float weighted;  // of exp(y) y
};

// The same relative to a maximum that is not lower. A part without elements stays one; its sums are
// 0, unless one of them was no number.
KEEL_BODY SoftmaxPart Moved(const SoftmaxPart& part, float maximum, float temperature) {
  if (part.maximum == -INFINITY) return {maximum, part.sum, part.weighted};
  if (part.maximum == maximum) return part;
  const float below = (part.maximum - maximum) / temperature;
  const float scale = Exp(below);
  return {maximum, part.sum * scale, (part.weighted + part.sum * below) * scale};
}

KEEL_BODY SoftmaxPart Joined(const SoftmaxPart& a, const SoftmaxPart& b, float temperature) {
  const float maximum = b.maximum > a.maximum ? b.maximum : a.maximum;
  const SoftmaxPart x = Moved(a, maximum, temperature);
  const SoftmaxPart y = Moved(b, maximum, temperature);
  return {maximum, x.sum + y.sum, x.weighted + y.weighted};
}

// Of a row's first `columns`. A row's end that fills no pack is read one by one.
template <typename T, int P, class Team>
KEEL_BODY SoftmaxPart SoftmaxOfRow(const Team& team, const T* logits, int64_t columns,
                                   float temperature, bool entropy) {
  return team.Reduce(
      (columns + P - 1) / P, SoftmaxPart{-INFINITY, 0, 0},
      [&](SoftmaxPart& part, int64_t i) {
        const int count = static_cast<int>(Least(P, columns - i * P));
        Pack<T, P> pack;
        if (count == P) {
          pack = LoadPack<P>(logits + i * P);
        } else {
          // What is not there repeats the first, and is not summed.
          for (int k = 0; k < P; ++k) pack.at[k] = logits[i * P + (k < count ? k : 0)];
        }
        float largest = part.maximum;
        for (int k = 0; k < P; ++k) {
          const float x = Load(pack.at[k]);
          largest = x > largest ? x : largest;
        }
        if (largest == -INFINITY) {
          // Of no weight, and distances to it are no numbers. What is no number itself stays one.
          for (int k = 0; k < P; ++k) {
            const float x = Load(pack.at[k]);
            part.sum += x == -INFINITY ? 0.0f : x;
          }
          return;
        }
        part = Moved(part, largest, temperature);
        for (int k = 0; k < P; ++k) {
          const float y = (Load(pack.at[k]) - largest) / temperature;
          const float e = k < count ? Exp(y) : 0.0f;
          part.sum += e;
          if (entropy) part.weighted += e * y;
        }
      },
      [&](const SoftmaxPart& x, const SoftmaxPart& y) { return Joined(x, y, temperature); });
}

// A team for each row.
template <typename T, int P>
struct TokenStatisticsBody {
  static constexpr int kLanes = 256;
  TokenStatistics a;

  template <class Team>
  KEEL_BODY void operator()(const Team& team, int64_t row) const {
    const T* logits = static_cast<const T*>(a.logits) + row * a.stride;
    const int64_t columns = a.columns;
    const SoftmaxPart whole = SoftmaxOfRow<T, P>(team, logits, columns, a.temperature, a.entropy);
    team.For(1, [&](int64_t) {
      float* out = a.statistics + row * (a.entropy ? 4 : 3);
      const int64_t target = a.targets[row];
      out[0] = whole.maximum;
      out[1] = whole.sum;
      out[2] = target >= 0 && target < columns ? Load(logits[target]) : 0.0f;
      if (a.entropy) out[3] = whole.weighted;
    });
  }
};

// A team for each kItems packs of a row.
template <typename T, int P>
struct TokenGradientBody {
  static constexpr int kLanes = 256;
  TokenGradient a;
  int64_t chunks;  // of a row

  template <class Team>
  KEEL_BODY void operator()(const Team& team, int64_t index) const {
    const int64_t row = index / chunks;
    const int64_t first = (index - row * chunks) * kItems;
    T* logits = static_cast<T*>(a.logits) + row * a.stride;
    const int64_t target = a.targets[row];
    const float of_log_prob = a.log_prob_gradient[row] / a.temperature;
    const float of_entropy =
        a.entropy_gradient != nullptr ? a.entropy_gradient[row] / a.temperature : 0.0f;
    const float entropy = a.entropy_gradient != nullptr ? a.entropy[row] : 0.0f;
    const float maximum = a.maximum[row];
    const float log_sum = a.log_sum[row];
    team.For(Least(kItems, a.stride / P - first), [&](int64_t i) {
      const int64_t at = (first + i) * P;
      Pack<T, P> pack = LoadPack<P>(logits + at);
      for (int k = 0; k < P; ++k) {
        // d log p(t) = [i == t] - p_i; d entropy = -p_i (log p_i + entropy).
        const float log_p = (Load(pack.at[k]) - maximum) / a.temperature - log_sum;
        const float p = Exp(log_p);
        const float hit = at + k == target ? 1.0f : 0.0f;
        const float gradient = of_log_prob * (hit - p) - of_entropy * p * (log_p + entropy);
        Store(&pack.at[k], at + k < a.columns ? gradient : 0.0f);
      }
      StorePack(logits + at, pack);
    });
  }
};

template <class Launcher>
void StartTokenStatistics(const TokenStatistics& a, Stream stream) {
  WithElement(a.element, [&]<typename T>(T) {
    WithPack<T>({a.stride}, {a.logits}, [&]<int P>(PackSize<P>) {
      Launcher::Run(TokenStatisticsBody<T, P>{a}, a.rows, 0, stream);
    });
  });
}

template <class Launcher>
void StartTokenGradient(const TokenGradient& a, Stream stream) {
  WithElement(a.element, [&]<typename T>(T) {
    WithPack<T>({a.stride}, {a.logits}, [&]<int P>(PackSize<P>) {
      const int64_t chunks = Chunks(a.stride / P);
      Launcher::Run(TokenGradientBody<T, P>{a, chunks}, a.rows * chunks, 0, stream);
    });
  });
}

template <class Launcher>
void AddVocabSoftmaxTo(KernelTable& table) {
  table.token_statistics = StartTokenStatistics<Launcher>;
  table.token_gradient = StartTokenGradient<Launcher>;
}

}  // namespace keel::gpu
