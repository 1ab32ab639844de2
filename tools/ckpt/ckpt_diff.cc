// keel ckpt diff: what differs between two steps.

#include <fmt/format.h>

#include <ostream>

#include "checkpoint/read/step_reader.h"
#include "checkpoint/tools/differ.h"
#include "common/json.h"
#include "tools/ckpt/ckpt_commands.h"
#include "tools/ckpt/ckpt_paths.h"

namespace keel::tools {
namespace {

using checkpoint::DiffReport;
using checkpoint::TensorDifference;

constexpr int kDiffer = 1;

std::vector<int64_t> List(const Dims& dims) { return {dims.begin(), dims.end()}; }

Json TypeJson(const TensorInfo& tensor) {
  if (tensor.name.empty()) return nullptr;
  return {{"dtype", DTypeName(tensor.dtype)}, {"shape", List(tensor.shape)}};
}

Json ToJson(const TensorDifference& one) {
  const TensorInfo& either = one.a.name.empty() ? one.b : one.a;
  Json json = {{"scope", one.scope},
               {"tensor", either.name},
               {"a", TypeJson(one.a)},
               {"b", TypeJson(one.b)}};
  if (one.kind != TensorDifference::Kind::kValues) return json;
  json["differing"] = one.differing;
  json["box"] = {{"offset", List(one.box.offset)}, {"size", List(one.box.size)}};
  json["max_abs"] = one.max_abs ? Json(*one.max_abs) : Json(nullptr);
  if (one.max_abs) json["at"] = List(one.at);
  json["nan_against_number"] = one.nan_against_number;
  return json;
}

Json ToJson(const DiffReport& report) {
  Json tensors = Json::array();
  for (const TensorDifference& one : report.tensors) tensors.push_back(ToJson(one));
  Json files = Json::array();
  for (const auto& one : report.files)
    files.push_back({{"path", one.path}, {"difference", one.what}});
  return {{"equal", report.equal()},
          {"tensors_in_both", report.tensors_in_both},
          {"equal_by_digest", report.equal_by_digest},
          {"bytes_read", report.bytes_read},
          {"tensors", std::move(tensors)},
          {"files", std::move(files)}};
}

}  // namespace

int CkptDiff(const CkptDiffOptions& options, std::ostream& out, std::ostream& err) {
  const auto place_a = OpenStep(options.a);
  if (!place_a.ok()) return Fail(place_a.status(), err);
  const auto place_b = OpenStep(options.b);
  if (!place_b.ok()) return Fail(place_b.status(), err);
  const auto a = checkpoint::StepReader::Open(*place_a->fs, place_a->directory);
  if (!a.ok()) return Fail(a.status(), err);
  const auto b = checkpoint::StepReader::Open(*place_b->fs, place_b->directory);
  if (!b.ok()) return Fail(b.status(), err);
  checkpoint::DiffOptions diff;
  diff.scope = options.scope;
  diff.threads = options.threads > 0 ? options.threads : Cores();
  const auto report = checkpoint::DiffCheckpoints(*a, *b, diff);
  if (!report.ok()) return Fail(report.status(), err);
  if (options.json) {
    out << ShownJson(ToJson(*report)) << "\n";
    return report->equal() ? 0 : kDiffer;
  }
  for (const TensorDifference& one : report->tensors) out << Shown(one.ToString()) << "\n";
  for (const auto& one : report->files)
    out << fmt::format("{}: {}\n", Shown(one.path), Shown(one.what));
  if (report->equal()) {
    out << "equal: ";
  } else {
    out << fmt::format("{} tensors and {} files differ: ", report->tensors.size(),
                       report->files.size());
  }
  out << fmt::format(
      "{} tensors in both, {} of them equal by the digests that were written with "
      "them, {} read\n",
      report->tensors_in_both, report->equal_by_digest, HumanBytes(report->bytes_read));
  return report->equal() ? 0 : kDiffer;
}

}  // namespace keel::tools
