// Resharding and comparing: the same values in other files, and what differs where.
#include "checkpoint/tools/reshard.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "checkpoint/read/box_stream.h"
#include "checkpoint/read/verifier.h"
#include "checkpoint/run/run_lock.h"
#include "checkpoint/run/tracker.h"
#include "checkpoint/tools/differ.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

StepReader Open(const FileSystem& fs, const std::string& step) {
  return ValueOrThrow(StepReader::Open(fs, step));
}

// A disk with the state of `seed`, saved by `world` ranks as step 10.
std::unique_ptr<SimFileSystem> Saved(int world, uint64_t seed, uint64_t layout,
                                     const std::function<void(SaveRequest&)>& change = {}) {
  auto disk = std::make_unique<SimFileSystem>();
  LayoutOptions options;
  options.world = world;
  options.one_box_per_rank = layout % 2 == 0;
  Cut cut(options, layout);
  cut.Fill(MakeTrainingState(seed));
  ThrowIfError(SaveOn(*disk, cut, 10, SmallOptions(), change));
  return disk;
}

Result<ReshardReport> Reshard(const FileSystem& from, FileSystem& to, int world,
                              const StepReader* like = nullptr) {
  const StepReader source = Open(from, "global_step_10");
  Logger log(Quiet());
  ReshardOptions options;
  options.world = world;
  options.like = like;
  options.memory_bytes = 5 * 4096;  // several slabs a tensor
  return ReshardCheckpoint(source, to, SystemClock(), log, options);
}

TEST(Slabs, FollowEachOtherInRowMajorOrder) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    const auto dims = static_cast<int>(random() % 5);
    Box box{Dims::Filled(dims, 0), Dims::Filled(dims, 0)};
    Dims shape = Dims::Filled(dims, 0);
    for (int d = 0; d < dims; ++d) {
      box.offset[d] = static_cast<int64_t>(random() % 3);
      box.size[d] = 1 + static_cast<int64_t>(random() % 6);
      shape[d] = box.offset[d] + box.size[d];
    }
    const auto most = static_cast<int64_t>(1 + random() % 40);
    // The linear numbers within the box, slab by slab, count up.
    const Dims strides = ContiguousStrides(box.size);
    int64_t next = 0;
    for (const Box& slab : CutIntoSlabs(box, most)) {
      EXPECT_LE(slab.elements(), most);
      EXPECT_TRUE(box.Contains(slab));
      Dims at = slab.offset;
      for (int64_t i = 0; i < slab.elements(); ++i) {
        int64_t linear = 0;
        for (int d = 0; d < dims; ++d) linear += (at[d] - box.offset[d]) * strides[d];
        EXPECT_EQ(linear, next++);
        for (int d = dims - 1; d >= 0; --d) {
          if (++at[d] < slab.offset[d] + slab.size[d]) break;
          at[d] = slab.offset[d];
        }
      }
    }
    EXPECT_EQ(next, box.elements());
    if (HasFailure()) return;
  }
}

TEST(Reshard, AnyNumberOfFilesHoldsTheSameValues) {
  const TrainingState state = MakeTrainingState(3);
  for (const int from : {1, 4}) {
    const auto disk = Saved(from, 3, static_cast<uint64_t>(from),
                            [](SaveRequest& request) { request.metric = 0.5; });
    const Manifest before = Open(*disk, "global_step_10").manifest();
    for (const int world : {1, 2, 3, 8, 40}) {
      SimFileSystem target;
      const auto report = Reshard(*disk, target, world);
      ASSERT_TRUE(report.ok()) << report.status().ToString();
      EXPECT_THAT(VerifyCheckpoint(target, "global_step_10", 1).problems, IsEmpty());
      EXPECT_EQ(ReadTracker(target), std::optional<int64_t>(10));
      // A load at yet another layout, with the trainer's own checks.
      Cut cut({3}, 77);
      cut.Clear(0);
      const auto loaded = LoadFrom(target, cut);
      ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
      EXPECT_EQ(cut.FirstDifference(state), "");
      EXPECT_EQ((*loaded)->documents.at("trainer_state.json"), "{\"step\": 10}\n");
      const Manifest after = Open(target, "global_step_10").manifest();
      EXPECT_EQ(after.metric, before.metric);
      EXPECT_EQ(after.run_id, before.run_id);
      EXPECT_EQ(after.config_digest, before.config_digest);
      EXPECT_NE(after.save_id, before.save_id);
      EXPECT_TRUE(ValueOrThrow(DiffCheckpoints(Open(*disk, "global_step_10"),
                                               Open(target, "global_step_10"), {}))
                      .equal());
    }
  }
}

