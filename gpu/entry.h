// What the functions of a table choose before they start a kernel: the element's type and the
// number of neighbours that are read at once. The same for both tables.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "gpu/element.h"

namespace keel::gpu {

// f(float{}) or f(uint16_t{}).
template <class F>
void WithElement(Element element, F&& f) {
  if (element == Element::kF32) {
    f(float{});
  } else {
    f(uint16_t{});
  }
}

template <int P>
struct PackSize {
  static constexpr int kValue = P;
};

// f(PackSize<16 / sizeof(T)>) where every length is a multiple of that and every pointer of 16
// bytes, else f(PackSize<1>).
template <typename T, class F>
void WithPack(std::initializer_list<int64_t> lengths, std::initializer_list<const void*> pointers,
              F&& f) {
  constexpr int kPack = 16 / static_cast<int>(sizeof(T));
  bool fits = true;
  for (const int64_t length : lengths) fits = fits && length % kPack == 0;
  for (const void* pointer : pointers)
    fits = fits && reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  if (fits) {
    f(PackSize<kPack>());
  } else {
    f(PackSize<1>());
  }
}

// Teams of 256 lanes take this many items each, where items are dealt out alone.
inline constexpr int64_t kItems = 1024;
inline int64_t Chunks(int64_t items) { return (items + kItems - 1) / kItems; }

}  // namespace keel::gpu
