// Whether the program was built with a sanitizer, under which everything takes ten times as long.
#pragma once

namespace keel::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kRacesAreSeen = true;
#else
inline constexpr bool kRacesAreSeen = false;
#endif

}  // namespace keel::testing