TEST(Reshard, FilesAreBalancedByBytes) {
  const auto disk = Saved(3, 3, 2);
  SimFileSystem target;
  const int world = 4;
  ThrowIfError(Reshard(*disk, target, world).status());
  const StepReader reader = Open(target, "global_step_10");
  const Index& index = reader.index();
  std::map<std::string, std::map<int, int64_t>> bytes;  // scope, file
  std::map<std::string, int64_t> longest_row;
  for (int64_t t = 0; t < index.tensors(); ++t) {
    const IndexTensor tensor = index.tensor(t);
    const std::string scope(index.scope_name(tensor.scope));
    std::set<int> files;
    for (int64_t b = tensor.first_box; b < tensor.first_box + tensor.box_count; ++b) {
      bytes[scope][index.box(b).file] += index.box(b).bytes;
      EXPECT_TRUE(files.insert(index.box(b).file).second) << tensor.name;
    }
    const int64_t whole = tensor.shape.elements() * DTypeSize(tensor.dtype);
    const int64_t rows = tensor.shape.size() > 0 ? tensor.shape[0] : 1;
    longest_row[scope] = std::max(longest_row[scope], whole / rows);
  }
  for (const auto& [scope, by_file] : bytes) {
    EXPECT_EQ(by_file.size(), static_cast<size_t>(world)) << scope;
    int64_t total = 0;
    for (const auto& [file, size] : by_file) total += size;
    for (const auto& [file, size] : by_file)
      EXPECT_LE(std::abs(size - total / world), longest_row[scope] + 1) << scope << " " << file;
  }
}

TEST(Reshard, TakesTheFilesOfAnother) {
  const auto disk = Saved(4, 3, 2);
  const auto pattern = Saved(3, 9, 5);
  const StepReader like = Open(*pattern, "global_step_10");
  SimFileSystem target;
  const auto report = Reshard(*disk, target, 1, &like);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(VerifyCheckpoint(target, "global_step_10", 1).problems, IsEmpty());
  const StepReader after = Open(target, "global_step_10");
  ASSERT_EQ(after.index().boxes(), like.index().boxes());
  for (int64_t b = 0; b < like.index().boxes(); ++b) {
    EXPECT_EQ(after.index().box(b).box, like.index().box(b).box);
    EXPECT_EQ(after.index().box(b).begin, like.index().box(b).begin);
  }
  EXPECT_EQ(after.manifest().layout, like.manifest().layout);
  EXPECT_TRUE(ValueOrThrow(DiffCheckpoints(Open(*disk, "global_step_10"), after, {})).equal());

  // Of another model.
  SimFileSystem small;
  Cut tiny({1}, 1, ModelSize::kTiny);
  tiny.Fill(MakeTrainingState(1, ModelSize::kTiny));
  ThrowIfError(SaveOn(small, tiny, 10, SmallOptions()));
  const StepReader wrong = Open(small, "global_step_10");
  SimFileSystem nothing;
  EXPECT_EQ(Reshard(*disk, nothing, 1, &wrong).status().code(), StatusCode::kInvalidData);
  EXPECT_EQ(nothing.Stat("global_step_10").status().code(), StatusCode::kNotFound);
}

