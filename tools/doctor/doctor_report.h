// DoctorReport: the lines of keel doctor.
#pragma once

#include <fmt/format.h>

#include <string>

#include "common/text.h"

namespace keel::tools {

class DoctorReport {
 public:
  void Fact(const char* name, const std::string& value) {
    fmt::print("  {:<14} {}\n", name, PrintableLines(value));
  }
  void Fault(const char* name, const std::string& value) {
    fmt::print("! {:<14} {}\n", name, PrintableLines(value));
    ++faults_;
  }
  int faults() const { return faults_; }

 private:
  int faults_ = 0;
};

}  // namespace keel::tools
