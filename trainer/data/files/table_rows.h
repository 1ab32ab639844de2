// TableRows: the rows of a Parquet file, as the JSON objects that a file of JSON Lines would have.
//
// Arrow, which reads it, is in the module keel_arrow (libkeel_arrow.so), built where the pyarrow
// wheel is and opened when such a file is named.
#pragma once

#include <memory>
#include <string>

#include "common/json.h"
#include "common/status.h"

namespace keel::trainer {

class TableRows {
 public:
  virtual ~TableRows() = default;
  // The next row; false at the end. kInvalidData names the file, and the row and column where one
  // is wrong; kExhausted where a batch of rows takes more than kMostTableBytes.
  virtual Result<bool> Next(Json* row) = 0;
};

// Of all that Arrow holds at once for one file.
inline constexpr int64_t kMostTableBytes = int64_t{4} << 30;

bool IsTable(const std::string& path);  // by its name: .parquet
// kNotFound, kInvalidData; kUnavailable, with what to install, where there is no module.
Result<std::unique_ptr<TableRows>> OpenTable(const std::string& path);

// What the module exports, by this name.
inline constexpr const char* kOpenTableSymbol = "KeelArrowOpenTable";
using OpenTableFunction = void (*)(const std::string& path,
                                   Result<std::unique_ptr<TableRows>>* opened);
// The version of Keel that the module is of, a C string.
inline constexpr const char* kArrowVersionSymbol = "KeelArrowVersion";

}  // namespace keel::trainer
