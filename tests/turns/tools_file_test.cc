#include "turns/tools_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace keel::turns {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kSchema = R"(
    tool_schema:
      type: function
      function:
        name: calc
        description: "Adds numbers"
        parameters: {type: object, properties: {x: {type: number}}, required: [x]}
)";

class ToolsFileTest : public ::testing::Test {
 protected:
  ~ToolsFileTest() override { unlink(path_.c_str()); }
  Result<std::vector<ToolSpec>> Load(const std::string& text) {
    std::ofstream(path_) << text;
    return LoadTools(path_);
  }
  std::string Refused(const std::string& text) {
    const Status status = Load(text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidData);
    EXPECT_THAT(status.message(), HasSubstr(path_));
    return status.message();
  }
  const std::string path_ =
      ::testing::TempDir() + "keel_tools_" + std::to_string(getpid()) + ".yaml";
};

TEST_F(ToolsFileTest, VerlsShapeWithACommandOrAnAddress) {
  const auto tools = ValueOrThrow(Load(
      std::string("tools:\n  - class_name: my.Tool\n    config: {type: native, command: [python3, "
                  "calc.py], timeout_seconds: 0.5, num_workers: 3}") +
      kSchema + "  - config: {url: 'http://localhost:1/x', ca_file: ca.pem}\n    tool_schema: " +
      "{type: function, function: {name: search}}\n"));
  ASSERT_EQ(tools.size(), 2U);
  EXPECT_EQ(tools[0].name, "calc");
  EXPECT_EQ(tools[0].command, (std::vector<std::string>{"python3", "calc.py"}));
  EXPECT_EQ(tools[0].timeout.count(), 500);
  EXPECT_EQ(tools[0].num_workers, 3);
  EXPECT_EQ(tools[0].schema["function"]["parameters"]["required"], Json::array({"x"}));
  EXPECT_EQ(tools[1].url, "http://localhost:1/x");
  EXPECT_EQ(tools[1].ca_file, "ca.pem");
  EXPECT_EQ(SchemasOf(tools)[1]["function"]["name"], "search");
}

TEST_F(ToolsFileTest, EnvironmentsAreOfVerlsShapeToo) {
  const auto load = [this](const std::string& text) {
    std::ofstream(path_) << text;
    return LoadEnvironments(path_);
  };
  const auto both = ValueOrThrow(
      load("interaction:\n  - name: guess\n    class_name: x.Y\n    config: {command: [python3, "
           "guess.py], num_workers: 4}\n  - {name: shop, config: {url: 'http://localhost:1/'}}\n"));
  ASSERT_EQ(both.size(), 2U);
  EXPECT_EQ(NamesOf(both), (std::vector<std::string>{"guess", "shop"}));
  EXPECT_TRUE(both[0].is_environment);
  EXPECT_EQ(both[0].num_workers, 4);
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"interaction: []", "expected interaction: a list"},
           {"tools: []", "expected interaction: a list"},
           {"interaction: [{config: {url: 'http://x/'}}]", "name"},
           {"interaction: [{name: '', config: {url: 'http://x/'}}]", "name"},
           {"interaction: [{name: a, class_name: verl.interactions.gsm8k_interaction.X, config: "
            "{}}]",
            "verl.interactions.gsm8k_interaction.X"},
           {"interaction: [{name: a, tool_schema: {}, config: {url: 'http://x/'}}]", "tool_schema"},
           {"interaction: [{name: a, config: {url: 'http://x/'}}, {name: a, config: {url: "
            "'http://y/'}}]",
            "named a"}}) {
    const Status status = load(text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidData) << text;
    EXPECT_THAT(status.message(), AllOf(HasSubstr(path_), HasSubstr(words))) << text;
  }
  EXPECT_THAT(LoadEnvironments("/no/such").status().message(),
              HasSubstr("interaction_config_path"));
}

