#include "parallel/groups/hang_report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "common/process/host_name.h"

namespace keel::parallel {
namespace {

using std::chrono::milliseconds;

// Beyond the patience: for whoever looks to tell the others, and for a store under load.
constexpr milliseconds kForTheAnswer(2'000);
constexpr size_t kMostNamed = 8;

std::string WhereKey(int rank) { return fmt::format("where/{}", rank); }
std::string GaveUpKey(int rank) { return fmt::format("gave_up/{}", rank); }

// By whoever gave up first, for all: what there is to say.
std::string Look(const Store& store, int world, milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  std::vector<std::string> silent;
  for (int r = 0; r < world; ++r) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now());
    if (store.Get(GaveUpKey(r), std::max(left, milliseconds(0))).ok()) continue;
    const Result<std::string> where = store.Get(WhereKey(r), milliseconds(0));
    silent.push_back(where.ok() ? fmt::format("rank {} ({})", r, *where)
                                : fmt::format("rank {}", r));
  }
  if (silent.empty()) return "every rank has given up a wait: they wait for each other";
  const size_t named = std::min(silent.size(), kMostNamed);
  std::string text = fmt::format("{}", fmt::join(silent.begin(), silent.begin() + named, ", "));
  if (named < silent.size()) text += fmt::format(" and {} others", silent.size() - named);
  return fmt::format("{} did not give up as well within {} ms: look there for what hangs", text,
                     patience.count());
}

}  // namespace

HangReport::HangReport(const Store& store, int rank, int world)
    : store_(store.WithPrefix("hang")), rank_(rank), world_(world) {
  (void)store_.Set(WhereKey(rank), fmt::format("host {}, pid {}", HostName(), getpid()));
}

std::string HangReport::GiveUp(const Status& cause, milliseconds patience) const {
  const bool asks = cause.code() == StatusCode::kDeadlineExceeded;
  // A store whose process hangs keeps its callers, so that the asking is left behind with it.
  std::packaged_task<std::string()> ask(
      [store = store_, rank = rank_, world = world_, patience, asks]() -> std::string {
        if (!store.Set(GaveUpKey(rank), "").ok() || !asks) return {};
        const Result<int64_t> order = store.Add("order", 1);
        if (!order.ok()) return {};
        if (*order > 1) {
          Result<std::string> found = store.Get("found", patience + kForTheAnswer);
          return found.ok() ? std::move(found).value() : std::string();
        }
        std::string found = Look(store, world, patience);
        (void)store.Set("found", found);
        return found;
      });
  std::future<std::string> answer = ask.get_future();
  std::thread(std::move(ask)).detach();
  const milliseconds longest = asks ? patience + 2 * kForTheAnswer : kForTheAnswer;
  if (answer.wait_for(longest) == std::future_status::ready) return answer.get();
  if (!asks) return {};
  return "the job's store does not answer either: look at the process that serves it (the "
         "launcher, or rank 0 where that has none)";
}

}  // namespace keel::parallel