TEST(Reshard, RefusesToOverwriteAndToDisturb) {
  const auto disk = Saved(2, 3, 2);
  const Status itself = Reshard(*disk, *disk, 4).status();
  EXPECT_EQ(itself.code(), StatusCode::kAlreadyExists);
  SimFileSystem target;
  const auto held = ValueOrThrow(RunLock::Take(target, "a run", SystemClock()));
  EXPECT_EQ(Reshard(*disk, target, 4).status().code(), StatusCode::kBusy);
}

// What cannot be read just now may be the newest: a run would have gone back to the reshard.
TEST(Reshard, RefusesToOvertakeWhatCannotBeRead) {
  const auto disk = Saved(2, 3, 2);
  const auto target = Saved(2, 3, 2);
  ThrowIfError(
      target->Rename("global_step_10", "global_step_20", FileSystem::RenameMode::kReplace));
  target->SetFault([](int64_t, std::string_view operation, std::string_view path) {
    return operation == "open" && path.ends_with("global_step_20/manifest.json")
               ? Status(StatusCode::kIo, "the disk is away")
               : Status::Ok();
  });
  const Status status = Reshard(*disk, *target, 4).status();
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_THAT(status.message(), HasSubstr("global_step_20"));
  target->SetFault(nullptr);
  EXPECT_EQ(target->Stat("global_step_10").status().code(), StatusCode::kNotFound);
}

TEST(Reshard, DamageInTheSourceLeavesNothing) {
  const auto disk = Saved(2, 3, 2);
  const std::string file = "global_step_10/actor/optimizer/rank_00001.safetensors";
  std::string content = disk->Content(file);
  content[content.size() / 2] = static_cast<char>(content[content.size() / 2] ^ 8);
  disk->SetContent(file, content);
  SimFileSystem target;
  const Status status = Reshard(*disk, target, 2).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("rank_00001.safetensors"), HasSubstr("chunk")));
  for (const FileInfo& info : ValueOrThrow(target.List(".")))
    EXPECT_EQ(info.kind, FileKind::kFile) << info.name;  // the lock at most
}

TEST(Reshard, AFailureAtAnyCallLeavesNothingOrAll) {
  const auto disk = Saved(2, 3, 2);
  SimFileSystem clean;
  ThrowIfError(Reshard(*disk, clean, 2).status());
  for (int64_t n = 1; n <= clean.calls(); n += 3) {
    SimFileSystem target;
    target.SetFault([n](int64_t call, std::string_view, std::string_view) {
      return call == n ? Status(StatusCode::kNoSpace, "injected") : Status::Ok();
    });
    const auto report = Reshard(*disk, target, 2);
    target.SetFault({});
    if (target.Stat("global_step_10").ok()) {
      EXPECT_THAT(VerifyCheckpoint(target, "global_step_10", 1).problems, IsEmpty()) << n;
    } else {
      EXPECT_FALSE(report.ok()) << n;
    }
  }
}

// Two checkpoints of one model, cut differently, the second with `change` made to its state.
struct Pair {
  std::unique_ptr<SimFileSystem> a, b;
};
Pair Changed(int world_a, int world_b, const std::function<void(TrainingState&)>& change) {
  Pair pair{std::make_unique<SimFileSystem>(), std::make_unique<SimFileSystem>()};
  TrainingState state = MakeTrainingState(5);
  for (const auto& [disk, world] : {std::pair(pair.a.get(), world_a), {pair.b.get(), world_b}}) {
    if (disk == pair.b.get()) change(state);
    Cut cut({world}, static_cast<uint64_t>(world));
    cut.Fill(state);
    ThrowIfError(SaveOn(*disk, cut, 10, SmallOptions()));
  }
  return pair;
}

template <typename Value>
void Set(GlobalState& state, const std::string& name, size_t element, Value value) {
  std::memcpy(state.at(name).bytes.data() + element * sizeof value, &value, sizeof value);
}

DiffReport Diff(const Pair& pair, const DiffOptions& options = {}) {
  return ValueOrThrow(
      DiffCheckpoints(Open(*pair.a, "global_step_10"), Open(*pair.b, "global_step_10"), options));
}