TEST(EnvironmentOfTest, ARowChoosesByName) {
  const std::vector<std::string> one = {"guess"}, two = {"guess", "shop"};
  const auto of = [](const char* row, const std::vector<std::string>& names) {
    return EnvironmentOf(Json::parse(row), names);
  };
  EXPECT_EQ(ValueOrThrow(of("{}", two)), "");
  EXPECT_EQ(ValueOrThrow(of(R"({"interaction_kwargs": null})", two)), "");
  EXPECT_EQ(ValueOrThrow(of(R"({"interaction_kwargs": {"name": "shop"}})", {})), "");
  EXPECT_EQ(ValueOrThrow(of(R"({"interaction_kwargs": {"name": "shop"}})", two)), "shop");
  EXPECT_EQ(ValueOrThrow(of(R"({"interaction_kwargs": {"query": "?"}})", one)), "guess");
  // Of a table, whose rows have all members.
  EXPECT_EQ(ValueOrThrow(of(R"({"interaction_kwargs": {"name": null, "query": "?"}})", one)),
            "guess");
  for (const char* row :
       {R"({"interaction_kwargs": {"query": "?"}})", R"({"interaction_kwargs": {"name": "bank"}})",
        R"({"interaction_kwargs": {"name": 3}})", R"({"interaction_kwargs": []})"}) {
    const Status status = of(row, two).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidData) << row;
    EXPECT_THAT(status.message(), HasSubstr("interaction_kwargs")) << row;
  }
  EXPECT_THAT(of(R"({"interaction_kwargs": {"name": "bank"}})", two).status().message(),
              AllOf(HasSubstr("guess, shop"), HasSubstr("bank")));
}

TEST(ToolsOfTest, ARowChoosesByNames) {
  const std::vector<std::string> all = {"calc", "web", "sh"};
  const auto of = [&](const char* row) { return ToolsOf(Json::parse(row), all); };
  EXPECT_EQ(of("{}"), all);
  EXPECT_EQ(of(R"({"tool_selection": null})"), all);
  EXPECT_EQ(of(R"({"tool_selection": []})"), all);
  EXPECT_EQ(of(R"({"tool_selection": ["sh", "calc", "sh"]})"),
            std::vector<std::string>({"sh", "calc"}));
  EXPECT_EQ(of(R"({"tool_selection": ["gone", "web"]})"), std::vector<std::string>({"web"}));
  EXPECT_EQ(of(R"({"tool_selection": ["gone"]})"), std::vector<std::string>());
  for (const char* row : {R"({"tool_selection": "calc"})", R"({"tool_selection": [1]})"}) {
    EXPECT_THAT(SelectionOf(Json::parse(row)).status().message(),
                HasSubstr("extra_info.tool_selection: expected a list of tools' names"));
  }
}

TEST_F(ToolsFileTest, AClassOfPythonsIsRefusedWithTheWayOut) {
  EXPECT_THAT(Refused(std::string("tools:\n  - class_name: verl.tools.gsm8k_tool.Gsm8kTool\n"
                                  "    config: {type: native}") +
                      kSchema),
              AllOf(HasSubstr("tools[0] (calc)"), HasSubstr("verl.tools.gsm8k_tool.Gsm8kTool"),
                    HasSubstr("config.command")));
}

TEST_F(ToolsFileTest, WhatIsWrongIsNamed) {
  const auto config = [](const std::string& text) {
    return "tools:\n  - config: {" + text + "}" + kSchema;
  };
  EXPECT_THAT(Refused("tools: []"), HasSubstr("tools: a list"));
  EXPECT_THAT(Refused("tools: [\n"), HasSubstr("error"));
  EXPECT_THAT(Refused("tools:\n  - config: {command: [x]}\n"), HasSubstr("tool_schema"));
  EXPECT_THAT(Refused(config("command: x")), HasSubstr("command: expected a list"));
  EXPECT_THAT(Refused(config("command: []")), HasSubstr("command: expected a list"));
  EXPECT_THAT(Refused(config("command: [x], url: 'http://x'")), HasSubstr("either"));
  EXPECT_THAT(Refused(config("command: [x], timeout: 3")), HasSubstr("timeout: no such key"));
  EXPECT_THAT(Refused(config("command: [x], timeout_seconds: 0")), HasSubstr("timeout_seconds"));
  EXPECT_THAT(Refused(config("command: [x], num_workers: 0")), HasSubstr("num_workers"));
  EXPECT_THAT(Refused(config("command: [x], type: mcp")), HasSubstr("native"));
  const std::string one = std::string("  - config: {command: [x]}") + kSchema;
  EXPECT_THAT(Refused("tools:\n" + one + one), HasSubstr("two of them are named calc"));
  const Status missing = LoadTools("/no/such/tools.yaml").status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("tool_config_path"));
}

}  // namespace
}  // namespace keel::turns
