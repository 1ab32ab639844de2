#include "tests/checkpoint/simulation/weather.h"

#include <fmt/format.h>

namespace keel::checkpoint::testing {

Weather Weather::Draw(Dice& dice, int world, SimTime deadline) {
  Weather weather;
  const auto one_of = [&](double a, double b) { return dice.Chance(0.5) ? a : b; };
  if (dice.Chance(0.35)) weather.disk_error = one_of(0.005, 0.03);
  if (dice.Chance(0.15)) weather.disk_hiccup = 0.003;
  if (dice.Chance(0.2)) weather.cache_loss = 0.01;
  weather.short_writes = dice.Chance(0.5);
  if (dice.Chance(0.2)) weather.store_loss = one_of(0.01, 0.05);
  if (dice.Chance(0.15)) weather.store_error = 0.01;
  if (dice.Chance(0.2)) weather.store_delay = one_of(0.01, 0.05);
  if (dice.Chance(0.2)) weather.cancel = 0.6;
  if (dice.Chance(0.2)) weather.reckless = 0.3;
  if (dice.Chance(0.75)) {
    weather.end = dice.Chance(0.4) ? End::kRank : End::kMachine;
    weather.rank =
        weather.end == End::kRank || dice.Chance(0.5) ? static_cast<int>(dice.Below(world)) : -1;
    const double when = dice.Fraction();
    weather.when = when < 0.7 ? When::kDiskCall : when < 0.85 ? When::kStoreCall : When::kTime;
    // Early ones too: they hit the start itself.
    weather.count = 1 + dice.Below(dice.Chance(0.3) ? 40 : 600);
    if (weather.when == When::kStoreCall) weather.count = 1 + weather.count / 10;
    weather.time = dice.About(deadline / 4);
  }
  return weather;
}

std::string Weather::Describe() const {
  std::string text = fmt::format(
      "disk: error {} hiccup {} cache {}{}, store: loss {} error {} delay {}, cancel {}, reckless "
      "{}",
      disk_error, disk_hiccup, cache_loss, short_writes ? " short" : "", store_loss, store_error,
      store_delay, cancel, reckless);
  if (end == End::kNone) return text;
  text += end == End::kRank ? fmt::format("; rank {} dies", rank) : "; the power goes";
  if (when == When::kTime) return text + fmt::format(" at {:.3f} s", Seconds(time));
  return text + fmt::format(" at {} call {}{}", when == When::kDiskCall ? "disk" : "store", count,
                            rank < 0 ? "" : fmt::format(" of rank {}", rank));
}

}  // namespace keel::checkpoint::testing
