// Enums that people choose by name: in the configuration, on a command line, in a document.
//
// The names stand beside the enum, each with its enumerator, in the enum's order:
//
//   enum class Shade { kLight, kDark };
//   constexpr auto NamesOf(Shade) {
//     return EnumNames<Shade>({{Shade::kLight, "light"}, {Shade::kDark, "dark"}});
//   }
//
// An enumerator without a name, or a name that stands twice, does not compile where names are used.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace keel {

template <typename E>
struct EnumName {
  E value;
  std::string_view name;
};

template <typename E, size_t n>
constexpr std::array<EnumName<E>, n> EnumNames(const EnumName<E> (&names)[n]) {
  return std::to_array(names);
}

template <typename E>
concept NamedEnum = std::is_enum_v<E> && requires {
  NamesOf(E{});
};

// The compiler writes an enumerator by its name, "... = keel::Shade::kDark]", and any other value
// as a number, "... = (keel::Shade)2]". There is no other way to ask it.
template <auto value>
constexpr bool IsEnumerator() {
  constexpr std::string_view self = __PRETTY_FUNCTION__;
  constexpr char first = self[self.find_last_of(":) ") + 1];
  return first < '0' || first > '9';
}

// Whether the list has every enumerator of E once, in order, and no name twice.
template <typename E, size_t n>
constexpr bool NamesAll(const std::array<EnumName<E>, n>& names) {
  for (size_t i = 0; i < n; ++i) {
    if (names[i].value != static_cast<E>(i) || names[i].name.empty()) return false;
    for (size_t k = 0; k < i; ++k) {
      if (names[k].name == names[i].name) return false;
    }
  }
  return !IsEnumerator<static_cast<E>(n)>();
}

template <NamedEnum E>
constexpr auto CheckedNames() {
  constexpr auto names = NamesOf(E{});
  static_assert(NamesAll(names), "NamesOf: expected each enumerator once, in the enum's order");
  return names;
}
template <NamedEnum E>
inline constexpr auto kEnumNames = CheckedNames<E>();

template <NamedEnum E>
constexpr std::string_view NameOf(E value) {
  return kEnumNames<E>[static_cast<size_t>(value)].name;
}

template <NamedEnum E>
constexpr std::optional<E> ParseName(std::string_view text) {
  for (const auto& [value, name] : kEnumNames<E>) {
    if (name == text) return value;
  }
  return std::nullopt;
}

// In the enum's order; for lists in messages.
template <NamedEnum E>
std::vector<std::string> AllNames() {
  std::vector<std::string> all;
  for (const auto& [value, name] : kEnumNames<E>) all.emplace_back(name);
  return all;
}

}  // namespace keel
