// A load by several ranks together: each byte is read once, and all get what they need.
#include <gmock/gmock.h>

#include <algorithm>

#include "checkpoint/checkpointer.h"
#include "checkpoint/format/names.h"
#include "tests/checkpoint/load/load_ways.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"
#include "tests/checkpoint/support/view_file_system.h"

namespace keel::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

TEST(Load, AnyLayoutToAnyOtherInEveryMode) {
  for (uint64_t seed = 0; seed < 120; ++seed) {
    const TrainingState state = MakeTrainingState(seed);
    SimFileSystem disk;
    Cut from({1 + static_cast<int>(seed % 5), seed % 2 == 0, seed % 3 != 0, true}, seed);
    from.Fill(state);
    ASSERT_EQ(SaveOn(disk, from, 7, SmallOptions()).ToString(), "ok") << "seed " << seed;
    Cut to({1 + static_cast<int>((seed / 5) % 6), seed % 3 == 0, seed % 2 != 0, true}, seed + 1000);
    Views views(disk, to.world());
    for (const bool in_place : {false, true}) {
      // None, and memory or channel; and both of them for some.
      const int ways_here = seed % 4 == 0 ? static_cast<int>(kWays.size()) : 2;
      for (int way = -1; way < ways_here; ++way) {
        SCOPED_TRACE(::testing::Message()
                     << "seed " << seed << " in place " << in_place << " way " << way);
        to.Clear(0x5a);
        LoadSetup setup = views.Setup();
        setup.exchange = way >= 0;
        setup.options.load_threads = 1 + static_cast<int>(seed % 3);
        WaySetup ways(way >= 0 ? kWays[static_cast<size_t>(way)] : Way::kMemory, to.world());
        setup.change = [&](int rank, LoadRequest& request) {
          ways.Apply(rank, &request);
          request.in_place = in_place;
          return true;
        };
        ExpectAllOk(LoadRanks(to, setup));
        ASSERT_EQ(to.FirstDifference(state), "");
      }
    }
  }
}

TEST(Load, EachByteIsReadOnceByAnyNumberOfRanks) {
  Replicated from(2);
  SimFileSystem disk;
  from.cut.Fill(from.state);
  ThrowIfError(SaveOn(disk, from.cut, 5, SmallOptions()));
  const auto read_by = [&](int world, Way way) {
    SCOPED_TRACE(::testing::Message() << world << " ranks, way " << static_cast<int>(way));
    Replicated to(world);
    to.cut.Clear(1);
    Views views(disk, world);
    LoadSetup setup = views.Setup();
    WaySetup ways(way, world);
    setup.change = [&](int rank, LoadRequest& request) {
      ways.Apply(rank, &request);
      return true;
    };
    const LoadOutcome outcome = LoadRanks(to.cut, setup);
    ExpectAllOk(outcome);
    EXPECT_EQ(to.cut.FirstDifference(from.state), "");
    int64_t size = 0;
    for (const std::string& path : disk.AllFiles()) {
      if (path.ends_with(".safetensors")) size += static_cast<int64_t>(disk.Content(path).size());
    }
    EXPECT_EQ(views.BytesRead(".safetensors"), size) << world;
    // And no rank reads much more than its share.
    int64_t most = 0;
    int64_t recorded = 0;
    for (const auto& record : outcome.records) {
      most = std::max(most, record->bytes);
      recorded += record->bytes;
    }
    EXPECT_EQ(recorded, size);
    EXPECT_LE(most, size * 13 / 10 / world + 4 * 4096) << world;
  };
  for (const int world : {1, 2, 3, 4, 8}) {
    for (const Way way : kWays) read_by(world, way);
  }
}

// Every rank looked at every file and read the index: at 16,384 ranks 388 million looks.
TEST(Load, RankZeroReadsManifestAndIndexForAll) {
  for (const int world : {2, 5}) {
    Replicated job(world);
    SimFileSystem disk;
    job.cut.Fill(job.state);
    ThrowIfError(SaveOn(disk, job.cut, 5, SmallOptions()));
    job.cut.Clear(1);
    Views views(disk, world);
    ExpectAllOk(LoadRanks(job.cut, views.Setup()));
    EXPECT_EQ(job.cut.FirstDifference(job.state), "");
    for (int r = 1; r < world; ++r) {
      EXPECT_EQ(views[r].stats(), 0) << r;
      EXPECT_EQ(views[r].bytes_read(kManifestName) + views[r].bytes_read(kIndexName), 0) << r;
    }
    EXPECT_EQ(views.BytesRead(kIndexName),
              static_cast<int64_t>(disk.Content("global_step_5/index.bin").size()));
  }
}

