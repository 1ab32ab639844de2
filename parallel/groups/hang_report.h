// HangReport: which rank hangs, when others have waited for it in vain.
//
// A rank whose wait has run past its deadline knows its neighbours in that operation, which may
// only be waiting too. Over the job's store the ranks that give up find out together who does not.
#pragma once

#include <chrono>
#include <string>

#include "common/status.h"
#include "parallel/store/store.h"

namespace keel::parallel {

class HangReport {
 public:
  // Tells the others where this rank runs. Not collective, as is all of this.
  HangReport(const Store& store, int rank, int world);

  // This rank ends on `cause`. Of a deadline that has passed: which ranks have not given up within
  // `patience` after the first one, as words to add to the message; "" where that cannot be known.
  // For other causes it is "", once the others can see that this rank waits no more. Returns even
  // if the store does not answer; then it says that.
  std::string GiveUp(const Status& cause, std::chrono::milliseconds patience) const;

 private:
  Store store_;
  int rank_;
  int world_;
};

}  // namespace keel::parallel
