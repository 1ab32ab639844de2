#include "trainer/data/sample.h"

#include <algorithm>

namespace keel::trainer {

int64_t Sample::targets() const {
  int64_t count = std::count(learn.begin(), learn.end(), 1);
  for (const int64_t first : pieces) count -= learn[static_cast<size_t>(first)];
  return count;
}

}  // namespace keel::trainer