TEST(Load, WithoutAChannelEachRankReadsWhatItNeeds) {
  Replicated from(2);
  SimFileSystem disk;
  from.cut.Fill(from.state);
  ThrowIfError(SaveOn(disk, from.cut, 5, SmallOptions()));
  Replicated to(4);
  to.cut.Clear(1);
  Views views(disk, 4);
  LoadSetup setup = views.Setup();
  setup.change = [&](int rank, LoadRequest& request) {
    if (rank == 2) request.channel = nullptr;  // on one rank is enough
    return true;
  };
  ExpectAllOk(LoadRanks(to.cut, setup));
  EXPECT_EQ(to.cut.FirstDifference(from.state), "");
  // The weights four times, the rest once.
  int64_t weights = 0;
  for (const auto& [name, tensor] : from.state.model)
    weights += static_cast<int64_t>(tensor.bytes.size());
  EXPECT_GE(views.BytesRead(".safetensors"), 4 * weights);
}

TEST(Load, WeightsCanComeFromTheWholeHuggingFaceModel) {
  for (const bool sharded_too : {false, true}) {
    const TrainingState state = MakeTrainingState(21);
    const TrainingState older = MakeTrainingState(20);
    SimFileSystem disk;
    Cut from({3}, 5);
    const auto with_hf = [&](SaveRequest& request) {
      request.contents.model = sharded_too;
      request.contents.hf_model = true;
    };
    from.Fill(older);
    ThrowIfError(SaveOn(disk, from, 10, SmallOptions(), with_hf));
    from.Fill(state);
    ThrowIfError(SaveOn(disk, from, 20, SmallOptions(), with_hf));
    Cut to({4}, 6);
    const auto load = [&](Views& views, bool in_place) {
      LoadSetup setup = views.Setup();
      setup.change = [&](int, LoadRequest& request) {
        request.contents.model = false;
        request.contents.hf_model = true;
        request.in_place = in_place;
        return true;
      };
      to.Clear(0x21);
      return LoadRanks(to, setup);
    };
    for (const bool in_place : {false, true}) {
      Views views(disk, 4);
      ExpectAllOk(load(views, in_place));
      EXPECT_EQ(to.FirstDifference(state), "");
      EXPECT_EQ(views.BytesRead("/model/rank_00000.safetensors"), 0);  // not the sharded ones
    }
    // Damage in the header, and in the weights.
    const std::string path = "global_step_20/actor/huggingface/model.safetensors";
    const std::string content = disk.Content(path);
    for (const size_t at : {size_t{50}, content.size() - 50}) {
      std::string damaged = content;
      damaged[at] ^= 8;
      disk.SetContent(path, damaged);
      Views views(disk, 4);
      const LoadOutcome outcome = load(views, at > 50);
      ExpectAllOk(outcome);
      EXPECT_EQ(outcome.records[0]->step, 10);
      EXPECT_EQ(to.FirstDifference(older), "");
      EXPECT_THAT(outcome.records[0]->skipped[0].reason,
                  AllOf(HasSubstr(path), HasSubstr("chunk " + std::to_string(at / 4096))));
    }
    disk.SetContent(path, content);
    // What was not saved cannot be asked for.
    const auto model = LoadFrom(disk, to, [](LoadRequest& request) { request.in_place = true; });
    EXPECT_EQ(model.ok(), sharded_too) << model.status().ToString();
    if (!sharded_too) {
      EXPECT_THAT(model.status().message(),
                  AllOf(HasSubstr("holds no model"), HasSubstr("load_contents")));
    }
  }
  SimFileSystem disk;
  Cut cut({2}, 5);
  cut.Fill(MakeTrainingState(1));
  ThrowIfError(SaveOn(disk, cut, 10, SmallOptions()));
  const auto none = LoadFrom(disk, cut, [](LoadRequest& request) {
    request.contents.model = false;
    request.contents.hf_model = true;
  });
  EXPECT_EQ(none.status().code(), StatusCode::kConfig);
  EXPECT_THAT(none.status().message(),
              AllOf(HasSubstr("holds no hf_model"), HasSubstr("load_contents")));
}

