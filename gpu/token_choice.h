// The body of TokenChoice, and how it is started.
//
// A filter keeps the tokens whose logits are above a border, and of those that stand on it the
// first by id. Where the border is, is found by halving the range of all numbers: 32 readings of
// the row, which the cache holds, instead of a sort. The drawn token is found by sums of 256 parts
// of the row, then of 256 parts of one of these, and so on.
#pragma once

#include "gpu/body.h"
#include "gpu/entry.h"
#include "gpu/kernel_table.h"
#include "gpu/vocab_softmax.h"

namespace keel::gpu {

// Ordered as the numbers are; the two zeros have one key.
KEEL_BODY uint32_t OrderKey(float x) {
  const uint32_t bits = BitsOf(x + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
KEEL_BODY float NumberOf(uint32_t key) {
  return FloatOf((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// The highest number for which enough(number) holds, which it does for `low` and for no number
// above one for which it does not.
template <class Enough>
KEEL_BODY uint32_t HighestEnough(uint32_t low, uint32_t high, Enough&& enough) {
  while (low < high) {
    const uint32_t middle = low + (high - low - 1) / 2 + 1;
    if (enough(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// The tokens that a draw is made from, of a row by whose likeliest token weights are relative.
template <typename T>
struct KeptTokens {
  const T* logits;
  int64_t count;  // of ids
  float largest;
  float temperature;
  uint32_t border = 0;  // keys above it are kept, and
  int64_t end = 0;      // those equal to it of ids before this
  double least = 0;     // that a token weighs

  KEEL_BODY uint32_t Key(int64_t id) const { return OrderKey(Load(logits[id])); }
  KEEL_BODY double WeightOf(float logit) const {
    return static_cast<double>(Exp((logit - largest) / temperature));
  }
  // 0 where it is not kept.
  KEEL_BODY double Weight(int64_t id) const {
    const float logit = Load(logits[id]);
    const uint32_t key = OrderKey(logit);
    if (key < border || (key == border && id >= end)) return 0;
    const double weight = WeightOf(logit);
    return weight < least ? 0 : weight;
  }

  template <class Team>
  KEEL_BODY int64_t CountFrom(const Team& team, uint32_t key) const {
    return team.Sum(count, [&](int64_t id) -> int64_t { return Key(id) >= key ? 1 : 0; });
  }
  template <class Team>
  KEEL_BODY double MassFrom(const Team& team, uint32_t key) const {
    return team.Sum(count, [&](int64_t id) -> double { return Key(id) >= key ? Weight(id) : 0; });
  }
  // Of tokens on the border those beyond the first `most` are kept no longer.
  template <class Team>
  KEEL_BODY void KeepOnBorder(const Team& team, int64_t most) {
    const auto before = [&](int64_t last) {
      return team.Sum(last,
                      [&](int64_t id) -> int64_t { return Key(id) == border && id < end ? 1 : 0; });
    };
    if (before(count) <= most) return;
    end = HighestEnough(0, static_cast<uint32_t>(count),
                        [&](uint32_t last) { return before(last) <= most; });
  }

  template <class Team>
  KEEL_BODY void KeepTopK(const Team& team, int64_t k) {
    border = HighestEnough(0, 0xffffffffu, [&](uint32_t key) { return CountFrom(team, key) >= k; });
    KeepOnBorder(team, k - CountFrom(team, border + 1));
  }
  template <class Team>
  KEEL_BODY void KeepTopP(const Team& team, double top_p) {
    const double target = top_p * MassFrom(team, 0);
    const double of_all = MassFrom(team, border + 1);
    if (of_all >= target) {
      border = HighestEnough(border + 1, 0xffffffffu,
                             [&](uint32_t key) { return MassFrom(team, key) >= target; });
      end = count;
    }
    const double above = MassFrom(team, border + 1);
    const double some = ceil((target - above) / WeightOf(NumberOf(border)));
    const double most = some < 1 ? 1 : some;
    if (most < static_cast<double>(count)) KeepOnBorder(team, static_cast<int64_t>(most));
  }
};

struct LikeliestToken {
  uint32_t key;
  uint32_t id;
};

struct DrawnToken {
  int64_t id;
  double mass;  // of all that are kept
};

// The first id at which the sum of weights passes uniform * mass, by parts of parts of the row.
template <typename T, class Team>
KEEL_BODY DrawnToken DrawnFrom(const Team& team, const KeptTokens<T>& kept, double uniform) {
  double* sums = team.template Shared<double>();
  int64_t begin = 0;
  int64_t end = kept.count;
  double before = 0;
  double mass = 0;
  double target = 0;
  while (end - begin > 1) {
    const int64_t width = (end - begin + Team::kLanes - 1) / Team::kLanes;
    team.For(Team::kLanes, [&](int64_t part) {
      const int64_t last = Least(end, begin + (part + 1) * width);
      double sum = 0;
      for (int64_t id = begin + part * width; id < last; ++id) sum += kept.Weight(id);
      sums[part] = sum;
    });
    team.Sync();
    if (begin == 0 && end == kept.count) {
      for (int part = 0; part < Team::kLanes; ++part) mass += sums[part];
      target = uniform * mass;
    }
    int64_t chosen = 0;
    double sum = before;
    for (int part = 0; part < Team::kLanes; ++part) {
      if (sums[part] == 0) continue;
      chosen = part;
      before = sum;
      sum += sums[part];
      if (sum > target) break;
    }
    team.Sync();  // before the sums are written anew
    begin += chosen * width;
    end = Least(end, begin + width);
  }
  return {begin, kept.count > 1 ? mass : 1};
}

// A team for each choice.
template <typename T, int P>
struct TokenChoiceBody {
  static constexpr int kLanes = 256;
  TokenChoice a;

  template <class Team>
  KEEL_BODY void operator()(const Team& team, int64_t index) const {
    const RowChoice& by = a.choices[index];
    const T* logits = static_cast<const T*>(a.logits) + by.row * a.stride;
    const SoftmaxPart policy =
        SoftmaxOfRow<T, P>(team, logits, a.columns, by.policy_temperature, false);
    float* parts = a.parts + index * kChoiceParts;
    if (!(policy.maximum - policy.maximum == 0 && policy.sum - policy.sum == 0)) {
      team.For(1, [&](int64_t) {
        a.tokens[index] = -1;
        for (int part = 0; part < kChoiceParts; ++part) parts[part] = 0;
      });
      return;
    }
    const LikeliestToken likeliest = team.Reduce(
        a.vocabulary, LikeliestToken{0, 0xffffffffu},
        [&](LikeliestToken& best, int64_t id) {
          const uint32_t key = OrderKey(Load(logits[id]));
          if (key > best.key) best = {key, static_cast<uint32_t>(id)};
        },
        [](const LikeliestToken& x, const LikeliestToken& y) {
          return x.key > y.key || (x.key == y.key && x.id < y.id) ? x : y;
        });
    KeptTokens<T> kept{logits, a.vocabulary, NumberOf(likeliest.key), by.temperature};
    kept.end = a.vocabulary;
    DrawnToken drawn{static_cast<int64_t>(likeliest.id), 1};
    if (by.temperature > 0) {
      if (by.top_k > 0 && by.top_k < a.vocabulary) kept.KeepTopK(team, by.top_k);
      if (by.top_p < 1) kept.KeepTopP(team, by.top_p);
      kept.least = by.min_p;
      drawn = DrawnFrom(team, kept, by.uniform);
    }
    team.For(1, [&](int64_t) {
      const float logit = Load(logits[drawn.id]);
      a.tokens[index] = static_cast<int32_t>(drawn.id);
      parts[kPolicyDistance] = (logit - policy.maximum) / by.policy_temperature;
      parts[kPolicySum] = policy.sum;
      parts[kDrawnDistance] = by.temperature > 0 ? (logit - kept.largest) / by.temperature : 0.0f;
      parts[kDrawnSum] = static_cast<float>(drawn.mass);
    });
  }
};

template <class Launcher>
void StartTokenChoice(const TokenChoice& a, Stream stream) {
  WithElement(a.element, [&]<typename T>(T) {
    WithPack<T>({a.stride}, {a.logits}, [&]<int P>(PackSize<P>) {
      using Body = TokenChoiceBody<T, P>;
      Launcher::Run(Body{a}, a.count, Body::kLanes * sizeof(double), stream);
    });
  });
}

template <class Launcher>
void AddTokenChoiceTo(KernelTable& table) {
  table.token_choice = StartTokenChoice<Launcher>;
}

}  // namespace keel::gpu