TEST(Diff, EqualFilesAreNotRead) {
  const Pair pair = Changed(3, 3, [](TrainingState&) {});
  for (SimFileSystem* disk : {pair.a.get(), pair.b.get()}) {
    disk->SetFault([](int64_t, std::string_view operation, std::string_view path) {
      return operation == "open" && path.ends_with(".safetensors")
                 ? Status(StatusCode::kIo, "a tensor file is read")
                 : Status::Ok();
    });
  }
  const DiffReport report = Diff(pair);
  EXPECT_TRUE(report.equal());
  EXPECT_EQ(report.bytes_read, 0);
  EXPECT_EQ(report.equal_by_digest, report.tensors_in_both);
  EXPECT_GT(report.tensors_in_both, 20);
}

TEST(Diff, OtherLayoutsAreReadAndEqual) {
  const Pair pair = Changed(1, 4, [](TrainingState&) {});
  DiffOptions options;
  options.buffer_bytes = 1000;  // many slabs
  const DiffReport report = Diff(pair, options);
  EXPECT_TRUE(report.equal()) << report.tensors.front().ToString();
  EXPECT_GT(report.bytes_read, 0);
}

TEST(Diff, NamesTensorsPlacesAndDistances) {
  const std::string gate = "model.layers.0.mlp.gate_proj.weight";  // F32 [33, 24]
  const std::string moment = "optimizer.exp_avg.model.norm.weight";
  const std::string norm = "model.norm.weight";  // BF16 [16]
  const std::string conv = "model.conv.weight";  // F16 [6, 5, 4, 3]
  for (const int world_b : {2, 3}) {             // the same layout, and another
    for (const int64_t buffer : {int64_t{200}, int64_t{1} << 20}) {
      TrainingState base = MakeTrainingState(5);
      Pair pair{std::make_unique<SimFileSystem>(), std::make_unique<SimFileSystem>()};
      Set(base.model, gate, 3 * 24 + 5, 1.0f);
      Set(base.model, gate, 7 * 24 + 2, 2.0f);
      Set(base.model, norm, 4, uint16_t{0x3f80});  // 1
      Set(base.model, conv, 0, uint16_t{0x3c00});  // 1
      Set(base.optimizer, moment, 0, std::numeric_limits<float>::quiet_NaN());
      Set(base.optimizer, moment, 1, 3.0f);
      TrainingState other = base;
      Set(other.model, gate, 3 * 24 + 5, 1.25f);
      Set(other.model, gate, 7 * 24 + 2, 1.0f);
      Set(other.model, norm, 4, uint16_t{0x4000});  // 2
      Set(other.model, conv, 1, uint16_t{0x0001});  // 2^-24 or so apart
      Set(other.model, "model.scale", 0, 1e30f);
      Set(other.model, "model.counter", 0, int64_t{123});
      Set(other.optimizer, moment, 0, 0.5f);
      Set(other.optimizer, moment, 1, std::numeric_limits<float>::infinity());
      for (const auto& [disk, state, world] :
           {std::tuple(pair.a.get(), &base, 2), {pair.b.get(), &other, world_b}}) {
        Cut cut({world}, static_cast<uint64_t>(world));
        cut.Fill(*state);
        ThrowIfError(SaveOn(*disk, cut, 10, SmallOptions()));
      }
      DiffOptions options;
      options.buffer_bytes = buffer;
      const DiffReport report = Diff(pair, options);
      std::map<std::string, TensorDifference> found;
      for (const TensorDifference& one : report.tensors) found[one.a.name] = one;
      ASSERT_EQ(found.size(), 6u);
      EXPECT_EQ(found.at(gate).differing, 2);
      EXPECT_EQ(found.at(gate).box, (Box{Dims{3, 2}, Dims{5, 4}}));
      EXPECT_EQ(found.at(gate).max_abs, std::optional(1.0));
      EXPECT_EQ(found.at(gate).at, (Dims{7, 2}));
      EXPECT_EQ(found.at(norm).max_abs, std::optional(1.0));
      EXPECT_EQ(found.at(norm).box, (Box{Dims{4}, Dims{1}}));
      EXPECT_EQ(found.at(conv).box, (Box{Dims{0, 0, 0, 1}, Dims{1, 1, 1, 1}}));
      EXPECT_EQ(found.at("model.scale").differing, 1);
      EXPECT_EQ(found.at("model.counter").max_abs, std::nullopt);
      EXPECT_EQ(found.at(moment).nan_against_number, 1);
      EXPECT_TRUE(std::isinf(*found.at(moment).max_abs));
      EXPECT_THAT(
          found.at(gate).ToString(),
          AllOf(HasSubstr("actor/model: " + gate + " F32[33, 24]: 2 of 792 elements differ"),
                HasSubstr("[3:8, 2:6]"), HasSubstr("max |A-B| = 1 at [7, 2]")));
      EXPECT_THAT(report.files, IsEmpty());
      options.scope = "actor/optimizer";
      EXPECT_EQ(Diff(pair, options).tensors.size(), 1u);
    }
  }
}