TEST(Load, TensorsThatDifferNeedPermissionByName) {
  const TensorInfo same{"model.same", DType::kF32, Dims{40}};
  const TensorInfo shape_saved{"model.shape", DType::kF32, Dims{40}};
  const TensorInfo shape_here{"model.shape", DType::kF32, Dims{41}};
  const TensorInfo dtype_saved{"model.dtype", DType::kF32, Dims{40}};
  const TensorInfo dtype_here{"model.dtype", DType::kBF16, Dims{40}};
  const TensorInfo saved_only{"model.saved_only", DType::kF32, Dims{40}};
  const TensorInfo here_only{"model.here_only", DType::kF32, Dims{40}};
  const auto cut_of = [](const std::vector<TensorInfo>& tensors) {
    Cut cut({2}, 1, ModelSize::kTiny);
    for (size_t r = 0; r < 2; ++r) {
      cut.model[r] = RankPart();
      cut.optimizer[r] = RankPart();
      for (const TensorInfo& tensor : tensors)
        cut.model[r].AddBox(tensor, Box::Whole(tensor.shape), static_cast<int>(r));
    }
    return cut;
  };
  SimFileSystem disk;
  Cut saved = cut_of({same, shape_saved, dtype_saved, saved_only});
  const GlobalState state = MakeState({same, shape_saved, dtype_saved, saved_only}, 1);
  for (RankPart& part : saved.model) part.Fill(state);
  const auto only_model = [](auto& request) { request.contents.optimizer = false; };
  ThrowIfError(SaveOn(disk, saved, 10, SmallOptions(), only_model));

  Cut here = cut_of({same, shape_here, dtype_here, here_only});
  const std::vector<std::string> names = {"model.shape", "model.dtype", "model.here_only",
                                          "model.saved_only"};
  for (const bool in_place : {false, true}) {
    here.Clear(0x7b);
    const auto load = [&](const std::vector<std::string>& allowed) {
      return LoadFrom(disk, here, [&](LoadRequest& request) {
        only_model(request);
        request.in_place = in_place;
        request.allow_missing = allowed;
      });
    };
    // 1. All that differs on this side is named at once, with where to change it.
    const auto refused = load({});
    EXPECT_EQ(refused.status().code(), StatusCode::kConfig);
    EXPECT_THAT(refused.status().message(),
                AllOf(HasSubstr("actor/model:model.shape (has [40], expected [41])"),
                      HasSubstr("actor/model:model.dtype (has F32, expected BF16)"),
                      HasSubstr("actor/model:model.here_only"), HasSubstr("allow_missing"),
                      HasSubstr("Give the state that was saved"), HasSubstr("global_step_10")));
    // 2. Any one that is not named is an error.
    for (const std::string& missing : names) {
      std::vector<std::string> others;
      for (const std::string& name : names) {
        if (name != missing) others.push_back(name);
      }
      const auto one = load(others);
      EXPECT_EQ(one.status().code(), StatusCode::kConfig);
      EXPECT_THAT(one.status().message(), AllOf(HasSubstr(missing), HasSubstr("allow_missing")));
      for (const std::string& name : others)
        EXPECT_THAT(one.status().message(), Not(HasSubstr(name)));
    }
    for (const RankPart& part : here.model) {
      EXPECT_EQ(static_cast<int>((*part.memory[0])[0]), 0x7b);
    }
    // 3. With all of them named, what is the same is loaded, and the rest stays.
    const auto loaded = load({"model.[!s]*", "model.s[!a]*", "model.saved_only"});
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    for (const RankPart& part : here.model) {
      EXPECT_EQ(*part.memory[0], state.at("model.same").bytes);
      for (size_t i = 1; i < part.memory.size(); ++i) {
        EXPECT_TRUE(std::all_of(part.memory[i]->begin(), part.memory[i]->end(),
                                [](std::byte b) { return b == std::byte{0x7b}; }));
      }
    }
    // 4. They are said, and counted.
    EXPECT_THAT((*loaded)->kept,
                ElementsAre("actor/model:model.dtype", "actor/model:model.here_only",
                            "actor/model:model.shape"));
    EXPECT_THAT((*loaded)->left_out,
                ElementsAre("actor/model:model.dtype", "actor/model:model.saved_only",
                            "actor/model:model.shape"));
    EXPECT_EQ((*loaded)->ToJson()["kept"].size(), 3u);
  }
}

