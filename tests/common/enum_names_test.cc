#include "common/enum_names.h"

#include <gtest/gtest.h>

namespace keel {
namespace {

enum class Shade { kLight, kMiddle, kDark };
constexpr auto NamesOf(Shade) {
  return EnumNames<Shade>(
      {{Shade::kLight, "light"}, {Shade::kMiddle, "middle"}, {Shade::kDark, "dark"}});
}
enum class Unnamed { kOne };

TEST(EnumNames, NamesAndEnumeratorsAreEachOthersInverse) {
  for (const auto& [value, name] : kEnumNames<Shade>) {
    EXPECT_EQ(NameOf(value), name);
    EXPECT_EQ(ParseName<Shade>(name), value);
  }
  EXPECT_EQ(NameOf(Shade::kMiddle), "middle");
  EXPECT_EQ(AllNames<Shade>(), (std::vector<std::string>{"light", "middle", "dark"}));
  for (const char* other : {"", "Light", "light ", "lightdark"})
    EXPECT_EQ(ParseName<Shade>(other), std::nullopt) << other;
  static_assert(!NamedEnum<Unnamed>);
  static_assert(!NamedEnum<int>);
}

// Each of these lists stops the compiler where kEnumNames asks NamesAll.
TEST(EnumNames, AListThatDoesNotNameEveryEnumeratorOnceIsRefused) {
  static_assert(NamesAll(NamesOf(Shade{})));
  static_assert(!NamesAll(EnumNames<Shade>({{Shade::kLight, "light"}, {Shade::kMiddle, "middle"}})),
                "the last has no name");
  static_assert(!NamesAll(EnumNames<Shade>({{Shade::kLight, "light"}, {Shade::kDark, "dark"}})),
                "one in the middle has no name");
  static_assert(
      !NamesAll(EnumNames<Shade>(
          {{Shade::kMiddle, "middle"}, {Shade::kLight, "light"}, {Shade::kDark, "dark"}})),
      "in another order");
  static_assert(!NamesAll(EnumNames<Shade>(
                    {{Shade::kLight, "light"}, {Shade::kMiddle, "light"}, {Shade::kDark, "dark"}})),
                "one name for two");
  static_assert(!NamesAll(EnumNames<Shade>(
                    {{Shade::kLight, ""}, {Shade::kMiddle, "middle"}, {Shade::kDark, "dark"}})),
                "no name at all");
  static_assert(IsEnumerator<Shade::kDark>() && !IsEnumerator<static_cast<Shade>(3)>());
}

}  // namespace
}  // namespace keel
