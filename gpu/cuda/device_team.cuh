// DeviceTeam: a warp or a block of threads that work on one body together; host_team.h says what a
// team has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace keel::gpu {

// A value of 4-byte words, each as `shuffle` gives it.
template <class State, class Shuffle>
__device__ __forceinline__ State ShuffledWords(const State& state, Shuffle shuffle) {
  static_assert(sizeof(State) % 4 == 0);
  union Words {
    State state;
    uint32_t at[sizeof(State) / 4];
    __device__ Words() {}
  } words;
  words.state = state;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(State) / 4); ++i)
    words.at[i] = shuffle(words.at[i]);
  return words.state;
}

// That of the lane `distance` above.
template <class State>
__device__ __forceinline__ State FromLaneAbove(const State& state, int distance) {
  return ShuffledWords(
      state, [=](uint32_t word) { return __shfl_down_sync(0xffffffffu, word, distance); });
}

template <class State>
__device__ __forceinline__ State FromFirstLane(const State& state) {
  return ShuffledWords(state, [](uint32_t word) { return __shfl_sync(0xffffffffu, word, 0); });
}

template <int Lanes>
class DeviceTeam {
  static_assert(Lanes == 32 || Lanes == 256);

 public:
  static constexpr int kLanes = Lanes;
  __device__ explicit DeviceTeam(std::byte* shared) : shared_(shared) {}

  template <class F>
  __device__ __forceinline__ void For(int64_t n, F&& f) const {
    for (int64_t i = Lane(); i < n; i += Lanes) f(i);
  }

  template <class State, class Step, class Join>
  __device__ __forceinline__ State Reduce(int64_t n, const State& start, Step&& step,
                                          Join&& join) const {
    State state = start;
    for (int64_t i = Lane(); i < n; i += Lanes) step(state, i);
#pragma unroll
    for (int half = 16; half > 0; half /= 2) state = join(state, FromLaneAbove(state, half));
    // The first of 32 neighbours has their sum.
    if constexpr (Lanes == 32) {
      return FromFirstLane(state);
    } else {
      __shared__ State of_warps[Lanes / 32];
      Sync();  // those before have been read
      if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = state;
      Sync();
      State total = of_warps[0];
#pragma unroll
      for (int warp = 1; warp < Lanes / 32; ++warp) total = join(total, of_warps[warp]);
      return total;
    }
  }

  template <class F>
  __device__ __forceinline__ auto Sum(int64_t n, F&& f) const {
    using Number = std::decay_t<decltype(f(n))>;
    return Reduce(
        n, Number{0}, [&](Number& sum, int64_t i) { sum += f(i); },
        [](Number a, Number b) { return a + b; });
  }

  __device__ __forceinline__ void Sync() const {
    if constexpr (Lanes == 32) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  template <typename T>
  __device__ __forceinline__ T* Shared() const {
    return reinterpret_cast<T*>(shared_);
  }

 private:
  __device__ __forceinline__ static int64_t Lane() { return threadIdx.x % Lanes; }

  std::byte* shared_;
};

}  // namespace keel::gpu