// A role on one side alone is named, and left alone where that is allowed.
TEST(Load, RolesMustMatchUnlessTheyAreNamed) {
  SimFileSystem disk;
  Cut actor({1}, 1), critic({1}, 1);
  actor.Fill(MakeTrainingState(1));
  critic.Fill(MakeTrainingState(2));
  const auto both = [&](auto& request) {
    request.roles.push_back(critic.Roles(0)[0]);
    request.roles.back().name = "critic";
  };
  ThrowIfError(SaveOn(disk, actor, 10, SmallOptions(), both));

  const auto refused = LoadFrom(disk, actor);
  EXPECT_EQ(refused.status().code(), StatusCode::kConfig);
  EXPECT_THAT(refused.status().message(),
              AllOf(HasSubstr("holds the role 'critic'"), HasSubstr("allow_missing")));
  // Without tensors there is nothing that could be lost, or missing.
  const auto extra = ValueOrThrow(LoadFrom(disk, actor, [](LoadRequest& r) {
    r.contents = {false, false, true, false};
  }));
  EXPECT_TRUE(extra->left_out.empty());
  actor.Clear(0x11);
  const auto without =
      ValueOrThrow(LoadFrom(disk, actor, [](LoadRequest& r) { r.allow_missing = {"critic"}; }));
  EXPECT_THAT(without->left_out, ElementsAre("critic"));
  EXPECT_EQ(actor.FirstDifference(MakeTrainingState(1)), "");

  ThrowIfError(SaveOn(disk, actor, 20, SmallOptions()));
  const auto lacks = LoadFrom(disk, actor, both);
  EXPECT_THAT(lacks.status().message(),
              AllOf(HasSubstr("holds no role 'critic'"), HasSubstr("allow_missing")));
  actor.Clear(0x11);
  critic.Clear(0x22);
  const auto own = ValueOrThrow(LoadFrom(disk, actor, [&](LoadRequest& r) {
    both(r);
    r.allow_missing = {"crit*"};
  }));
  EXPECT_THAT(own->kept, ElementsAre("critic"));
  EXPECT_EQ(actor.FirstDifference(MakeTrainingState(1)), "");
  EXPECT_EQ(static_cast<int>((*critic.model[0].memory[0])[0]), 0x22);
}

// A pattern for everything is none for a load of nothing, which would go on from whatever is there.
TEST(Load, OfWeightsThatWouldAllStayNothingIsLoaded) {
  const auto cut_of = [](DType dtype) {
    Cut cut({2}, 1, ModelSize::kTiny);
    for (auto* parts : {&cut.model, &cut.optimizer}) {
      for (size_t r = 0; r < 2; ++r) {
        (*parts)[r] = RankPart();
        const TensorInfo tensor{fmt::format("w{}", r), dtype, Dims{8}};
        (*parts)[r].AddBox(tensor, Box::Whole(tensor.shape));
      }
    }
    return cut;
  };
  SimFileSystem disk;
  ThrowIfError(SaveOn(disk, cut_of(DType::kF32), 10, SmallOptions()));
  Cut other = cut_of(DType::kBF16);
  other.Clear(0x7b);
  const auto all = [](LoadRequest& request) { request.allow_missing = {"*"}; };
  const auto refused = LoadFrom(disk, other, all);
  EXPECT_EQ(refused.status().code(), StatusCode::kConfig);
  EXPECT_THAT(refused.status().message(),
              AllOf(HasSubstr("has not one tensor of this run's actor/model"),
                    HasSubstr("allow_missing would let all of them")));
  // One of them on one rank is one.
  Cut most = cut_of(DType::kBF16);
  most.model[1] = RankPart();
  most.optimizer = cut_of(DType::kF32).optimizer;
  const TensorInfo same{"w1", DType::kF32, Dims{8}};
  most.model[1].AddBox(same, Box::Whole(same.shape));
  const auto loaded = LoadFrom(disk, most, all);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_THAT((*loaded)->kept, ElementsAre("actor/model:w0"));
}

}  // namespace
}  // namespace keel::checkpoint
