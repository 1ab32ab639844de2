// StepOrder: which positions the next step takes, and how old the weights may be that begin and go
// on with the samples of others.
//
// In order, a step takes the next `batch` open positions, complete. The sample at position p is
// trained at the latest as step
//
//     Due(p) = steps taken + open positions before p / batch
//
// (counted from 0; sooner where a step takes several batches and filters them), and this never
// grows. Weights that hold the updates of s steps may begin or go on with it while
// Due(p) - s <= max_staleness. So no token that is trained is older than that many steps, by
// construction: nothing has to be thrown away for its age, and no response has an advantage for
// being short.
//
// With `ready_first` a step takes the complete positions that must be trained soonest. What the
// weights of s steps began is trained at the latest as step
//
//     Limit(p) = max_staleness + the smallest s of its samples,
//
// and a step takes its batch only where those that stay can all keep their limits: the i-th of
// them, by limit and counted from 0, has one of at least the next step + i / batch. Else it waits
// for those that are in the way. New samples are begun while all that are begun, and they, fit so
// into steps up to the new ones' limit. The bound is the same, a straggler holds a step only when
// its own limit has come, and a position once begun is put off by no more than max_staleness steps.
// With max_staleness 0 all of a batch have the present step as their limit: it is in order.
//
// A look at a stream's options and ledger, which must outlive it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/status.h"
#include "trainer/desk/desk_options.h"
#include "trainer/desk/ledger.h"

namespace keel::trainer::desk {

class StepOrder {
 public:
  StepOrder(const DeskOptions& options, const Ledger& ledger)
      : options_(options), ledger_(ledger) {}

  // In order: the last step that may train it.
  int64_t Due(int64_t position) const;

  // By position: the last step that may train what is begun of it. Positions of which nothing is
  // begun are not there.
  using Limits = std::map<int64_t, int64_t>;
  // Of what the ledger has tokens of.
  Limits LimitsOfBegun() const;
  // Weights of that version, which the ledger knows, begin a sample of the position.
  void Begin(int64_t position, int64_t version, Limits* limits) const;
  // kInvalidData: something in the ledger would be too old when it is trained, even if nothing is
  // waited for.
  Status CheckAges() const;
  // With ready_first: whether a sample without tokens may be begun by weights of so many steps.
  bool Fits(int64_t position, int64_t steps, const Limits& limits) const;

  // The positions that the next step takes, in order or by `limits` of all that is begun; none:
  // they are not there yet.
  std::vector<int64_t> NextInOrder() const;
  std::vector<int64_t> NextReady(Limits limits) const;

 private:
  const DeskOptions& options_;
  const Ledger& ledger_;
};

}  // namespace keel::trainer::desk
