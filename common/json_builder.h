// BuildJson: the parser behind ParseJson (common/json.h), and by itself for files that Python's
// json has written.
#pragma once

#include <string>
#include <string_view>

#include "common/json.h"
#include "common/status.h"

namespace keel {

// Which numbers there are. Python's json writes and reads two kinds more than the format has:
// integers that neither int64 nor uint64 holds (transformers writes 10^30 as the model_max_length
// of a tokenizer that has none), of which the nearest double is taken, and NaN, Infinity and
// -Infinity.
enum class JsonNumbers { kStandard, kPython };

// ParseJson for an object of which not all members are wanted: one of the outermost object in which
// such a number stands is set apart, and is nothing that any reader takes. What Json::dump writes
// of it is of no use: such rows are written by DumpRow.
Result<Json> ParseRow(std::string_view text, std::string_view where);
// What is wrong within a member that was set apart, as ParseJson would say it; "" for any other.
std::string WhySetApart(const Json& member);
// A row on a line, for whoever gets back what he gave: members that were set apart as they stood,
// and doubles that are not finite as Python's json writes them.
std::string DumpRow(const Json& row);

// ParseJson's contract, but for such numbers.
Result<Json> BuildJson(std::string_view text, std::string_view where, const JsonLimits& limits,
                       JsonNumbers numbers);

// Of a config.json and what stands beside it. What is no number arrives as a double that is not
// finite, which whoever reads a key has to refuse, and which Json::dump writes as null.
inline Result<Json> ParsePythonJson(std::string_view text, std::string_view where) {
  return BuildJson(text, where, {}, JsonNumbers::kPython);
}

}  // namespace keel
