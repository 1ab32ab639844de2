#include "trainer/foreign/conversions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer/config/choices.h"

namespace keel::trainer::foreign {
namespace {

using testing::HasSubstr;

TEST(Conversions, ValuesAreWrittenAsKeelWritesThem) {
  EXPECT_EQ(AsList("a").value(), Json::array({"a"}));
  EXPECT_EQ(AsList(Json::array({"a", "b"})).value(), Json::array({"a", "b"}));
  EXPECT_EQ(AsDtype("torch.BFloat16").value(), Json("bfloat16"));
  EXPECT_EQ(AsDtype("fp32").value(), Json("float32"));
  EXPECT_THAT(AsDtype("fp16").status().message(), HasSubstr("got fp16"));
  EXPECT_EQ(AsDecayStyle("WSD").value(), Json("wsd"));
  EXPECT_EQ(AsDecayStyle("constant_with_warmup").value(), Json("constant"));
  EXPECT_FALSE(AsDecayStyle("polynomial").ok());
  EXPECT_EQ(UnlessNegative(3).value(), Json(3));
  EXPECT_EQ(OneLess(3).value(), Json(2));
  EXPECT_EQ(OneLess(0).value(), Json(0));
  EXPECT_FALSE(OneLess("3").ok());
  EXPECT_EQ(AsTruncation("keep_start").value(), Json("right"));
  EXPECT_EQ(AsTruncation("keep_end").value(), Json("left"));
  EXPECT_EQ(ZeroAsAll(0).value(), Json(-1));
  EXPECT_EQ(ZeroAsAll(20).value(), Json(20));
  EXPECT_EQ(FromOneOn(2).value(), Json(2));
  EXPECT_EQ(NothingAsZero(nullptr).value(), Json(0));
  EXPECT_EQ(NothingAsZero(0.5).value(), Json(0.5));
  EXPECT_EQ(OneOfList(Json::array({"ipo"})).value(), Json("ipo"));
  EXPECT_EQ(OneOfList(Json::array({"ipo", "sft"})).value(), Json::array({"ipo", "sft"}));
  EXPECT_EQ(GroupAsTrue("none").value(), Json(false));
  EXPECT_FALSE(GroupAsTrue("batch").ok());
  EXPECT_EQ(RandomAsShuffle("sequential").value(), Json(false));
  EXPECT_FALSE(RandomAsShuffle("group_by_length").ok());
  EXPECT_EQ(Bf16AsDtype(nullptr).value(), Json("bfloat16"));
  EXPECT_EQ(Bf16AsDtype(false).value(), Json("float32"));
  EXPECT_EQ(CpuAsDevice(true).value(), Json("cpu"));
}

TEST(Conversions, SomeValuesSayNothing) {
  for (const Result<Json>& value :
       {AsList(nullptr), AsDtype("auto"), UnlessNegative(-1), Worked("anything"), FromOneOn(0),
        FromOneOn(0.1), CpuAsDevice(false), PathOrNothing(true), MapOrNothing(nullptr),
        NumbersOrNothing(nullptr)})
    EXPECT_TRUE(value.value().is_discarded());
}

TEST(Conversions, LoggersThatAreNotHereReadJsonLines) {
  const Json both = AsLoggers(Json::array({"console", "wandb"})).value();
  EXPECT_EQ(both, Json::array({"console", "jsonl"}));
  EXPECT_EQ(AsLoggers("none").value(), both);
  // One that this build has is taken, whatever that is.
  for (const std::string& sink : AllNames<LogSink>())
    EXPECT_THAT(AsLoggers(sink).value().dump(), HasSubstr(sink));
}

}  // namespace
}  // namespace keel::trainer::foreign