TEST(Diff, NamesWhatOnlyOneHas) {
  Pair pair{std::make_unique<SimFileSystem>(), std::make_unique<SimFileSystem>()};
  const TensorInfo both{"both", DType::kF32, Dims{4}};
  const TensorInfo wide{"shape", DType::kF32, Dims{4}};
  const TensorInfo tall{"shape", DType::kF32, Dims{4, 1}};
  const TensorInfo left{"left", DType::kF32, Dims{2}};
  const TensorInfo right{"right", DType::kBF16, Dims{3}};
  for (const auto& [disk, tensors] : {std::pair(pair.a.get(), std::vector{both, wide, left}),
                                      {pair.b.get(), {both, tall, right}}}) {
    RankPart part;
    for (const TensorInfo& tensor : tensors) part.AddBox(tensor, Box::Whole(tensor.shape));
    part.Clear(1);
    RunRanks(1, [&, d = disk](int, Coordinator& coordinator) {
      Logger log(Quiet());
      Checkpointer checkpointer(*d, coordinator, SystemClock(), log, SmallOptions());
      ThrowIfError(checkpointer.Open());
      SaveRequest request;
      request.step = 10;
      request.roles = {{"actor", part.table, {}}};
      request.contents.optimizer = false;
      request.documents = {{d == pair.a.get() ? "a.json" : "b.json", "{}", false},
                           {"c.json", d == pair.a.get() ? "1" : "2", false},
                           {"d.json", "{}", false}};
      ThrowIfError(checkpointer.Save(request).status());
      ThrowIfError(checkpointer.Close());
    });
  }
  const DiffReport report = Diff(pair);
  std::vector<std::string> lines;
  for (const TensorDifference& one : report.tensors) lines.push_back(one.ToString());
  EXPECT_THAT(lines, ElementsAre("actor/model: left: only in A, F32[2]",
                                 "actor/model: right: only in B, BF16[3]",
                                 "actor/model: shape: F32[4] in A, F32[4, 1] in B"));
  std::vector<std::string> files;
  for (const FileDifference& one : report.files) files.push_back(one.path + ": " + one.what);
  EXPECT_THAT(files, ElementsAre("a.json: only in A", "b.json: only in B", "c.json: differs"));
}

TEST(Diff, DamageIsNoDifference) {
  const Pair pair = Changed(2, 3, [](TrainingState&) {});
  const std::string file = "global_step_10/actor/model/rank_00000.safetensors";
  std::string content = pair.a->Content(file);
  content[content.size() - 2] = static_cast<char>(content[content.size() - 2] ^ 8);
  pair.a->SetContent(file, content);
  const auto report =
      DiffCheckpoints(Open(*pair.a, "global_step_10"), Open(*pair.b, "global_step_10"), {});
  EXPECT_EQ(report.status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace keel::checkpoint
